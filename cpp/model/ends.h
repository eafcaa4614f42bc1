// The operations at a program's beginning and end: the embedding of ids, what follows the last layer (pooling, modules, classifiers), and
// logits.
#pragma once

#include "model/programs.h"
#include "model/writer.h"

namespace pumice::model {

// Adds operations that embed the ids and write the embeddings to `x`.
void write_embedding(Writer& writer, const View& x);
// Adds the final norm, if `output` is a final result and not the input of another program.
void write_final_norm(Writer& writer, const View& x, Output output);
// Adds the modules (those with Module::on_tokens, or the others) and returns the view of their result, which is x if there are none.
View write_modules(Writer& writer, View x, bool on_tokens);
View write_selected(Writer& writer, const View& x);
View write_pooled(Writer& writer, const View& x);
View write_classes(Writer& writer, const View& x);

enum class Give : std::uint8_t { logits, log_probs, top };
Program write_head(const Description& d, std::string name, Give give);

}  // namespace pumice::model
