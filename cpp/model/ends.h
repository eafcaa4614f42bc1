// Where a program begins and ends: the embedding of ids, what is made of hidden rows (pooling, modules, classifiers), and
// logits.
#pragma once

#include "model/programs.h"
#include "model/writer.h"

namespace pumice::model {

// Ids to `x`.
void write_embedding(Writer& writer, const View& x);
// The final norm, where `output` is looked at and not gone on from.
void write_final_norm(Writer& writer, const View& x, Output output);
// Rows behind their modules; x where there are none.
View write_modules(Writer& writer, View x, bool on_tokens);
View write_selected(Writer& writer, const View& x);
View write_pooled(Writer& writer, const View& x);
View write_classes(Writer& writer, const View& x);

enum class Give : std::uint8_t { logits, log_probs, top };
Program write_head(const Description& d, std::string name, Give give);

}  // namespace pumice::model
