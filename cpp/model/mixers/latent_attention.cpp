#include "model/mixers/latent_attention.h"

#include <algorithm>

namespace pumice::model {
namespace {

// eps of the norms inside latent attention. It does not depend on the eps of the model's other norms, because transformers creates these
// norms with the default of its class RMSNorm.
constexpr float kEps = 1e-6f;

}  // namespace

LatentAttentionMixer::LatentAttentionMixer(Writer& writer, SharedKv& kv) : w_(writer), kv_(kv) {
  std::int32_t low = 0, plain = 0, q = 0, k = 0, attended = 0, out = 0;
  for (const Layer& layer : w_.c.layers) {
    const LatentAttention* t = layer.if_latent_attention();
    if (!t) continue;
    low = std::max(low, t->q_rank);
    plain = std::max(plain, t->heads * t->plain_dim);
    q = std::max(q, t->heads * t->key_dim());
    k = std::max(k, t->key_dim());
    attended = std::max(attended, t->heads * t->latent_dim);
    out = std::max(out, t->heads * t->value_dim);
  }
  if (q == 0) return;
  if (low > 0) q_low_ = w_.slot(Rows::tokens, low);
  q_plain_ = w_.slot(Rows::tokens, plain);
  q_ = w_.slot(Rows::tokens, q);
  k_ = w_.slot(Rows::tokens, k);
  attended_ = w_.slot(Rows::tokens, attended);
  out_ = w_.slot(Rows::tokens, out);
}

BranchEnd LatentAttentionMixer::write(std::size_t layer, const LatentAttention& t, const View& in) {
  const View q = queries(layer, t, in), k = keys(layer, t, in), attended = Writer::part(attended_, 0, t.heads * t.latent_dim);
  Attend op{.q = q, .out = attended, .key_dim = t.key_dim(), .value_dim = t.latent_dim, .kv_heads = 1, .causal = true, .scale = t.scale};
  kv_.attend_own(layer, t.cache_shape(), k, Writer::part(k, k.col + t.rope_dim, t.latent_dim), op);
  w_.add(op);
  const View out = Writer::part(out_, 0, t.heads * t.value_dim);
  w_.add(HeadLinear{
      .in = attended, .out = out, .in_step = t.latent_dim, .out_step = t.value_dim, .weight = w_.d.at(layer, Role::latent_value).matrix});
  return {out, Role::latent_out};
}

// Returns the view of the queries. The columns of each head are first those that rope rotates, and then the head's plain columns times its
// matrix for keys.
View LatentAttentionMixer::queries(std::size_t layer, const LatentAttention& t, const View& in) {
  const std::int32_t step = t.key_dim(), before_last = (t.heads - 1) * step;
  View from = in;
  if (t.q_rank > 0) {
    from = Writer::part(q_low_, 0, t.q_rank);
    w_.linear(in, from, {w_.d.at(layer, Role::latent_q_down)});
    w_.add(Norm{.in = from, .out = from, .add = {}, .weight = w_.d.at(layer, Role::latent_q_norm).vector, .eps = kEps});
  }
  const View plain = Writer::part(q_plain_, 0, t.heads * t.plain_dim), q = Writer::part(q_, 0, t.heads * step);
  w_.linear(from, plain, {w_.d.at(layer, Role::latent_q_plain)});
  w_.add(HeadLinear{.in = from,
                    .out = Writer::part(q, 0, before_last + t.rope_dim),
                    .in_step = 0,
                    .out_step = step,
                    .weight = w_.d.at(layer, Role::latent_q_rope).matrix});
  w_.add(HeadLinear{.in = plain,
                    .out = Writer::part(q, t.rope_dim, before_last + t.latent_dim),
                    .in_step = t.plain_dim,
                    .out_step = step,
                    .weight = w_.d.at(layer, Role::latent_key).matrix});
  if (t.rope >= 0) w_.add(Rope{.x = q, .head_dim = step, .table = w_.c.ropes[static_cast<std::size_t>(t.rope)]});
  return q;
}

View LatentAttentionMixer::keys(std::size_t layer, const LatentAttention& t, const View& in) {
  const View k = Writer::part(k_, 0, t.key_dim()), c = Writer::part(k, t.rope_dim, t.latent_dim);
  w_.linear(in, k, {w_.d.at(layer, Role::latent_k_rope), w_.d.at(layer, Role::latent_down)});
  w_.add(Norm{.in = c, .out = c, .add = {}, .weight = w_.d.at(layer, Role::latent_norm).vector, .eps = kEps});
  if (t.rope >= 0) w_.add(Rope{.x = k, .head_dim = k.width, .table = w_.c.ropes[static_cast<std::size_t>(t.rope)]});
  return k;
}

}  // namespace pumice::model
