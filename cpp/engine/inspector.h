// Runs a model layer by layer to return attention weights and hidden states, and to find the layer where a value is first not finite.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "engine/at_fork.h"
#include "engine/pipeline_builder.h"
#include "engine/runtime.h"

namespace pumice::engine {

// Looks into the layers of one model. Any thread may call any function.
class Inspector {
 public:
  // `layer_by_layer` returns the runtime of PipelineBuilder::layers(). `preparing` is the lock that is held while the model's programs are
  // built. The arguments must outlive this object.
  Inspector(const PipelineBuilder& builder, std::function<Runtime&(const Cancel&)> layer_by_layer, ProcessLock& preparing);

  // Computes the attention weights of a layer (0 is the first), that is, how much each token as a query attends to each token as a key.
  // `out` has the shape heads x ids x ids: for each head, a row per query and a column per key. The softmax is computed on the host
  // (engine/attention_weights.h).
  void attentions(std::span<const std::int32_t> ids, std::size_t layer, std::span<float> out, const Cancel& cancel) const;

  // Computes the hidden rows of a text after each of the given layers, without caches. Layer 0 stands for the input of the first layer, and
  // n for the output of the n-th layer. The output of the last layer is taken after the final norm if the model has one. `out` has the
  // shape layers x ids x hidden_size.
  void hidden_states(std::span<const std::int32_t> ids, std::span<const std::int32_t> layers, std::span<float> out,
                     const Cancel& cancel) const;

  // Finds the layer after which a value is first not finite (Runtime::where_not_finite).
  std::string where_not_finite(std::span<const std::int32_t> ids, std::span<const std::int32_t> types, const Cancel& cancel) const noexcept;

 private:
  // Runs the layers on a text, without caches. Calls look(stage, rows, batch, space) before the first layer (stage 0) and after each layer.
  // `rows` are the hidden rows at that point. `look` may use `space` to run other programs on `batch`.
  using LookAtLayer = std::function<void(std::size_t stage, std::span<const float> rows, const Batch& batch, RunSpace& space)>;
  void run_layers(std::span<const std::int32_t> ids, std::span<const std::int32_t> types, const LookAtLayer& look,
                  const Cancel& cancel) const;
  // Returns a description of the first key or value of a layer that becomes infinite when it is rounded to F16, or "" if there is none.
  // `rows` is the layer's input.
  std::string beyond_f16(std::size_t layer, std::span<const float> rows, const Batch& batch, RunSpace& space, const Cancel& cancel) const;
  struct Queries {
    Pipeline pipeline;     // computes the inputs of the layer's Attend operation: queries, keys and values
    const Attend& attend;  // the layer's Attend operation; a reference into ModelPrograms
  };
  const Queries& queries(std::size_t layer, const Cancel& cancel) const;

  const PipelineBuilder& builder_;
  const std::function<Runtime&(const Cancel&)> layer_by_layer_;
  ProcessLock& preparing_;
  const bool decodes_;                              // true if the model has an output head
  mutable std::map<std::size_t, Queries> queries_;  // by index of the layer
};

}  // namespace pumice::engine
