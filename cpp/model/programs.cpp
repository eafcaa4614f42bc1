#include "model/programs.h"

#include "core/error.h"
#include "core/program_check.h"

namespace pumice::model {
namespace {

class Builder {
 public:
  Builder(const Description& d, std::string name) : d_(d), c_(d.config) { program_.name = std::move(name); }

  Program body(std::size_t first, std::size_t last, Output output, PoolKind pooling) {
    x_ = slot(Rows::tokens, c_.hidden_size);
    h_ = slot(Rows::tokens, c_.hidden_size);
    const std::int32_t q_width = c_.heads * c_.head_dim, kv_width = c_.kv_heads * c_.head_dim;
    const View qkv = slot(Rows::tokens, q_width + 2 * kv_width);
    q_ = {qkv.slot, 0, q_width};
    k_ = {qkv.slot, q_width, kv_width};
    v_ = {qkv.slot, q_width + kv_width, kv_width};
    attended_ = slot(Rows::tokens, q_width);
    ffn_ = slot(Rows::tokens, c_.ffn_size);
    if (first == 0) embed(); else program_.input = x_.slot;
    for (std::size_t layer = first; layer < last; ++layer) {
      attention(layer);
      feed_forward(layer);
    }
    finish_body(last == c_.layers.size() ? output : Output::tokens, pooling);
    return std::move(program_);
  }

  enum class Give { logits, log_probs, top };
  Program head(Give give) {
    x_ = slot(Rows::tokens, c_.hidden_size);
    h_ = slot(Rows::tokens, c_.hidden_size);
    program_.input = x_.slot;
    norm(d_.global(Role::final_norm), x_, h_);
    const View logits = slot(Rows::tokens, d_.vocab_size);
    linear(h_, logits, {d_.global(Role::head)});
    std::get<Linear>(program_.ops.back()).precise = true;
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

  void norm(const Parameter& p, View in, View out, View add = {}, std::int32_t group = 0) {
    program_.ops.push_back(Norm{.in = in, .out = out, .add = add, .weight = p.vector, .bias = p.bias, .kind = c_.architecture->norm,
                                .group = group, .eps = c_.eps});
  }

  void linear(View in, View out, std::initializer_list<Parameter> parts, Activation activation = Activation::none, View residual = {}) {
    Linear op{.in = in, .out = out, .parts = {}, .activation = activation, .residual = residual};
    for (const Parameter& p : parts) op.parts.push_back({p.matrix, p.bias});
    program_.ops.push_back(std::move(op));
  }

  void embed() {
    program_.ops.push_back(Embed{.out = x_, .tokens = d_.global(Role::token_embedding).matrix,
                                 .positions = d_.global(Role::position_embedding).matrix,
                                 .types = d_.global(Role::type_embedding).matrix, .scale = c_.embedding_scale});
    if (const Parameter& p = d_.global(Role::embedding_norm); p.present()) norm(p, x_, x_);
  }

  void attention(std::size_t layer) {
    const auto weight = [&](Role role) -> const Parameter& { return d_.at(layer, role); };
    const Layer& settings = c_.layers[layer];
    View in = x_;
    if (weight(Role::attn_norm).present()) norm(weight(Role::attn_norm), x_, in = h_);
    linear(in, {q_.slot, 0, q_.width + k_.width + v_.width}, {weight(Role::q), weight(Role::k), weight(Role::v)});
    if (weight(Role::q_norm).present()) norm(weight(Role::q_norm), q_, q_, {}, c_.head_dim);
    if (weight(Role::k_norm).present()) norm(weight(Role::k_norm), k_, k_, {}, c_.head_dim);
    Attend attend{.q = q_, .out = attended_, .head_dim = c_.head_dim, .kv_heads = c_.kv_heads, .window = settings.window,
                  .scale = c_.attention_scale, .softcap = c_.attention_softcap};
    if (c_.ropes.empty()) {
      attend.k = k_;
      attend.v = v_;
    } else {
      attend.cache = static_cast<CacheId>(program_.caches.size());
      program_.caches.push_back({c_.kv_heads, c_.head_dim});
      attend.causal = true;
      for (const View& x : {q_, k_}) {
        program_.ops.push_back(Rope{.x = x, .head_dim = c_.head_dim, .table = c_.ropes[static_cast<std::size_t>(settings.rope)]});
      }
      program_.ops.push_back(Store{.k = k_, .v = v_, .cache = attend.cache});
    }
    program_.ops.push_back(attend);
    close_branch(attended_, weight(Role::attn_out), weight(Role::attn_branch_norm), weight(Role::attn_residual_norm));
  }

  void feed_forward(std::size_t layer) {
    const auto weight = [&](Role role) -> const Parameter& { return d_.at(layer, role); };
    View in = x_;
    if (weight(Role::ffn_norm).present()) norm(weight(Role::ffn_norm), x_, in = h_);
    if (weight(Role::gate).present()) {
      program_.ops.push_back(GatedLinear{.in = in, .out = ffn_, .gate = weight(Role::gate).matrix, .up = weight(Role::up).matrix,
                                         .activation = c_.activation});
    } else {
      linear(in, ffn_, {weight(Role::up)}, c_.activation);
    }
    close_branch(ffn_, weight(Role::down), weight(Role::ffn_branch_norm), weight(Role::ffn_residual_norm));
  }

  // x += W in; with a norm on the branch, x += norm(W in); with a norm on the sum, x = norm(x + W in).
  void close_branch(View in, const Parameter& out, const Parameter& branch_norm, const Parameter& residual_norm) {
    if (branch_norm.present()) {
      linear(in, h_, {out});
      norm(branch_norm, h_, x_, x_);
      return;
    }
    linear(in, x_, {out}, Activation::none, x_);
    if (residual_norm.present()) norm(residual_norm, x_, x_);
  }

  void finish_body(Output output, PoolKind pooling) {
    switch (output) {
      case Output::tokens: program_.output = x_.slot; return;
      case Output::selected: {
        const View out = slot(Rows::selected, c_.hidden_size);
        program_.ops.push_back(Select{.in = x_, .out = out});
        program_.output = out.slot;
        return;
      }
      case Output::pooled: {
        const View out = slot(Rows::segments, c_.hidden_size);
        program_.ops.push_back(Pool{.in = x_, .out = out, .kind = pooling});
        program_.output = out.slot;
        return;
      }
      case Output::classes: {
        View pooled = slot(Rows::segments, c_.hidden_size);
        program_.ops.push_back(Pool{.in = x_, .out = pooled, .kind = PoolKind::cls});
        if (const Parameter& pooler = d_.global(Role::pooler); pooler.present()) {
          const View squashed = slot(Rows::segments, c_.hidden_size);
          linear(pooled, squashed, {pooler}, Activation::tanh);
          pooled = squashed;
        }
        const View out = slot(Rows::segments, d_.labels);
        linear(pooled, out, {d_.global(Role::classifier)});
        program_.output = out.slot;
        return;
      }
    }
  }

  const Description& d_;
  const Config& c_;
  Program program_;
  View x_, h_, q_, k_, v_, attended_, ffn_;
};

}  // namespace

Program body_program(const Description& d, std::size_t first, std::size_t last, Output output, PoolKind pooling) {
  return Builder(d, str("layers ", first, " to ", last)).body(first, last, output, pooling);
}

Program head_program(const Description& d) { return Builder(d, "head").head(Builder::Give::logits); }
Program log_prob_program(const Description& d) { return Builder(d, "log-probabilities").head(Builder::Give::log_probs); }
Program top_program(const Description& d) { return Builder(d, "largest logits").head(Builder::Give::top); }

std::vector<bool> used_matrices(const Program& program, const Weights& weights) {
  return check_program(program, shapes_of(weights)).used;
}

}  // namespace pumice::model
