#include "model/mixers/recurrent.h"

#include <algorithm>
#include <vector>

namespace pumice::model {
namespace {

std::int32_t parts_width(const Recurrent& r) { return r.conv_width() + r.value_width() + (r.rule == ScanRule::delta ? 2 : 1) * r.heads; }

}  // namespace

RecurrentMixer::RecurrentMixer(Writer& writer, States& states) : w_(writer), states_(states) {
  std::int32_t parts = 0, mixed = 0, values = 0;
  for (const Layer& layer : w_.c.layers) {
    const Recurrent* r = layer.if_recurrent();
    if (!r) continue;
    parts = std::max(parts, parts_width(*r));
    mixed = std::max(mixed, r->conv_width());
    values = std::max(values, r->value_width());
  }
  if (parts == 0) return;
  parts_ = w_.slot(Rows::tokens, parts);
  mixed_ = w_.slot(Rows::tokens, mixed);
  scanned_ = w_.slot(Rows::tokens, values);
}

BranchEnd RecurrentMixer::write(std::size_t layer, const Recurrent& r, const View& in) {
  const View qkv = Writer::part(parts_, 0, r.conv_width()), gate = Writer::part(parts_, qkv.width, r.value_width());
  const View step = Writer::part(parts_, gate.col + gate.width, r.heads);
  const View beta = r.rule == ScanRule::delta ? Writer::part(parts_, step.col + step.width, r.heads) : View{};
  const View mixed = Writer::part(mixed_, 0, qkv.width), out = Writer::part(scanned_, 0, gate.width);
  project(layer, r, in);
  convolve(layer, r, qkv, mixed);
  scan(layer, r, mixed, {qkv, gate, step, beta}, out);
  close(layer, r, gate, out);
  return {out, Role::scan_out, r.multipliers ? r.multipliers->out : 1};
}

// Computes all projections of `in`. Projections that are neighbours in the output and have the same factor are one operation.
void RecurrentMixer::project(std::size_t layer, const Recurrent& r, const View& in) {
  const float all = r.multipliers ? r.multipliers->in : 1;
  const ScanFactors by = r.factors ? *r.factors : ScanFactors{};
  struct Piece {
    Role role;
    std::int32_t width;
    float factor;
  };
  std::vector<Piece> pieces = {{Role::scan_q, r.key_width(), by.q},
                               {Role::scan_k, r.key_width(), by.k},
                               {Role::scan_v, r.value_width(), by.v},
                               {Role::scan_gate, r.value_width(), by.gate},
                               {Role::scan_step, r.heads, by.step}};
  if (r.rule == ScanRule::delta) pieces.push_back({Role::scan_beta, r.heads, 1});
  std::int32_t col = 0;
  for (std::size_t first = 0, end = 0; first < pieces.size(); first = end) {
    std::vector<Parameter> matrices;
    std::int32_t width = 0;
    for (end = first; end < pieces.size() && pieces[end].factor == pieces[first].factor; ++end) {
      matrices.push_back(w_.d.at(layer, pieces[end].role));
      width += pieces[end].width;
    }
    w_.linear(in, Writer::part(parts_, col, width), matrices, {.scale = all * pieces[first].factor});
    col += width;
  }
}

void RecurrentMixer::convolve(std::size_t layer, const Recurrent& r, const View& in, const View& out) {
  const Parameter& taps = w_.d.at(layer, Role::scan_taps);
  w_.add(Conv{.in = in,
              .out = out,
              .taps = taps.vector,
              .bias = taps.bias,
              .width = r.taps,
              .activation = r.activation,
              .state = states_.add(r.conv_state())});
  if (r.rule != ScanRule::delta) return;
  // Each head x of q and k becomes x / sqrt(sum of squares of x + 1e-6) (Yang et al. 2024). The weights (add_key_norms()) also divide q by
  // sqrt(key_dim).
  const View keys = Writer::part(out, out.col, 2 * r.key_width());
  w_.add(Norm{.in = keys,
              .out = keys,
              .add = {},
              .weight = w_.d.key_norms[layer],
              .group = r.key_dim,
              .eps = 1e-6f / static_cast<float>(r.key_dim),
              .per_column = true});
}

void RecurrentMixer::scan(std::size_t layer, const Recurrent& r, const View& qkv, const Parts& parts, const View& out) {
  const View q = Writer::part(qkv, qkv.col, r.key_width()), k = Writer::part(qkv, q.col + q.width, q.width);
  const DeltaRule delta = r.delta.value_or(DeltaRule{});
  w_.add(Scan{.q = q,
              .k = k,
              .v = Writer::part(qkv, k.col + k.width, r.value_width()),
              .step = parts.step,
              .beta = parts.beta,
              .out = out,
              .step_bias = w_.d.at(layer, Role::scan_step_bias).vector,
              .rate = w_.d.at(layer, Role::scan_rate).vector,
              .skip = w_.d.at(layer, Role::scan_skip).vector,
              .key_heads = r.key_heads,
              .key_dim = r.key_dim,
              .value_dim = r.value_dim,
              .rule = r.rule,
              .tiled = delta.tiled,
              .strength = delta.strength,
              .state = states_.add(r.scan_state())});
}

// Multiplies `out` by silu(gate). Also normalises `out`, before the product if ScanNorm::before_gate is true and otherwise after it.
void RecurrentMixer::close(std::size_t layer, const Recurrent& r, const View& gate, const View& out) {
  const auto norm = [&] {
    w_.add(Norm{.in = out,
                .out = out,
                .add = {},
                .weight = w_.d.at(layer, Role::scan_norm).vector,
                .group = r.norm->group,
                .eps = r.norm->eps,
                .per_column = r.norm->per_column});
  };
  if (r.norm && r.norm->before_gate) norm();
  w_.add(Multiply{.a = out, .b = gate, .out = out, .activation = Activation::silu});
  if (r.norm && !r.norm->before_gate) norm();
}

}  // namespace pumice::model
