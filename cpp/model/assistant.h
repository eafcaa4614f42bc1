// An assistant is a small decoder in a file of its own that drafts tokens for one model (Gemma 4). Its layers compute no keys and values,
// but attend to those of the model's last layers. For a draft of several tokens, an assistant computes one row per token. The first row is
// computed from the embedding of the model's last id and from the model's hidden row that this id was sampled from. Each further row is
// computed from the embedding of the previous draft token and the assistant's own previous row. All rows of a draft have the same position,
// that of the last id, and attend to the positions before it. Results do not depend on an assistant.
#pragma once

#include <memory>

#include "model/description.h"

namespace pumice::model {

// Adds the assistant in `file` to a model. Throws the errors of describe(), and ErrorKind::unsupported_model if the assistant does not fit
// the model.
void add_assistant(Description& d, std::shared_ptr<const files::ModelFile> file, const DescribeOptions& options);

}  // namespace pumice::model
