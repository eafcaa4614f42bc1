// A slow backend for tests, whose results count as right. It computes every operation in double precision, directly from the operation's
// definition. It supports all that a device must (several sequences, cache pages, selected rows), so that a program can be split between it
// and another device.
#pragma once

#include <memory>
#include <string>

#include "core/backend.h"

namespace pumice::reference {

class ReferenceBackend : public Backend {
 public:
  explicit ReferenceBackend(std::string id = "reference", int workers = 1) : id_(std::move(id)), workers_(workers) {}

  DeviceInfo info() const override;
  std::shared_ptr<const DeviceWeights> pack(const Weights& weights, std::span<const Program* const> programs, const Progress& progress,
                                            const Cancel& cancel, std::uint64_t expert_bytes = kAllExperts) override;
  // The caches hold keys and values in double precision, whatever `format` is. Pages hold NaN until they are written.
  std::unique_ptr<CacheStore> make_caches(const Program& program, KvFormat format) override;
  void foresee(const Program&, const Weights&, Compute, const Cancel&) override {}
  std::shared_ptr<const Executable> prepare(Program program, std::shared_ptr<const DeviceWeights> weights, Compute compute,
                                            const Cancel& cancel = Cancel()) override;
  std::unique_ptr<Workspace> make_workspace(Crew crew) override;
  Cost cost(const Program& program, const WeightShapes& weights, KvFormat format, std::int64_t rows) const override;
  int workers() const override { return workers_; }
  std::int64_t batch_rows() const override { return 64; }
  void parallel(std::int64_t jobs, const std::function<void(std::int64_t index, int worker)>& job, const Cancel& cancel) override;

 private:
  std::string id_;
  int workers_;
};

}  // namespace pumice::reference
