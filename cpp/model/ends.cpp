#include "model/ends.h"

#include <algorithm>
#include <utility>

namespace pumice::model {
namespace {

// Pools `in` with each of the given kinds of pooling, and concatenates the results.
View pool(Writer& w, View in, const std::vector<PoolKind>& kinds) {
  const View out = w.slot(Rows::segments, in.width * static_cast<std::int32_t>(kinds.size()));
  for (std::int32_t col = 0; const PoolKind kind : kinds) {
    w.add(Pool{.in = in, .out = Writer::part(out, col, in.width), .kind = kind});
    col += in.width;
  }
  return out;
}

// Multiplies the vector of each kind of pooling by the model's projection. Returns `pooled` if the model has no projection.
View projected(Writer& w, View pooled) {
  const Parameter& projection = w.d.global(Role::projection);
  if (!projection.present()) return pooled;
  const auto kinds = static_cast<std::int32_t>(w.d.pooling.size()), width = static_cast<std::int32_t>(w.d.matrix(projection.matrix).rows);
  const View out = w.slot(Rows::segments, kinds * width);
  for (std::int32_t i = 0; i < kinds; ++i)
    w.linear(Writer::part(pooled, i * w.c.hidden_size, w.c.hidden_size), Writer::part(out, i * width, width), {projection});
  return out;
}

void write_dense(Writer& w, const Module& m, View x, View out) {
  Linear op{.activation = m.activation};
  if (m.residual) op.residual = x;
  if (m.shortcut.present())
    w.linear(x, op.residual = w.slot(w.program.slots[static_cast<std::size_t>(x.slot)].rows, m.width), {m.shortcut});
  w.linear(x, out, {m.weight}, std::move(op));
}

// Computes norm(activation(dense(row))), which is the input of classifiers and of some heads. Returns `row` if the model has no dense
// layer.
View transformed(Writer& w, View row) {
  const Parameter& dense = w.d.global(Role::head_dense);
  if (!dense.present()) return row;
  const View out = w.slot(w.program.slots[static_cast<std::size_t>(row.slot)].rows, w.c.hidden_size);
  w.linear(row, out, {dense}, {.activation = w.c.classifier.activation});
  if (w.c.classifier.norm) w.norm(w.d.global(Role::head_norm), out, out);
  return out;
}

// Computes classifier(norm(activation(dense(row)))) for the pooled row of each text. With Classifies::tokens
// and Classifies::late, computes it for every token's row instead. With `late`, the logits are then pooled.
View classify(Writer& w, const View& x) {
  const ClassifierHead& head = w.c.classifier;
  const bool each = head.what != Classifies::texts;
  const View row = transformed(w, each ? x : pool(w, x, {head.pooling}));
  const View logits = w.slot(each ? Rows::tokens : Rows::segments, w.d.labels);
  w.linear(row, logits, {w.d.global(Role::classifier)});
  return head.what == Classifies::late ? pool(w, logits, {head.pooling}) : logits;
}

// Computes the scores of a decoder that is used as a reranker: its logits at the last token, only for the label tokens.
View score(Writer& w, const View& x) {
  const View out = w.slot(Rows::segments, w.d.labels);
  const View last = pool(w, x, {PoolKind::last});
  w.linear(w.c.head_transform ? transformed(w, last) : last, out, {w.d.score},
           {.precise = true, .scale = w.c.logit_scale, .softcap = w.c.logit_softcap});
  return out;
}

}  // namespace

void write_embedding(Writer& w, const View& x) {
  const Config& c = w.c;
  const View rows = c.embedding_map ? w.slot(Rows::tokens, c.embedding_map->width) : x;
  w.add(Embed{.out = rows,
              .tokens = w.d.global(Role::token_embedding).matrix,
              .positions = w.d.global(Role::position_embedding).matrix,
              .types = w.d.global(Role::type_embedding).matrix,
              .scale = c.embedding_scale});
  const bool norm_after = c.embedding_map && c.embedding_map->norm_after;
  if (c.embedding_norm && !norm_after) w.norm(w.d.global(Role::embedding_norm), rows, rows);
  if (c.embedding_map) w.linear(rows, x, {w.d.global(Role::embedding_map)});
  if (c.embedding_norm && norm_after) w.norm(w.d.global(Role::embedding_norm), x, x);
}

void write_final_norm(Writer& w, const View& x, Output output) {
  const bool looked_at = output != Output::hidden && output != Output::selected;
  if (looked_at && w.c.final_norm) w.norm(w.d.global(Role::final_norm), x, x);
}

View write_modules(Writer& w, View x, bool on_tokens) {
  for (const Module& m : w.d.modules) {
    if (m.on_tokens != on_tokens) continue;
    const View out = w.slot(on_tokens ? Rows::tokens : Rows::segments, m.width);
    if (m.kind == ModuleKind::dense) {
      write_dense(w, m, x, out);
    } else {
      // layer_norm has the eps of torch.nn.LayerNorm, 1e-5. normalize divides a row by its length, and its eps makes this divisor at least
      // about 1e-12, as in torch's normalize().
      const bool layer = m.kind == ModuleKind::layer_norm;
      w.add(Norm{.in = x,
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

View write_selected(Writer& w, const View& x) {
  const View out = w.slot(Rows::selected, w.c.hidden_size);
  w.add(Select{.in = x, .out = out});
  return out;
}

View write_pooled(Writer& w, const View& x) {
  return write_modules(w, projected(w, pool(w, write_modules(w, x, true), w.d.pooling)), false);
}

View write_classes(Writer& w, const View& x) { return w.d.score.present() ? score(w, x) : classify(w, x); }

View write_sparse(Writer& w, const View& x) {
  const MlmHead& head = *w.c.mlm_head;
  View row = x;
  if (head.dense) {
    row = w.slot(Rows::tokens, head.width);
    w.linear(x, row, {w.d.global(Role::mlm_dense)}, {.activation = head.activation});
    w.norm(w.d.global(Role::mlm_norm), row, row);
  }
  const View out = w.slot(Rows::segments, w.d.vocab_size);
  const View logits = w.slot(Rows::tokens, static_cast<std::int32_t>(std::min<std::int64_t>(kMlmStrip, w.d.vocab_size)));
  for (std::int32_t col = 0; const Parameter& strip : w.d.mlm_strips) {
    const View part = Writer::part(logits, 0, static_cast<std::int32_t>(w.d.matrix(strip.matrix).rows));
    w.linear(row, part, {strip}, {.precise = true});
    w.add(Pool{.in = part, .out = Writer::part(out, col, part.width), .kind = PoolKind::max});
    col += part.width;
  }
  return out;
}

Program write_head(const Description& d, std::string name, Give give, const Parameter& norm) {
  Writer w(d, std::move(name));
  const View x = w.slot(Rows::tokens, w.c.hidden_size), h = w.slot(Rows::tokens, w.c.hidden_size);
  w.program.input = x.slot;
  w.norm(norm, x, h);
  const View logits = w.slot(Rows::tokens, d.vocab_size);
  w.linear(w.c.head_transform ? transformed(w, h) : h, logits, {d.global(Role::head)},
           {.precise = true, .scale = w.c.logit_scale, .softcap = w.c.logit_softcap});
  w.program.output = logits.slot;
  if (give == Give::log_probs) {
    const View out = w.slot(Rows::tokens, 1);
    w.add(LogProb{.logits = logits, .out = out});
    w.program.output = out.slot;
  } else if (give == Give::top) {
    const std::int32_t reported = top_reported(d.vocab_size);
    const View out = w.slot(Rows::tokens, static_cast<std::int32_t>(top_width(kTopLogits, reported)));
    w.add(Top{.logits = logits, .out = out, .k = kTopLogits, .reported = reported});
    w.program.output = out.slot;
  }
  return std::move(w.program);
}

}  // namespace pumice::model
