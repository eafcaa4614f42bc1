// A loaded model: its description, where it lies, and the pipelines that run it. Immutable after load but for the page pool;
// any number of threads may use it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/embedder.h"
#include "engine/generator.h"
#include "engine/page_pool.h"
#include "engine/pipeline.h"
#include "engine/placement.h"
#include "engine/scorer.h"
#include "files/model_file.h"
#include "model/description.h"

namespace pumice::engine {

class Model {
 public:
  // Reads and packs all weights. `progress` gets bytes packed so far (of Placement::weights), from one thread at a time.
  static std::shared_ptr<Model> load(std::shared_ptr<const files::ModelFile> file, const LoadOptions& options, const Progress& progress,
                                     const Cancel& cancel);
  // The same against given devices, layers shared evenly: how tests split a model over two.
  static std::shared_ptr<Model> load_on(std::vector<std::shared_ptr<Backend>> backends, std::shared_ptr<const files::ModelFile> file,
                                        const LoadOptions& options, const Progress& progress, const Cancel& cancel);

  const model::Description& description() const { return description_; }
  const Placement& placement() const { return placement_; }
  const files::ModelFile& file() const { return *file_; }
  const std::vector<std::shared_ptr<Backend>>& backends() const { return backends_; }
  PoolKind pooling() const { return pooling_; }
  bool generates() const { return decoder_ != nullptr; }

  // Throw unsupported_task when the model is of the other kind.
  const Pipeline& decoder() const;
  PagePool& pages() const;
  const Pipeline& pooled() const;
  const Pipeline& tokens() const;
  const Pipeline& classes() const;

 private:
  Model() = default;
  Pipeline build_pipeline(model::Output output, const std::vector<std::shared_ptr<const DeviceWeights>>& weights, const LoadOptions& options) const;
  [[noreturn]] void wrong_task(const char* call, const char* needs, const char* instead) const;

  std::shared_ptr<const files::ModelFile> file_;
  model::Description description_;
  Placement placement_;
  std::vector<std::shared_ptr<Backend>> backends_;
  PoolKind pooling_ = PoolKind::mean;
  std::unique_ptr<Pipeline> decoder_, pooled_, tokens_, classes_;
  std::unique_ptr<PagePool> pages_;
};

// Placement without loading.
Placement plan(std::shared_ptr<const files::ModelFile> file, const LoadOptions& options);

}  // namespace pumice::engine
