#include "model/programs.h"

#include <algorithm>

#include "core/error.h"
#include "core/program_check.h"

namespace pumice::model {
namespace {

class Builder {
 public:
  Builder(const Description& d, std::string name) : d_(d), c_(d.config) { program_.name = std::move(name); }

  // `from_ids`: begins with the embedding, where the first layer is the model's first.
  Program body(std::size_t first, std::size_t last, Output output, bool from_ids = true) {
    cached_ = c_.keeps_past() && (output == Output::hidden || output == Output::selected);
    make_slots();
    if (first == 0 && from_ids) embed(); else program_.input = x_.slot;
    for (std::size_t layer = first; layer < last; ++layer) block(layer);
    finish_body(last == c_.layers.size() ? output : Output::hidden, from_ids);
    return std::move(program_);
  }

  enum class Give { logits, log_probs, top };
  Program head(Give give) {
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

 private:
  View slot(Rows rows, std::int32_t width) {
    program_.slots.push_back({rows, width});
    return {static_cast<std::int32_t>(program_.slots.size() - 1), 0, width};
  }

  // Slots are as wide as the widest layer needs; layers use their first columns.
  void make_slots() {
    std::int32_t q = 0, qkv = 0, ffn = 0;
    for (const Layer& layer : c_.layers) {
      q = std::max(q, layer.attention.q_width());
      qkv = std::max(qkv, layer.attention.q_width() + 2 * layer.attention.kv_width());
      ffn = std::max(ffn, layer.feed_forward.width);
    }
    x_ = slot(Rows::tokens, c_.hidden_size);
    h_ = slot(Rows::tokens, c_.hidden_size);
    qkv_ = slot(Rows::tokens, qkv);
    attended_ = slot(Rows::tokens, q);
    ffn_ = slot(Rows::tokens, ffn);
  }
  static View part(const View& whole, std::int32_t col, std::int32_t width) { return {whole.slot, col, width}; }

  void norm(const Parameter& p, View in, View out, View add = {}, std::int32_t group = 0) {
    program_.ops.push_back(Norm{.in = in, .out = out, .add = add, .weight = p.vector, .bias = p.bias, .kind = c_.norm, .group = group,
                                .eps = c_.eps});
  }

  static Linear make_linear(View in, View out, std::initializer_list<Parameter> parts) {
    Linear op{.in = in, .out = out};
    for (const Parameter& p : parts) op.parts.push_back({p.matrix, p.bias});
    return op;
  }
  void linear(View in, View out, std::initializer_list<Parameter> parts, Activation activation = Activation::none) {
    Linear op = make_linear(in, out, parts);
    op.activation = activation;
    program_.ops.push_back(std::move(op));
  }

  void embed() {
    program_.ops.push_back(Embed{.out = x_, .tokens = d_.global(Role::token_embedding).matrix,
                                 .positions = d_.global(Role::position_embedding).matrix,
                                 .types = d_.global(Role::type_embedding).matrix, .scale = c_.embedding_scale});
    if (c_.embedding_norm) norm(d_.global(Role::embedding_norm), x_, x_);
  }

  // ---------------------------------------------------------------- a layer
  void block(std::size_t layer) {
    const Layer& l = c_.layers[layer];
    View ffn_in = x_;
    if (l.parallel) ffn_in = parallel_input(layer);
    attention(layer);
    if (!l.parallel && l.feed_forward.norms.before) norm(d_.at(layer, Role::ffn_norm), x_, ffn_in = normed(l.feed_forward.norms));
    feed_forward(layer, ffn_in);
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
    linear(in, part(qkv_, 0, v.col + v.width), {d_.at(layer, Role::q), d_.at(layer, Role::k), d_.at(layer, Role::v)});
    if (!a.norm_after_rope) norm_heads(layer, q, k);
    turn(a, q, k);
    if (a.norm_after_rope) norm_heads(layer, q, k);
    attend(a, q, k, v, out);
    close_branch(out, layer, Role::attn_out, a.norms, Role::attn_branch_norm, Role::attn_residual_norm);
  }

  void norm_heads(std::size_t layer, const View& q, const View& k) {
    const Attention& a = c_.layers[layer].attention;
    if (a.qk_norm == QkNorm::none) return;
    const std::int32_t group = a.qk_norm == QkNorm::head ? a.head_dim : 0;
    norm(d_.at(layer, Role::q_norm), q, q, {}, group);
    norm(d_.at(layer, Role::k_norm), k, k, {}, group);
  }

  void turn(const Attention& a, const View& q, const View& k) {
    const RopeTable table = a.rope < 0 ? RopeTable{} : c_.ropes[static_cast<std::size_t>(a.rope)];
    if (a.rope >= 0 || a.temperature_length > 0) {
      program_.ops.push_back(Rope{.x = q, .head_dim = a.head_dim, .table = table, .temperature = a.temperature,
                                  .temperature_length = a.temperature_length});
    }
    if (a.rope >= 0) program_.ops.push_back(Rope{.x = k, .head_dim = a.head_dim, .table = table});
  }

  void attend(const Attention& a, const View& q, const View& k, const View& v, const View& out) {
    Attend op{.q = q, .out = out, .head_dim = a.head_dim, .kv_heads = a.kv_heads, .causal = a.causal, .window = a.window, .scale = a.scale,
              .softcap = a.softcap};
    if (a.position_bias == PositionBias::alibi) op.slopes = d_.alibi_slopes;
    if (cached_) {
      op.cache = static_cast<CacheId>(program_.caches.size());
      program_.caches.push_back({a.kv_heads, a.head_dim});
      program_.ops.push_back(Store{.k = k, .v = v, .cache = op.cache});
    } else {
      op.k = k;
      op.v = v;
    }
    program_.ops.push_back(op);
  }

  void feed_forward(std::size_t layer, const View& in) {
    const FeedForward& f = c_.layers[layer].feed_forward;
    const View wide = part(ffn_, 0, f.width);
    const Parameter &gate = d_.at(layer, Role::gate), &up = d_.at(layer, Role::up);
    if (f.gated) {
      program_.ops.push_back(GatedLinear{.in = in, .out = wide, .gate = gate.matrix, .up = up.matrix, .gate_bias = gate.bias,
                                         .up_bias = up.bias, .activation = f.activation});
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
  void close_branch(const View& in, std::size_t layer, Role out, const Norms& norms, Role branch_norm, Role sum_norm) {
    if (norms.branch) {
      linear(in, h_, {d_.at(layer, out)});
      norm(d_.at(layer, branch_norm), h_, x_, x_);
      return;
    }
    Linear op = make_linear(in, x_, {d_.at(layer, out)});
    op.residual = x_;
    op.scale = c_.layers[layer].branch_scale;
    program_.ops.push_back(std::move(op));
    if (norms.sum) norm(d_.at(layer, sum_norm), x_, x_);
  }

  // ---------------------------------------------------------------- ends
  void finish_body(Output output, bool with_modules) {
    const bool looked_at = output == Output::tokens || output == Output::pooled || output == Output::classes;
    if (looked_at && c_.final_norm) norm(d_.global(Role::final_norm), x_, x_);
    switch (output) {
      case Output::hidden: return give(x_);
      case Output::tokens: return give(with_modules ? modules(x_, true) : x_);
      case Output::selected: {
        const View out = slot(Rows::selected, c_.hidden_size);
        program_.ops.push_back(Select{.in = x_, .out = out});
        return give(out);
      }
      case Output::pooled: return give(modules(pool(modules(x_, true), d_.pooling), false));
      case Output::classes: return give(d_.score.present() ? score(pool(x_, {PoolKind::last})) : classify(pool(x_, {PoolKind::cls})));
    }
  }
  void give(const View& out) { program_.output = out.slot; }

  // Vectors of several kinds stand side by side.
  View pool(const View& in, const std::vector<PoolKind>& kinds) {
    const View out = slot(Rows::segments, in.width * static_cast<std::int32_t>(kinds.size()));
    std::int32_t col = 0;
    for (const PoolKind kind : kinds) {
      program_.ops.push_back(Pool{.in = in, .out = part(out, col, in.width), .kind = kind});
      col += in.width;
    }
    return out;
  }

  View modules(View x, bool on_tokens) {
    for (const Module& m : d_.modules) {
      if (m.on_tokens != on_tokens) continue;
      const View out = slot(on_tokens ? Rows::tokens : Rows::segments, m.width);
      if (m.kind == ModuleKind::dense) {
        dense(m, x, out);
      } else {
        const bool layer = m.kind == ModuleKind::layer_norm;  // eps of torch.nn.LayerNorm; a length of at least 1e-12 of torch's normalize()
        program_.ops.push_back(Norm{.in = x, .out = out, .add = {}, .weight = m.weight.vector, .bias = m.weight.bias,
                                    .kind = layer ? NormKind::layer : NormKind::rms, .eps = layer ? 1e-5f : 1e-24f / static_cast<float>(m.width)});
      }
      x = out;
    }
    return x;
  }

  void dense(const Module& m, const View& x, const View& out) {
    Linear op = make_linear(x, out, {m.weight});
    op.activation = m.activation;
    if (m.residual) op.residual = x;
    if (m.shortcut.present()) linear(x, op.residual = slot(program_.slots[static_cast<std::size_t>(x.slot)].rows, m.width), {m.shortcut});
    program_.ops.push_back(std::move(op));
  }

  View score(const View& last) {
    const View out = slot(Rows::segments, d_.labels);
    Linear op = make_linear(last, out, {d_.score});
    op.precise = true;
    op.scale = c_.logit_scale;
    op.softcap = c_.logit_softcap;
    program_.ops.push_back(std::move(op));
    return out;
  }

  View classify(View pooled) {
    if (const Parameter& pooler = d_.global(Role::pooler); pooler.present()) {
      const View squashed = slot(Rows::segments, c_.hidden_size);
      linear(pooled, squashed, {pooler}, Activation::tanh);
      pooled = squashed;
    }
    const View out = slot(Rows::segments, d_.labels);
    linear(pooled, out, {d_.global(Role::classifier)});
    return out;
  }

  const Description& d_;
  const Config& c_;
  Program program_;
  bool cached_ = false;
  View x_, h_, qkv_, attended_, ffn_, beside_;
};

}  // namespace

Program body_program(const Description& d, std::size_t first, std::size_t last, Output output) {
  return Builder(d, str("layers ", first, " to ", last)).body(first, last, output);
}

Program layer_program(const Description& d, std::size_t layer) {
  return Builder(d, str("layer ", layer)).body(layer, layer + 1, Output::tokens, false);
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

std::vector<bool> used_matrices(const Program& program, const Weights& weights) {
  return check_program(program, shapes_of(weights)).used;
}

}  // namespace pumice::model
