// An assistant is a small decoder in a file of its own that guesses tokens for one model (Gemma 4). It has no keys and values: its layers
// attend to those of the model's last layers. Its first row is made of the embedding of the model's last id and of the model's hidden row
// that chose this id; each further one of the guess before and of the assistant's own last row. All guesses of a step have the same
// position, that of the last id, and attend to the positions before it. Results do not depend on an assistant.
#pragma once

#include <memory>

#include "model/description.h"

namespace pumice::model {

// Adds the assistant in `file` to a model. Throws the errors of describe(), and ErrorKind::unsupported_model if the assistant does not fit
// the model.
void add_assistant(Description& d, std::shared_ptr<const files::ModelFile> file, const DescribeOptions& options);

}  // namespace pumice::model
