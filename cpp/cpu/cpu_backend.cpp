#include "cpu/cpu_backend.h"

#include <utility>

#include "core/checked.h"
#include "cpu/blas.h"
#include "cpu/cache_store.h"
#include "cpu/executor.h"
#include "cpu/kernels.h"
#include "cpu/lowering.h"
#include "cpu/packed_weights.h"
#include "cpu/sketch.h"
#include "cpu/team.h"
#include "os/limits.h"

namespace pumice::cpu {
namespace {

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int threads) : team_(std::make_shared<TeamHolder>(threads)) {
    // Both functions read an environment variable. They are called here so that a wrong value throws here and not in the middle of a load.
    kernels();
    sgemm_by_blas();
  }

  DeviceInfo info() const override {
    DeviceInfo info;
    info.id = "cpu";
    info.name = str(os::cpu_model(), " (", workers(), workers() == 1 ? " thread, " : " threads, ", kernels().isa, ")");
    info.type = DeviceType::cpu;
    info.driver = str(kernels().isa, sgemm_by_blas() ? str(", ", blas_name(), " for float32") : std::string(", own kernels"));
    const os::Memory now = os::memory();
    info.memory_total = now.total;
    info.memory_free = now.free;
    info.features = {kernels().isa};
    return info;
  }

  std::shared_ptr<const DeviceWeights> pack(const Weights& weights, std::span<const Program* const> programs, const Progress& progress,
                                            const Cancel& cancel, std::uint64_t expert_bytes) override {
    return std::make_shared<PackedWeights>(weights, programs, team_->get(), progress, cancel, expert_bytes);
  }

  std::unique_ptr<CacheStore> make_caches(const Program& program, KvFormat format) override {
    return std::make_unique<PageStore>(program, format);
  }

  void foresee(const Program&, const Weights&, Compute, const Cancel&) override {}

  std::shared_ptr<const Executable> prepare(Program program, std::shared_ptr<const DeviceWeights> weights, Compute compute,
                                            const Cancel&) override {
    auto packed = std::dynamic_pointer_cast<const PackedWeights>(std::move(weights));
    require(packed != nullptr, "program '", program.name, "': weights of another device");
    return std::make_shared<ProgramExecutable>(std::move(program), std::move(packed), compute, team_);
  }

  std::unique_ptr<Workspace> make_workspace(Crew crew) override { return std::make_unique<ScratchSpace>(crew, workers()); }

  Cost cost(const Program& program, const WeightShapes& weights, KvFormat format, std::int64_t rows) const override {
    require(rows >= 0 && rows <= INT32_MAX - kPageTokens, "cost of ", rows, " rows");
    const CpuPlan plan = lower(program, weights, Compute::automatic);
    Cost cost;
    const Program* programs[] = {&program};
    const std::vector<bool> sketched = sketched_matrices(programs, weights);
    for (std::size_t m = 0; m < weights.matrices.size(); ++m) {
      if (!plan.facts.used[m]) continue;
      auto sum = checked_add(cost.weights, packed_bytes(weights.matrices[m]));
      if (sum && sketched[m]) sum = checked_add(*sum, sketch_bytes(weights.matrices[m]));
      if (!sum) fail(ErrorKind::out_of_memory, "program '", program.name, "': weights of more bytes than can be addressed");
      cost.weights = *sum;
    }
    const ExpertBytes experts = expert_bytes(expert_layers(programs), weights);
    cost.experts = experts.all;
    cost.experts_least = experts.least;
    cost.page = cache_page_bytes(program.caches, format);
    cost.state = state_bytes(program.states);
    if (rows == 0) return cost;
    // The scratch memory is computed for a batch that has one text of `rows` tokens and selects all its rows.
    const Segment text{0, static_cast<std::int32_t>(rows), 0, {}};
    const std::vector<std::int32_t> selected(plan.facts.takes_selected ? static_cast<std::size_t>(rows) : 0);
    Batch batch;
    batch.rows = text.rows;
    batch.segments = {&text, 1};
    batch.selected = selected;
    BatchLayout layout;
    layout.arrange(plan, batch, workers());
    cost.scratch = scratch_capacity(layout.total);
    return cost;
  }

  std::int32_t ranks(const MatrixShape& head, std::uint64_t step_bytes) const override { return sketch_ranks(head, step_bytes); }

  // Returns the number of token rows in an encoder's batch. Products divide 144 rows into two blocks of 72 rows (block_rows()), which are
  // whole tiles of 6 rows. The activations of 144 rows of a small encoder fit in a core's L2 cache or are only a little larger.
  std::int64_t batch_rows() const override { return 144; }

  int workers() const override { return team_->threads(); }

  void parallel(std::int64_t jobs, const std::function<void(std::int64_t index, int worker)>& job, const Cancel& cancel) override {
    team_->get().parallel(jobs, job, cancel);
  }

 private:
  std::shared_ptr<TeamHolder> team_;
};

}  // namespace

std::shared_ptr<Backend> make_backend(int threads) {
  require(threads >= 0 && threads <= kMaxThreads, "threads is ", threads, "; needed: 0 (automatic) to ", kMaxThreads);
  return std::make_shared<CpuBackend>(threads == 0 ? os::default_threads() : threads);
}

}  // namespace pumice::cpu
