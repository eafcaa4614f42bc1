// An assistant is a small decoder, in a file of its own, that drafts tokens for one model (Gemma 4). Its layers compute no keys and values;
// they attend to those of the model's last layers. An assistant computes one row per draft token. The first row is computed from the
// embedding of the model's last token and from the model's hidden row that this token was sampled from. Each further row is computed from
// the embedding of the previous draft token and from the assistant's previous row. All rows of a draft have the position of the model's
// last token, and attend to the positions before it. Results of the model do not depend on the assistant.
#pragma once

#include <memory>

#include "model/description.h"

namespace pumice::model {

// Adds the assistant in `file` to the model `d`. Throws the errors of describe(), and ErrorKind::unsupported_model if the assistant does
// not fit the model.
void add_assistant(Description& d, std::shared_ptr<const files::ModelFile> file, const DescribeOptions& options);

}  // namespace pumice::model
