// A program while it is written: its slots, what every part of it adds, its ends (embedding, pooling, classifier, head), which are in
// ends.cpp, and what layers get from others than the one before them: borders.cpp. The layers themselves: programs.cpp.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/programs.h"

namespace pumice::model {

class Builder {
 public:
  Builder(const Description& d, std::string name) : d_(d), c_(d.config) { program_.name = std::move(name); }

  enum class Give { logits, log_probs, top };
  Program head(Give give);

 protected:
  View slot(Rows rows, std::int32_t width) {
    program_.slots.push_back({rows, width});
    return {static_cast<std::int32_t>(program_.slots.size() - 1), 0, width};
  }
  static View part(const View& whole, std::int32_t col, std::int32_t width) { return {whole.slot, col, width}; }

  void norm(const Parameter& p, View in, View out, View add = {}, std::int32_t group = 0) {
    program_.ops.push_back(
        Norm{.in = in, .out = out, .add = add, .weight = p.vector, .bias = p.bias, .kind = c_.norm, .group = group, .eps = c_.eps});
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

  // out += by b (a in), where adapters are kept apart from the matrix.
  void add_low_rank(View in, View out, const Parameter& p, float by = 1) {
    if (p.lora_a == MatrixId::none) return;
    const View low = part(low_, 0, static_cast<std::int32_t>(d_.matrix(p.lora_a).rows));
    linear(in, low, {Parameter{.matrix = p.lora_a}});
    Linear op = make_linear(low, out, {Parameter{.matrix = p.lora_b}});
    op.residual = out;
    op.scale = by;
    program_.ops.push_back(std::move(op));
  }

  void scale(View in, View out, float by) { program_.ops.push_back(Multiply{.a = in, .b = {}, .out = out, .scale = by}); }

  void embed();                                        // ids to x_
  void finish_body(Output output, bool with_modules);  // x_ to what the body gives

  // The row before a layer: hidden columns; keys, then values, of each layer before whose are read from there on; LayerInputs of the layers
  // from there on.
  std::int32_t row_width(std::size_t border) const;
  void take_row(std::size_t border);  // of the stage before. Keys and values that layers of this stage read go to caches of its own
  View give_row(std::size_t border);

  void store(std::size_t layer, const View& k, const View& v);  // to a cache of this program
  // Keys and values that no cache keeps for those who read them: layers of another stage, and without caches all layers. v lies beside k.
  void keep(std::size_t layer, const View& k);
  View input_of(std::size_t layer) const;  // its columns of LayerInputs

  const Description& d_;
  const Config& c_;
  Program program_;
  bool cached_ = false;
  std::size_t last_ = 0;                   // the layer after this program's
  View x_, h_;                             // hidden rows, and normalised ones
  View low_;                               // rows of adapters' rank
  std::map<std::size_t, CacheId> caches_;  // of this program, by layer
  std::map<std::size_t, View> kept_;       // keys, then values, of layers, where no cache keeps them

 private:
  void embed_inputs();
  std::int32_t inputs_width(std::size_t border) const;
  std::vector<std::size_t> read_beyond(std::size_t border) const;
  bool read_in(std::size_t layer, std::size_t first, std::size_t last) const;
  void give(const View& out) { program_.output = out.slot; }
  View pool(View in, const std::vector<PoolKind>& kinds);
  View projected(View pooled);
  View modules(View x, bool on_tokens);
  void dense(const Module& m, View x, View out);
  View classify();
  View score();

  View inputs_;  // LayerInputs of the layers from first_input_ on
  std::size_t first_input_ = 0;
};

}  // namespace pumice::model
