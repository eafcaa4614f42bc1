// Writes the operations at the beginning and at the end of a program: the embeddings of ids, the steps after the last layer (pooling,
// modules, classifiers), and logits.
#pragma once

#include "model/programs.h"
#include "model/writer.h"

namespace pumice::model {

// Adds operations that write the embeddings of the ids to `x`.
void write_embedding(Writer& writer, const View& x);
// Adds the final norm, unless `output` is hidden or selected. For these two, the program of write_head() normalises the rows later.
void write_final_norm(Writer& writer, const View& x, Output output);
// Adds the modules whose Module::on_tokens equals `on_tokens`. Returns the view of their result, or `x` if there are no such modules.
View write_modules(Writer& writer, View x, bool on_tokens);
View write_selected(Writer& writer, const View& x);
View write_pooled(Writer& writer, const View& x);
View write_classes(Writer& writer, const View& x);
// Adds operations that compute the MLM head's logits, and for each token of the vocabulary the maximum of its logits over all rows of a
// segment. Only one strip of the vocabulary has its logits in memory at a time.
View write_sparse(Writer& writer, const View& x);

enum class Give : std::uint8_t { logits, log_probs, top };
// Returns a program that normalises hidden rows and computes logits.
Program write_head(const Description& d, std::string name, Give give, const Parameter& norm);

}  // namespace pumice::model
