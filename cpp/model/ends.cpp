// Where a program begins and ends: the embedding of ids, what is made of hidden rows for those who look at them (pooling, modules),
// classifiers, logits.
#include "model/builder.h"

namespace pumice::model {

void Builder::embed() {
  const View rows = c_.embedding_size > 0 ? slot(Rows::tokens, c_.embedding_size) : x_;
  program_.ops.push_back(Embed{.out = rows,
                               .tokens = d_.global(Role::token_embedding).matrix,
                               .positions = d_.global(Role::position_embedding).matrix,
                               .types = d_.global(Role::type_embedding).matrix,
                               .scale = c_.embedding_scale});
  if (c_.embedding_norm && !c_.norm_after_map) norm(d_.global(Role::embedding_norm), rows, rows);
  if (c_.embedding_size > 0) linear(rows, x_, {d_.global(Role::embedding_map)});
  if (c_.embedding_norm && c_.norm_after_map) norm(d_.global(Role::embedding_norm), x_, x_);
  if (c_.layer_inputs.width > 0) embed_inputs();
}

void Builder::finish_body(Output output, bool with_modules) {
  const bool looked_at = output == Output::tokens || output == Output::pooled || output == Output::classes;
  if (looked_at && c_.final_norm) norm(d_.global(Role::final_norm), x_, x_);
  switch (output) {
    case Output::hidden:
      return give(give_row(last_));
    case Output::tokens: {
      const View rows = with_modules ? modules(x_, true) : x_;
      return give(rows.slot == x_.slot ? give_row(last_) : rows);
    }
    case Output::selected: {
      const View out = slot(Rows::selected, c_.hidden_size);
      program_.ops.push_back(Select{.in = x_, .out = out});
      return give(out);
    }
    case Output::pooled:
      return give(modules(projected(pool(modules(x_, true), d_.pooling)), false));
    case Output::classes:
      return give(d_.score.present() ? score() : classify());
  }
}

// Vectors of several kinds stand side by side.
View Builder::pool(View in, const std::vector<PoolKind>& kinds) {
  const View out = slot(Rows::segments, in.width * static_cast<std::int32_t>(kinds.size()));
  for (std::int32_t col = 0; const PoolKind kind : kinds) {
    program_.ops.push_back(Pool{.in = in, .out = part(out, col, in.width), .kind = kind});
    col += in.width;
  }
  return out;
}

// The vector of each kind of pooling by itself.
View Builder::projected(View pooled) {
  const Parameter& projection = d_.global(Role::projection);
  if (!projection.present()) return pooled;
  const auto kinds = static_cast<std::int32_t>(d_.pooling.size()), width = static_cast<std::int32_t>(d_.matrix(projection.matrix).rows);
  const View out = slot(Rows::segments, kinds * width);
  for (std::int32_t i = 0; i < kinds; ++i)
    linear(part(pooled, i * c_.hidden_size, c_.hidden_size), part(out, i * width, width), {projection});
  return out;
}

View Builder::modules(View x, bool on_tokens) {
  for (const Module& m : d_.modules) {
    if (m.on_tokens != on_tokens) continue;
    const View out = slot(on_tokens ? Rows::tokens : Rows::segments, m.width);
    if (m.kind == ModuleKind::dense) {
      dense(m, x, out);
    } else {
      const bool layer = m.kind == ModuleKind::layer_norm;  // eps of torch.nn.LayerNorm; a length of at least 1e-12 of torch's normalize()
      program_.ops.push_back(Norm{.in = x,
                                  .out = out,
                                  .add = {},
                                  .weight = m.weight.vector,
                                  .bias = m.weight.bias,
                                  .kind = layer ? NormKind::layer : NormKind::rms,
                                  .eps = layer ? 1e-5f : 1e-24f / static_cast<float>(m.width)});
    }
    x = out;
  }
  return x;
}

void Builder::dense(const Module& m, View x, View out) {
  Linear op = make_linear(x, out, {m.weight});
  op.activation = m.activation;
  if (m.residual) op.residual = x;
  if (m.shortcut.present()) linear(x, op.residual = slot(program_.slots[static_cast<std::size_t>(x.slot)].rows, m.width), {m.shortcut});
  program_.ops.push_back(std::move(op));
}

// classifier(norm(activation(dense(row)))) of one row of the text, or of every row and then pooled.
View Builder::classify() {
  const ClassifierHead& head = c_.classifier;
  const Rows rows = head.late ? Rows::tokens : Rows::segments;
  View row = head.late ? x_ : pool(x_, {head.pooling});
  if (const Parameter& dense = d_.global(Role::head_dense); dense.present()) {
    const View out = slot(rows, c_.hidden_size);
    linear(row, out, {dense}, head.activation);
    if (head.norm) norm(d_.global(Role::head_norm), out, out);
    row = out;
  }
  const View logits = slot(rows, d_.labels);
  linear(row, logits, {d_.global(Role::classifier)});
  return head.late ? pool(logits, {head.pooling}) : logits;
}

// A decoder's logits of a few ids, at the last token.
View Builder::score() {
  const View out = slot(Rows::segments, d_.labels);
  Linear op = make_linear(pool(x_, {PoolKind::last}), out, {d_.score});
  op.precise = true;
  op.scale = c_.logit_scale;
  op.softcap = c_.logit_softcap;
  program_.ops.push_back(std::move(op));
  return out;
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
    const std::int32_t reported = top_reported(d_.vocab_size);
    const View out = slot(Rows::tokens, static_cast<std::int32_t>(top_width(kTopLogits, reported)));
    program_.ops.push_back(Top{.logits = logits, .out = out, .k = kTopLogits, .reported = reported});
    program_.output = out.slot;
  }
  return std::move(program_);
}

}  // namespace pumice::model
