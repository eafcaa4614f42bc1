#include "model/programs.h"

#include <algorithm>

#include "core/error.h"
#include "core/program_check.h"
#include "model/builder.h"

namespace pumice::model {
namespace {

class Body : public Builder {
 public:
  using Builder::Builder;

  // `from_ids`: begins with the embedding, where the first layer is the model's first.
  Program build(std::size_t first, std::size_t last, Output output, bool from_ids = true) {
    cached_ = c_.keeps_past() && (output == Output::hidden || output == Output::selected);
    last_ = last;
    const bool embeds = first == 0 && from_ids;
    make_slots(embeds ? c_.hidden_size : row_width(first));
    if (embeds)
      embed();
    else
      take_row(first);
    for (std::size_t layer = first; layer < last; ++layer) block(layer);
    finish_body(last == c_.layers.size() ? output : Output::hidden, from_ids);
    return std::move(program_);
  }

 private:
  // Slots are as wide as the widest layer needs; layers use their first columns.
  void make_slots(std::int32_t row) {
    std::int32_t q = 0, qkv = 0, ffn = 0;
    for (const Layer& layer : c_.layers) {
      q = std::max(q, layer.attention.q_width());
      qkv = std::max(qkv, layer.attention.q_width() + 2 * layer.attention.kv_width() + places_width(layer.attention));
      ffn = std::max(ffn, layer.feed_forward.width);
    }
    x_ = part(slot(Rows::tokens, row), 0, c_.hidden_size);
    h_ = slot(Rows::tokens, c_.hidden_size);
    qkv_ = slot(Rows::tokens, qkv);
    attended_ = slot(Rows::tokens, q);
    ffn_ = slot(Rows::tokens, ffn);
    std::int64_t rank = 0;
    for (const Parameters& layer : d_.layers) {
      for (const Parameter& p : layer)
        if (p.lora_a != MatrixId::none) rank = std::max(rank, d_.matrix(p.lora_a).rows);
    }
    if (rank > 0) low_ = slot(Rows::tokens, static_cast<std::int32_t>(rank));
  }

  std::int32_t places_width(const Attention& a) const {
    if (a.position_bias != PositionBias::places) return 0;
    return (c_.places.by_query + c_.places.by_key) * a.heads * 2 * c_.places.span;
  }

  // ---------------------------------------------------------------- a layer
  void block(std::size_t layer) {
    const Layer& l = c_.layers[layer];
    View ffn_in = x_;
    if (l.parallel) ffn_in = parallel_input(layer);
    attention(layer);
    if (!l.parallel && l.feed_forward.norms.before) norm(d_.at(layer, Role::ffn_norm), x_, ffn_in = normed(l.feed_forward.norms));
    feed_forward(layer, ffn_in);
    if (c_.layer_inputs.width > 0) add_input(layer);
    if (l.scaled) scale(x_, x_, d_.number(d_.at(layer, Role::layer_scale)));
  }

  View normed(const Norms& norms) const { return norms.replace ? x_ : h_; }

  // What a feed-forward network beside attention reads: made before attention changes x.
  View parallel_input(std::size_t layer) {
    if (!c_.layers[layer].feed_forward.norms.before) return h_;  // attention's own input
    if (!beside_) beside_ = slot(Rows::tokens, c_.hidden_size);
    norm(d_.at(layer, Role::ffn_norm), x_, beside_);
    return beside_;
  }

  void attention(std::size_t layer) {
    const Attention& a = c_.layers[layer].attention;
    const View q = part(qkv_, 0, a.q_width()), k = part(qkv_, a.q_width(), a.kv_width()), v = part(qkv_, k.col + k.width, a.kv_width());
    const View out = part(attended_, 0, a.q_width());
    View in = x_;
    if (a.norms.before) norm(d_.at(layer, Role::attn_norm), x_, in = normed(a.norms));
    project(layer, in, q, k, v);
    if (a.value_norm && a.kv_from < 0) norm({}, a.value_is_key ? k : v, v, {}, a.head_dim);
    if (!a.norm_after_rope) norm_heads(layer, q, k);
    turn(a, q, k);
    if (a.norm_after_rope) norm_heads(layer, q, k);
    attend(layer, q, k, v, out);
    keep(layer, k);
    close_branch(out, layer, Role::attn_out, a.norms, Role::attn_branch_norm, Role::attn_residual_norm);
  }

  // Queries, keys and values as far as the layer has them, side by side: one product.
  void project(std::size_t layer, const View& in, const View& q, const View& k, const View& v) {
    const Attention& a = c_.layers[layer].attention;
    const Parameter &of_q = d_.at(layer, Role::q), &of_k = d_.at(layer, Role::k);
    if (a.kv_from >= 0) {
      linear(in, q, {of_q});
    } else if (a.value_is_key) {
      linear(in, part(q, 0, k.col + k.width), {of_q, of_k});
    } else {
      linear(in, part(q, 0, v.col + v.width), {of_q, of_k, d_.at(layer, Role::v)});
      add_low_rank(in, v, d_.at(layer, Role::v));
    }
    add_low_rank(in, q, of_q);
    if (a.kv_from < 0) add_low_rank(in, k, of_k);
  }

  void norm_heads(std::size_t layer, const View& q, const View& k) {
    const Attention& a = c_.layers[layer].attention;
    if (a.qk_norm == QkNorm::none) return;
    const std::int32_t group = a.qk_norm == QkNorm::head ? a.head_dim : 0;
    norm(d_.at(layer, Role::q_norm), q, q, {}, group);
    if (a.kv_from < 0) norm(d_.at(layer, Role::k_norm), k, k, {}, group);
  }

  void turn(const Attention& a, const View& q, const View& k) {
    const RopeTable table = a.rope < 0 ? RopeTable{} : c_.ropes[static_cast<std::size_t>(a.rope)];
    if (a.rope >= 0 || a.temperature_length > 0) {
      program_.ops.push_back(
          Rope{.x = q, .head_dim = a.head_dim, .table = table, .temperature = a.temperature, .temperature_length = a.temperature_length});
    }
    if (a.rope >= 0 && a.kv_from < 0) program_.ops.push_back(Rope{.x = k, .head_dim = a.head_dim, .table = table});
  }

  void attend(std::size_t layer, const View& q, const View& k, const View& v, const View& out) {
    const Attention& a = c_.layers[layer].attention;
    Attend op{.q = q,
              .out = out,
              .key_dim = a.head_dim,
              .value_dim = a.head_dim,
              .kv_heads = a.kv_heads,
              .causal = a.causal,
              .window = a.window,
              .scale = a.scale,
              .softcap = a.softcap};
    if (a.position_bias == PositionBias::alibi) op.slopes = d_.alibi_slopes;
    if (a.position_bias == PositionBias::buckets) {
      op.bias = d_.position_bias;
      op.reach = d_.position_reach;
    }
    if (a.position_bias == PositionBias::places) attend_places(layer, op);
    if (cached_) {
      if (a.kv_from < 0) store(layer, k, v);
      op.cache = caches_.at(a.kv_from < 0 ? layer : static_cast<std::size_t>(a.kv_from));
    } else if (a.kv_from < 0) {
      op.k = k;
      op.v = v;
    } else {
      const View kept = kept_.at(static_cast<std::size_t>(a.kv_from));
      op.k = part(kept, kept.col, a.kv_width());
      op.v = part(kept, kept.col + a.kv_width(), a.kv_width());
    }
    program_.ops.push_back(op);
  }

  // Behind q, k and v in their slot: what each query says to the key of each place, and each key to its query, head by head.
  void attend_places(std::size_t layer, Attend& op) {
    const std::int32_t places = 2 * c_.places.span, dim = op.key_dim, kv = op.kv_heads * dim, heads = op.q.width / dim;
    View next = part(qkv_, op.q.width + 2 * kv, heads * places);
    const auto add = [&](View in, const std::vector<MatrixId>& matrices, View& out) {
      out = next;
      next.col += next.width;
      for (std::int32_t head = 0; head < heads; ++head) {
        linear(part(in, in.col + head * dim, dim), part(out, out.col + head * places, places),
               {Parameter{.matrix = matrices[static_cast<std::size_t>(head)]}});
      }
    };
    if (c_.places.by_query) add(op.q, d_.of_places[layer].keys, op.by_query);
    if (c_.places.by_key) add(part(qkv_, op.q.width, kv), d_.of_places[layer].queries, op.by_key);
    op.places = d_.places;
    op.reach = d_.place_reach;
  }

  void add_input(std::size_t layer) {
    const std::int32_t width = c_.layer_inputs.width;
    if (!gate_) gate_ = slot(Rows::tokens, width);
    const View input = input_of(layer);
    linear(x_, gate_, {d_.at(layer, Role::input_gate)});
    program_.ops.push_back(Multiply{
        .a = input, .b = gate_, .out = input, .activation = c_.layers[layer].feed_forward.activation, .scale = c_.layer_inputs.scale});
    linear(input, h_, {d_.at(layer, Role::input_out)});
    norm(d_.at(layer, Role::input_norm), h_, x_, x_);
  }

  void feed_forward(std::size_t layer, const View& in) {
    const FeedForward& f = c_.layers[layer].feed_forward;
    const View wide = part(ffn_, 0, f.width);
    const Parameter &gate = d_.at(layer, Role::gate), &up = d_.at(layer, Role::up);
    if (gate.lora_a != MatrixId::none || (f.gated && up.lora_a != MatrixId::none)) {
      if (!gated_) gated_ = slot(Rows::tokens, ffn_.width);
      const View opened = part(gated_, 0, f.width);
      linear(in, opened, {gate});
      add_low_rank(in, opened, gate);
      linear(in, wide, {up});
      add_low_rank(in, wide, up);
      program_.ops.push_back(Multiply{.a = wide, .b = opened, .out = wide, .activation = f.activation});
    } else if (f.gated) {
      program_.ops.push_back(GatedLinear{.in = in,
                                         .out = wide,
                                         .gate = gate.matrix,
                                         .up = up.matrix,
                                         .gate_bias = gate.bias,
                                         .up_bias = up.bias,
                                         .activation = f.activation});
    } else {
      Linear op = make_linear(in, wide, {up});
      op.activation = f.activation;
      op.alpha_p = f.alpha_p;
      op.alpha_n = f.alpha_n;
      program_.ops.push_back(std::move(op));
    }
    close_branch(wide, layer, Role::down, f.norms, Role::ffn_branch_norm, Role::ffn_residual_norm);
  }

  // x += c W in; with a norm on the branch, x += norm(W in); with a norm on the sum, x = norm(x + c W in).
  // With the sum's norm twice, x = norm'(x + norm(x + c W in)).
  void close_branch(const View& in, std::size_t layer, Role out, const Norms& norms, Role branch_norm, Role sum_norm) {
    if (norms.branch) {
      linear(in, h_, {d_.at(layer, out)});
      add_low_rank(in, h_, d_.at(layer, out));
      norm(d_.at(layer, branch_norm), h_, x_, x_);
      return;
    }
    const View sum = norms.twice ? h_ : x_;
    Linear op = make_linear(in, sum, {d_.at(layer, out)});
    op.residual = x_;
    op.scale = c_.layers[layer].branch_scale;
    program_.ops.push_back(std::move(op));
    add_low_rank(in, sum, d_.at(layer, out), c_.layers[layer].branch_scale);
    if (norms.sum) norm(d_.at(layer, sum_norm), sum, x_, norms.twice ? x_ : View{});
    if (norms.twice) norm(d_.at(layer, Role::attn_second_norm), x_, x_);
  }

  View qkv_, attended_, ffn_, beside_, gate_, gated_;
};

}  // namespace

Program body_program(const Description& d, std::size_t first, std::size_t last, Output output) {
  return Body(d, str("layers ", first, " to ", last)).build(first, last, output);
}

Program layer_program(const Description& d, std::size_t layer) {
  return Body(d, str("layer ", layer)).build(layer, layer + 1, Output::tokens, false);
}

Program query_program(const Description& d, std::size_t layer, Attend& attend) {
  Program program = layer_program(d, layer);
  program.name = str("queries and keys of layer ", layer);
  const auto at = std::ranges::find_if(program.ops, [](const Op& op) { return std::holds_alternative<Attend>(op); });
  if (at == program.ops.end()) fail(ErrorKind::unsupported_model, "layer ", layer, " has no attention of queries and keys");
  attend = std::get<Attend>(*at);
  program.output = attend.q.slot;
  program.ops.erase(at, program.ops.end());
  return program;
}

Program head_program(const Description& d) { return Builder(d, "head").head(Builder::Give::logits); }
Program log_prob_program(const Description& d) { return Builder(d, "log-probabilities").head(Builder::Give::log_probs); }
Program top_program(const Description& d) { return Builder(d, "largest logits").head(Builder::Give::top); }

std::vector<bool> used_matrices(const Program& program, const Weights& weights) { return check_program(program, shapes_of(weights)).used; }

}  // namespace pumice::model
