// Where a program begins and ends: the embedding of ids, what is made of hidden rows for those who look at them, classifiers, logits.
#include "model/builder.h"

namespace pumice::model {

void Builder::embed() {
  const View rows = c_.embedding_size > 0 ? slot(Rows::tokens, c_.embedding_size) : x_;
  program_.ops.push_back(Embed{.out = rows, .tokens = d_.global(Role::token_embedding).matrix,
                               .positions = d_.global(Role::position_embedding).matrix,
                               .types = d_.global(Role::type_embedding).matrix, .scale = c_.embedding_scale});
  if (c_.embedding_norm) norm(d_.global(Role::embedding_norm), rows, rows);
  if (c_.embedding_size > 0) linear(rows, x_, {d_.global(Role::embedding_map)});
  if (c_.layer_inputs.width > 0) embed_inputs();
}

void Builder::finish_body(Output output, PoolKind pooling) {
  const bool looked_at = output == Output::tokens || output == Output::pooled || output == Output::classes;
  if (looked_at && c_.final_norm) norm(d_.global(Role::final_norm), x_, x_);
  switch (output) {
    case Output::hidden: case Output::tokens: return give(give_row(last_));
    case Output::selected: {
      const View out = slot(Rows::selected, c_.hidden_size);
      program_.ops.push_back(Select{.in = x_, .out = out});
      return give(out);
    }
    case Output::pooled: return give(projected(pool(x_, pooling)));
    case Output::classes: return give(classify());
  }
}

View Builder::pool(View in, PoolKind kind) {
  const View out = slot(Rows::segments, in.width);
  program_.ops.push_back(Pool{.in = in, .out = out, .kind = kind});
  return out;
}

View Builder::projected(View row) {
  const Parameter& projection = d_.global(Role::projection);
  if (!projection.present()) return row;
  const View out = slot(Rows::segments, static_cast<std::int32_t>(d_.matrix(projection.matrix).rows));
  linear(row, out, {projection});
  return out;
}

// classifier(norm(activation(dense(row)))) of one row of the text, or of every row and then pooled.
View Builder::classify() {
  const ClassifierHead& head = c_.classifier;
  const Rows rows = head.late ? Rows::tokens : Rows::segments;
  View row = head.late ? x_ : pool(x_, head.pooling);
  if (const Parameter& dense = d_.global(Role::head_dense); dense.present()) {
    const View out = slot(rows, c_.hidden_size);
    linear(row, out, {dense}, head.activation);
    if (head.norm) norm(d_.global(Role::head_norm), out, out);
    row = out;
  }
  const View logits = slot(rows, d_.labels);
  linear(row, logits, {d_.global(Role::classifier)});
  return head.late ? pool(logits, head.pooling) : logits;
}

Program Builder::head(Give give) {
  x_ = slot(Rows::tokens, c_.hidden_size);
  h_ = slot(Rows::tokens, c_.hidden_size);
  program_.input = x_.slot;
  norm(d_.global(Role::final_norm), x_, h_);
  const View logits = slot(Rows::tokens, d_.vocab_size);
  Linear product = make_linear(h_, logits, {d_.global(Role::head)});
  product.precise = true;
  product.scale = c_.logit_scale;
  product.softcap = c_.logit_softcap;
  program_.ops.push_back(std::move(product));
  program_.output = logits.slot;
  if (give == Give::log_probs) {
    const View out = slot(Rows::tokens, 1);
    program_.ops.push_back(LogProb{.logits = logits, .out = out});
    program_.output = out.slot;
  } else if (give == Give::top) {
    const std::int32_t masked = top_masked(d_.vocab_size);
    const View out = slot(Rows::tokens, static_cast<std::int32_t>(top_width(kTopLogits, masked)));
    program_.ops.push_back(Top{.logits = logits, .out = out, .k = kTopLogits, .masked = masked});
    program_.output = out.slot;
  }
  return std::move(program_);
}

}  // namespace pumice::model
