// A program while it is written: its slots, what every part of it adds, and its ends (embedding, pooling, classifier, head), which are in
// ends.cpp. The layers between them: programs.cpp.
#pragma once

#include <initializer_list>
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

  void embed();                                        // ids to x_
  void finish_body(Output output, bool with_modules);  // x_ to what the body gives

  const Description& d_;
  const Config& c_;
  Program program_;
  View x_, h_;  // hidden rows, and normalised ones

 private:
  void give(const View& out) { program_.output = out.slot; }
  View pool(View in, const std::vector<PoolKind>& kinds);
  View projected(View pooled);
  View modules(View x, bool on_tokens);
  void dense(const Module& m, View x, View out);
  View classify();
  View score();
};

}  // namespace pumice::model
