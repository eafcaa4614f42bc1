// A loaded model: its description, its placement, and the pipelines that run it. After load(), only two things change: the page pool, and
// the pipelines that are built when a function first needs them. Any number of threads may use a model.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/at_fork.h"
#include "engine/encode_queue.h"
#include "engine/placement.h"
#include "engine/runtime.h"
#include "engine/scheduler.h"
#include "engine/stage_parts.h"
#include "files/model_file.h"
#include "model/description.h"
#include "model/model_programs.h"

namespace pumice::engine {

class Model {
 public:
  // Reads and packs all weights. `progress` is called, by one thread at a time, with the number of bytes packed so far. The total is
  // Placement::weights.
  static std::shared_ptr<Model> load(std::shared_ptr<const files::ModelFile> file, const LoadOptions& options, const Progress& progress,
                                     const Cancel& cancel);
  // Loads the model onto the given devices. Tests pass their own.
  static std::shared_ptr<Model> load_on(const Devices& devices, std::shared_ptr<const files::ModelFile> file, const LoadOptions& options,
                                        const Progress& progress, const Cancel& cancel);
  // Loads the model with its layers divided evenly among the given devices, in order.
  static std::shared_ptr<Model> load_on(const std::vector<std::shared_ptr<Backend>>& backends, std::shared_ptr<const files::ModelFile> file,
                                        const LoadOptions& options, const Progress& progress, const Cancel& cancel);

  const model::Description& description() const { return description_; }
  const Placement& placement() const { return placement_; }
  const files::ModelFile& file() const { return *file_; }
  // Returns a number that identifies the contents of the file as they were loaded (engine/fingerprint.h).
  std::uint64_t fingerprint() const { return fingerprint_; }
  // Returns a text that describes everything else that determines the bits of keys and values: version, options and devices.
  const std::string& made_by() const { return made_by_; }
  // Returns a drafter that guesses this model's tokens with `smaller`. All requests with the same `smaller` share one drafter, so that
  // their sequences are drafted in one batch. The drafter lives as long as any request uses it.
  std::shared_ptr<Drafter> drafter(const std::shared_ptr<Model>& smaller) const;
  // How often steps found experts that they needed in memory, and how often they read them from the file.
  struct ExpertCounts {
    std::uint64_t hits = 0, reads = 0;
  };
  ExpertCounts expert_counts() const;
  EncodeCounts::Stats encode_stats() const { return encode_counts_->stats(); }
  bool generates() const { return decoder_ != nullptr; }
  bool encodes_first() const { return placement_.encodes_first; }

  // The first call of each of the following functions builds what load() has not built yet.
  Runtime& decoder() const;           // computes logits and scores; throws unsupported_task if the model has no head
  Scheduler& scheduler() const;       // generates tokens with decoder()
  Runtime& pooled() const;            // computes a vector per text; every model has it
  Runtime& tokens() const;            // computes a vector per token; every model has it
  Runtime& classes() const;           // computes a classifier's logits; throws unsupported_task without a classifier of texts
  Runtime& sparse() const;            // computes a logit per text and token of the vocabulary; throws unsupported_task without an MLM head
  Runtime& token_classes() const;     // computes the logits of each token; throws unsupported_task without a classifier of tokens
  EncodeQueue& pooled_queue() const;  // runs small calls of pooled() from many callers together
  EncodeQueue& classes_queue() const;

  // Computes the attention weights of a layer (0 is the first), that is, how much each token as a query attends to each token as a key.
  // `out` has the shape heads x ids x ids: for each head, a row per query and a column per key. The softmax is computed on the host
  // (engine/attention_weights.h).
  void attentions(std::span<const std::int32_t> ids, std::size_t layer, std::span<float> out, const Cancel& cancel) const;

  // Computes the hidden rows of a text after each of the given layers, without caches. Layer 0 stands for the input of the first layer, and
  // n for the output of the n-th layer. The output of the last layer is taken after the final norm if the model has one. `out` has the
  // shape layers x ids x hidden_size.
  void hidden_states(std::span<const std::int32_t> ids, std::span<const std::int32_t> layers, std::span<float> out,
                     const Cancel& cancel) const;

 private:
  // A pipeline, with the runtime and the encode queue that use it.
  struct Runner {
    Runner(Pipeline built, PagePool* pages, std::int32_t n_ctx, std::int32_t vocab, std::int32_t types, std::span<const RopeTable> ropes)
        : pipeline(std::move(built)), runtime(pipeline, pages, n_ctx, vocab, types, ropes) {}
    Pipeline pipeline;
    Runtime runtime;
    EncodeQueue queue{runtime};
  };

  Model(std::shared_ptr<const files::ModelFile> file, const LoadOptions& options);
  void load(Placement placement, const LoadOptions& options, const Progress& progress, const Cancel& cancel);
  std::string what_made_it(const LoadOptions& options) const;
  std::vector<std::shared_ptr<Backend>> backends() const;
  // Appends to `to` one stage for each part of `program`. `device` runs the parts that are not experts elsewhere.
  void build_stages(std::vector<Pipeline::Stage>& to, std::size_t device, const model::ModelProgram& program, const Cancel& cancel) const;
  Pipeline::Stage build_stage(std::size_t device, const model::ModelProgram& program, const Cancel& cancel) const;
  Pipeline build_pipeline(model::Output output, const Cancel& cancel) const;
  Pipeline build_layers(const Cancel& cancel) const;  // has one stage for the embedding, and one for each layer
  std::size_t device_of(std::size_t layer) const;
  Runtime& layer_by_layer(const Cancel& cancel) const;
  // Computes a text without caches, and calls `look` with the rows before the first layer and after each layer (Pipeline::body), with the
  // batch, and with a space for more runs of it.
  using LookAtLayer = std::function<void(std::size_t stage, std::span<const float> rows, const Batch& batch, RunSpace& space)>;
  void run_layers(std::span<const std::int32_t> ids, std::span<const std::int32_t> types, const LookAtLayer& look,
                  const Cancel& cancel) const;
  // Names a key or value of a layer that is infinite in a cache of F16, or returns "". `rows` are the layer's input.
  std::string beyond_f16(std::size_t layer, std::span<const float> rows, const Batch& batch, RunSpace& space, const Cancel& cancel) const;
  // See Runtime::where_not_finite.
  std::string where_not_finite(std::span<const std::int32_t> ids, std::span<const std::int32_t> types, const Cancel& cancel) const noexcept;
  struct Queries {
    Pipeline pipeline;     // ends with what the attention of the layer reads
    const Attend& attend;  // that attention, in programs_
  };
  const Queries& queries(std::size_t layer, const Cancel& cancel) const;
  std::unique_ptr<Runner> make_runner(Pipeline pipeline, PagePool* pages) const;
  Runtime& prepared(std::unique_ptr<Runner>& runner, const std::function<Pipeline()>& build) const;
  const char* main_call() const;  // the call that the model is for, for error messages
  [[noreturn]] void wrong_task(const char* call, const char* needs, const char* instead) const;

  std::shared_ptr<const files::ModelFile> file_;
  model::Description description_;
  const model::ModelPrograms programs_;
  Placement placement_;
  std::unique_ptr<const StageParts> parts_;
  Compute compute_ = Compute::automatic;
  std::vector<std::shared_ptr<const DeviceWeights>> weights_;  // by device index
  std::unique_ptr<PagePool> pages_;
  const std::shared_ptr<EncodeCounts> encode_counts_ = std::make_shared<EncodeCounts>();
  mutable ProcessLock preparing_;
  mutable std::unique_ptr<Runner> pooled_, tokens_, classes_, sparse_, layers_;
  mutable std::map<std::size_t, Queries> queries_;  // by layer index
  std::uint64_t fingerprint_ = 0;
  std::string made_by_;
  mutable ProcessLock drafting_;
  mutable std::weak_ptr<Drafter> drafter_;
  // The last members, so that the engine's thread, which uses the others (where_not_finite), has ended before any of them is destroyed.
  std::unique_ptr<Runner> decoder_;
  std::unique_ptr<Scheduler> scheduler_;
};

// Computes the placement without loading the model. If the model does not fit, Placement::problem is set, and nothing is thrown.
Placement plan(std::shared_ptr<const files::ModelFile> file, const LoadOptions& options);

}  // namespace pumice::engine
