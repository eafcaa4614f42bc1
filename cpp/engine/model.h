// A loaded model: its description, its placement, and the pipelines that run it. After load(), only two things change: the page pool, and
// the pipelines that are built when a function first needs them. Any number of threads may use a model.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/at_fork.h"
#include "engine/encode_queue.h"
#include "engine/inspector.h"
#include "engine/pipeline_builder.h"
#include "engine/placement.h"
#include "engine/runtime.h"
#include "engine/scheduler.h"
#include "engine/stage_parts.h"
#include "files/model_file.h"
#include "model/description.h"
#include "model/model_programs.h"

namespace pumice::engine {

// What a model computes for texts.
enum class Task : std::uint8_t {
  text,           // the logits of the next token, from which scores and generated tokens follow
  vectors,        // a vector per text; every model has this task
  token_vectors,  // a vector per token; every model has this task
  sparse,         // for each text, a logit per token of the vocabulary
  labels,         // for each text, the logits of a classifier
  token_labels,   // for each token, the logits of a classifier
};

class Model {
 public:
  // Reads and packs all weights. `progress` is called, by one thread at a time, with the number of bytes packed so far. The total is
  // Placement::weights.
  static std::shared_ptr<Model> load(std::shared_ptr<const files::ModelFile> file, const LoadOptions& options, const Progress& progress,
                                     const Cancel& cancel);
  // Loads the model onto the given devices. Tests pass devices of their own.
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
  // Returns a text with the version, the options and the devices. This text and the contents of the file together determine the bits of
  // keys and values.
  const std::string& made_by() const { return made_by_; }
  // Returns a drafter that guesses this model's tokens with `smaller`. All requests with the same `smaller` share one drafter, so that
  // their sequences are drafted in one batch. The drafter lives as long as any request uses it.
  std::shared_ptr<Drafter> drafter(const std::shared_ptr<Model>& smaller) const;
  // How often steps needed an expert that was in memory (`hits`), and how often they had to read an expert from the file (`reads`).
  struct ExpertCounts {
    std::uint64_t hits = 0, reads = 0;
  };
  ExpertCounts expert_counts() const;
  EncodeCounts::Stats encode_stats() const { return encode_counts_->stats(); }
  bool generates() const { return decoder_ != nullptr; }
  bool encodes_first() const { return placement_.encodes_first; }

  Runtime& decoder() const;      // computes logits and scores; throws unsupported_task if the model has no head
  Scheduler& scheduler() const;  // generates tokens with decoder()
  // Returns the runtime that computes a task. If load() has not built it, the first call builds it. Throws unsupported_task if the model
  // does not have the task.
  Runtime& runtime(Task task) const;
  EncodeQueue& queue(Task task) const;  // runs small calls of many callers of runtime(task) together; not for Task::text

  const Inspector& inspector() const { return *inspector_; }

 private:
  // A pipeline, and the runtime and the encode queue that use it.
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
  std::unique_ptr<Runner> make_runner(Pipeline pipeline, PagePool* pages) const;
  Runtime& prepared(model::Output output, const std::function<Pipeline()>& build) const;
  void require_task(Task task) const;

  std::shared_ptr<const files::ModelFile> file_;
  model::Description description_;
  const model::ModelPrograms programs_;
  Placement placement_;
  std::unique_ptr<const StageParts> parts_;
  std::vector<std::shared_ptr<const DeviceWeights>> weights_;  // packed weights, by index of the device in placement_.devices
  std::unique_ptr<const PipelineBuilder> builder_;
  std::unique_ptr<PagePool> pages_;
  const std::shared_ptr<EncodeCounts> encode_counts_ = std::make_shared<EncodeCounts>();
  mutable ProcessLock preparing_;
  // The runners, by the value of their Output; null if not built yet. The runner of Output::hidden runs the model layer by layer.
  mutable std::array<std::unique_ptr<Runner>, model::kOutputs> runners_;
  std::unique_ptr<const Inspector> inspector_;
  std::uint64_t fingerprint_ = 0;
  std::string made_by_;
  mutable ProcessLock drafting_;
  mutable std::weak_ptr<Drafter> drafter_;
  // These two members are the last, so that they are destroyed first. This ends the engine thread, which uses the members above.
  std::unique_ptr<Runner> decoder_;
  std::unique_ptr<Scheduler> scheduler_;
};

// Computes the placement without loading the model. If the model does not fit, Placement::problem is set, and nothing is thrown.
Placement plan(std::shared_ptr<const files::ModelFile> file, const LoadOptions& options);

}  // namespace pumice::engine
