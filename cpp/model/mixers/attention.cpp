#include "model/mixers/attention.h"

#include <algorithm>

#include "model/mixers/places.h"

namespace pumice::model {

AttentionMixer::AttentionMixer(Writer& writer, SharedKv& kv) : w_(writer), kv_(kv) {
  std::int32_t q = 0, qkv = 0;
  for (std::size_t i = 0; i < w_.c.all_layers(); ++i) {
    const Attention* a = w_.c.layer(i).if_attention();
    if (!a) continue;
    q = std::max(q, a->q_width());
    qkv = std::max(qkv, a->q_width() + a->gate_width() + 2 * a->kv_width() + places_width(*a));
  }
  if (q == 0) return;
  qkv_ = w_.slot(Rows::tokens, qkv);
  attended_ = w_.slot(Rows::tokens, q);
}

AttentionMixer::Heads AttentionMixer::heads_of(const Attention& a) const {
  const View q = Writer::part(qkv_, 0, a.q_width()), gate = a.gate ? Writer::part(qkv_, q.width, a.gate_width()) : View{};
  const View k = Writer::part(qkv_, q.width + a.gate_width(), a.kv_width());
  return {q, gate, k, Writer::part(qkv_, k.col + k.width, k.width)};
}

BranchEnd AttentionMixer::write(std::size_t layer, const Attention& a, const View& in) {
  const Heads heads = heads_of(a);
  const auto& [q, gate, k, v] = heads;
  const View out = Writer::part(attended_, 0, q.width);
  project(layer, a, in, heads);
  if (a.values && a.values->normalised && !a.kv_from) w_.norm({}, a.makes_values() ? heads.v : k, heads.v, {}, a.head_dim);
  if (a.qk_norm == QkNorm::head || a.qk_norm == QkNorm::whole) norm_heads(layer, a, heads);
  turn(a, heads);
  if (a.has_norm_after_rope()) norm_heads(layer, a, heads);
  attend(layer, a, heads, out);
  if (!a.kv_from) kv_.keep(layer, k);
  if (a.gate) w_.add(Multiply{.a = out, .b = gate, .out = out, .activation = a.gate->activation});
  return {out, Role::attn_out, a.multipliers ? a.multipliers->out : 1};
}

void AttentionMixer::store(std::size_t layer, const Attention& a, const View& in) {
  const Heads heads = heads_of(a);
  w_.linear(in, Writer::part(qkv_, heads.k.col, 2 * heads.k.width), {w_.d.at(layer, Role::k), w_.d.at(layer, Role::v)},
            {.scale = a.multipliers ? a.multipliers->in : 1});
  if (a.qk_norm == QkNorm::head || a.qk_norm == QkNorm::whole) norm_keys(layer, a, heads.k);
  turn_keys(a, heads.k);
  if (a.has_norm_after_rope()) norm_keys(layer, a, heads.k);
  kv_.store(layer, a.cache_shape(), heads.k, heads.v);
}

// Computes q, the gate, k and v in one matrix product. Leaves out the gate, k or v if the layer has no matrix for it.
void AttentionMixer::project(std::size_t layer, const Attention& a, const View& in, const Heads& heads) {
  std::vector<Parameter> parts = {w_.d.at(layer, Role::q)};
  std::int32_t width = heads.q.width + a.gate_width();
  if (a.gate) parts.push_back(w_.d.at(layer, Role::attn_gate));
  if (!a.kv_from) {
    parts.push_back(w_.d.at(layer, Role::k));
    width += heads.k.width;
  }
  if (a.makes_values()) {
    parts.push_back(w_.d.at(layer, Role::v));
    width += heads.v.width;
  }
  w_.linear(in, Writer::part(qkv_, 0, width), parts, {.scale = a.multipliers ? a.multipliers->in : 1});
}

void AttentionMixer::norm_heads(std::size_t layer, const Attention& a, const Heads& heads) {
  w_.norm(w_.d.at(layer, Role::q_norm), heads.q, heads.q, {}, a.qk_norm == QkNorm::whole ? 0 : a.head_dim);
  if (!a.kv_from) norm_keys(layer, a, heads.k);
}

void AttentionMixer::norm_keys(std::size_t layer, const Attention& a, const View& k) {
  w_.norm(w_.d.at(layer, Role::k_norm), k, k, {}, a.qk_norm == QkNorm::whole ? 0 : a.head_dim);
}

void AttentionMixer::turn(const Attention& a, const Heads& heads) {
  const RopeTable table = a.rope < 0 ? RopeTable{} : w_.c.ropes[static_cast<std::size_t>(a.rope)];
  if (a.rope >= 0 || a.temperature) {
    Rope op{.x = heads.q, .head_dim = a.head_dim, .table = table};
    if (a.temperature) {
      op.temperature = a.temperature->growth;
      op.temperature_length = a.temperature->length;
      op.temperature_offset = a.temperature->offset;
    }
    w_.add(std::move(op));
  }
  if (!a.kv_from) turn_keys(a, heads.k);
}

void AttentionMixer::turn_keys(const Attention& a, const View& k) {
  if (a.rope >= 0) w_.add(Rope{.x = k, .head_dim = a.head_dim, .table = w_.c.ropes[static_cast<std::size_t>(a.rope)]});
}

void AttentionMixer::attend(std::size_t layer, const Attention& a, const Heads& heads, const View& out) {
  Attend op{.q = heads.q,
            .out = out,
            .key_dim = a.head_dim,
            .value_dim = a.head_dim,
            .kv_heads = a.kv_heads,
            .causal = a.causal,
            .window = a.window,
            .chunk = a.chunks ? a.chunks->length : 0,
            .scale = a.scale,
            .softcap = a.softcap};
  if (a.sinks) op.sinks = w_.d.at(layer, Role::sinks).vector;
  if (a.position_bias == PositionBias::alibi) op.slopes = w_.d.alibi_slopes;
  if (a.position_bias == PositionBias::buckets) {
    op.bias = w_.d.position_bias;
    op.reach = w_.d.position_reach;
  }
  if (a.places) write_places(w_, layer, a, heads.k, Writer::part(qkv_, heads.v.col + heads.v.width, places_width(a)), op);
  kv_.attend(layer, a, heads.k, heads.v, op);
  w_.add(op);
}

}  // namespace pumice::model
