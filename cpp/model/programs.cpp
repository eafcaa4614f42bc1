#include "model/programs.h"

#include <algorithm>
#include <map>

#include "core/error.h"
#include "core/program_check.h"

namespace pumice::model {
namespace {

class Builder {
 public:
  Builder(const Description& d, std::string name) : d_(d), c_(d.config) { program_.name = std::move(name); }

  // `from_ids`: begins with the embedding, where the first layer is the model's first.
  Program body(std::size_t first, std::size_t last, Output output, PoolKind pooling, bool from_ids = true) {
    cached_ = c_.keeps_past() && (output == Output::hidden || output == Output::selected);
    last_ = last;
    const bool embeds = first == 0 && from_ids;
    make_slots(embeds ? c_.hidden_size : row_width(first));
    if (embeds) embed(); else take_row(first);
    for (std::size_t layer = first; layer < last; ++layer) block(layer);
    finish_body(last == c_.layers.size() ? output : Output::hidden, pooling);
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
  void make_slots(std::int32_t row) {
    std::int32_t q = 0, qkv = 0, ffn = 0;
    for (const Layer& layer : c_.layers) {
      q = std::max(q, layer.attention.q_width());
      qkv = std::max(qkv, layer.attention.q_width() + 2 * layer.attention.kv_width());
      ffn = std::max(ffn, layer.feed_forward.width);
    }
    x_ = part(slot(Rows::tokens, row), 0, c_.hidden_size);
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

  void scale(View in, View out, float by) { program_.ops.push_back(Multiply{.a = in, .b = {}, .out = out, .scale = by}); }

  void embed() {
    program_.ops.push_back(Embed{.out = x_, .tokens = d_.global(Role::token_embedding).matrix,
                                 .positions = d_.global(Role::position_embedding).matrix,
                                 .types = d_.global(Role::type_embedding).matrix, .scale = c_.embedding_scale});
    if (c_.embedding_norm) norm(d_.global(Role::embedding_norm), x_, x_);
    if (c_.layer_inputs.width > 0) embed_inputs();
  }

  void embed_inputs() {
    const LayerInputs& inputs = c_.layer_inputs;
    inputs_ = slot(Rows::tokens, inputs_width(0));
    const View projected = slot(Rows::tokens, inputs_.width);
    program_.ops.push_back(
        Embed{.out = inputs_, .tokens = d_.global(Role::inputs_embedding).matrix, .scale = inputs.embedding_scale});
    Linear op = make_linear(x_, projected, {d_.global(Role::inputs_projection)});
    op.scale = inputs.projection_scale;
    program_.ops.push_back(std::move(op));
    norm(d_.global(Role::inputs_norm), projected, inputs_, inputs_, inputs.width);
  }

  // ---------------------------------------------------------------- borders
  // The row before a layer: hidden columns; keys, then values, of each layer before whose are read from there on; inputs of the layers from
  // there on.
  std::int32_t row_width(std::size_t border) const {
    std::int32_t width = c_.hidden_size + inputs_width(border);
    for (const std::size_t layer : read_beyond(border)) width += 2 * c_.layers[layer].attention.kv_width();
    return width;
  }
  std::int32_t inputs_width(std::size_t border) const {
    return c_.layer_inputs.width * static_cast<std::int32_t>(c_.layers.size() - border);
  }
  // Layers before the border whose keys and values layers from it on read.
  std::vector<std::size_t> read_beyond(std::size_t border) const {
    std::vector<std::size_t> layers;
    for (std::size_t layer = border; layer < c_.layers.size(); ++layer) {
      const std::int32_t from = c_.layers[layer].attention.kv_from;
      if (from < 0 || static_cast<std::size_t>(from) >= border) continue;
      if (std::find(layers.begin(), layers.end(), static_cast<std::size_t>(from)) == layers.end())
        layers.push_back(static_cast<std::size_t>(from));
    }
    return layers;
  }
  // Do layers [first, last) read keys and values of this one?
  bool read_in(std::size_t layer, std::size_t first, std::size_t last) const {
    for (std::size_t other = first; other < last; ++other) {
      if (c_.layers[other].attention.kv_from == static_cast<std::int32_t>(layer)) return true;
    }
    return false;
  }

  // What the stage before gave. Keys and values that layers of this stage read go to caches of its own.
  void take_row(std::size_t border) {
    program_.input = x_.slot;
    std::int32_t col = c_.hidden_size;
    for (const std::size_t layer : read_beyond(border)) {
      const std::int32_t width = c_.layers[layer].attention.kv_width();
      kept_[layer] = {x_.slot, col, 2 * width};
      if (cached_ && read_in(layer, border, last_)) store(layer, {x_.slot, col, width}, {x_.slot, col + width, width});
      col += 2 * width;
    }
    first_input_ = border;
    if (c_.layer_inputs.width > 0) inputs_ = {x_.slot, col, inputs_width(border)};
  }

  View give_row(std::size_t border) {
    const std::int32_t width = row_width(border);
    if (width == c_.hidden_size && program_.slots[static_cast<std::size_t>(x_.slot)].width == width) return x_;
    const View out = slot(Rows::tokens, width);
    std::int32_t col = 0;
    const auto copy = [&](const View& from) {
      scale(from, {out.slot, col, from.width}, 1);
      col += from.width;
    };
    copy(x_);
    for (const std::size_t layer : read_beyond(border)) copy(kept_.at(layer));
    if (const std::int32_t left = inputs_width(border); left > 0) copy({inputs_.slot, inputs_.col + inputs_.width - left, left});
    return out;
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
    }
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
      program_.ops.push_back(Rope{.x = q, .head_dim = a.head_dim, .table = table, .temperature = a.temperature,
                                  .temperature_length = a.temperature_length});
    }
    if (a.rope >= 0 && a.kv_from < 0) program_.ops.push_back(Rope{.x = k, .head_dim = a.head_dim, .table = table});
  }

  void attend(std::size_t layer, const View& q, const View& k, const View& v, const View& out) {
    const Attention& a = c_.layers[layer].attention;
    Attend op{.q = q, .out = out, .head_dim = a.head_dim, .kv_heads = a.kv_heads, .causal = a.causal, .window = a.window, .scale = a.scale,
              .softcap = a.softcap};
    if (a.position_bias == PositionBias::alibi) op.slopes = d_.alibi_slopes;
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

  // Keys and values of a layer go to a cache of this program.
  void store(std::size_t layer, const View& k, const View& v) {
    const Attention& a = c_.layers[layer].attention;
    caches_[layer] = static_cast<CacheId>(program_.caches.size());
    program_.caches.push_back({a.kv_heads, a.head_dim});
    program_.ops.push_back(Store{.k = k, .v = v, .cache = caches_[layer]});
  }

  // Keys and values that no cache keeps for those who read them: layers of another stage, and without caches all layers.
  void keep(std::size_t layer, const View& k) {
    if (!read_in(layer, cached_ ? last_ : layer + 1, c_.layers.size())) return;
    kept_[layer] = slot(Rows::tokens, 2 * k.width);
    scale(part(k, k.col, 2 * k.width), kept_[layer], 1);  // v lies beside k
  }

  void add_input(std::size_t layer) {
    const std::int32_t width = c_.layer_inputs.width;
    if (!gate_) gate_ = slot(Rows::tokens, width);
    const View input = part(inputs_, inputs_.col + static_cast<std::int32_t>(layer - first_input_) * width, width);
    linear(x_, gate_, {d_.at(layer, Role::input_gate)});
    program_.ops.push_back(Multiply{.a = input, .b = gate_, .out = input, .activation = c_.layers[layer].feed_forward.activation,
                                    .scale = c_.layer_inputs.scale});
    linear(input, h_, {d_.at(layer, Role::input_out)});
    norm(d_.at(layer, Role::input_norm), h_, x_, x_);
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
  void finish_body(Output output, PoolKind pooling) {
    const bool looked_at = output == Output::tokens || output == Output::pooled || output == Output::classes;
    if (looked_at && c_.final_norm) norm(d_.global(Role::final_norm), x_, x_);
    switch (output) {
      case Output::hidden: case Output::tokens: return give(give_row(last_));
      case Output::selected: {
        const View out = slot(Rows::selected, c_.hidden_size);
        program_.ops.push_back(Select{.in = x_, .out = out});
        return give(out);
      }
      case Output::pooled: return give(pool(pooling));
      case Output::classes: return give(classify(pool(PoolKind::cls)));
    }
  }
  void give(const View& out) { program_.output = out.slot; }

  View pool(PoolKind kind) {
    const View out = slot(Rows::segments, c_.hidden_size);
    program_.ops.push_back(Pool{.in = x_, .out = out, .kind = kind});
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
  std::size_t last_ = 0;                       // layer after this program's
  View x_, h_, qkv_, attended_, ffn_, beside_;
  std::map<std::size_t, CacheId> caches_;      // of this program, by layer
  std::map<std::size_t, View> kept_;           // keys, then values, of layers, where no cache keeps them
  View inputs_, gate_;                         // of layers from first_input_ on
  std::size_t first_input_ = 0;
};

}  // namespace

Program body_program(const Description& d, std::size_t first, std::size_t last, Output output, PoolKind pooling) {
  return Builder(d, str("layers ", first, " to ", last)).body(first, last, output, pooling);
}

Program layer_program(const Description& d, std::size_t layer) {
  return Builder(d, str("layer ", layer)).body(layer, layer + 1, Output::tokens, PoolKind::mean, false);
}

Program head_program(const Description& d) { return Builder(d, "head").head(Builder::Give::logits); }
Program log_prob_program(const Description& d) { return Builder(d, "log-probabilities").head(Builder::Give::log_probs); }
Program top_program(const Description& d) { return Builder(d, "largest logits").head(Builder::Give::top); }

std::vector<bool> used_matrices(const Program& program, const Weights& weights) {
  return check_program(program, shapes_of(weights)).used;
}

}  // namespace pumice::model
