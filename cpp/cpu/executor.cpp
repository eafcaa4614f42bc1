#include "cpu/executor.h"

#include "core/checked.h"
#include "cpu/scratch.h"
#include "cpu/steps/steps.h"

namespace pumice::cpu {
namespace {

// Runs the steps of a plan in order. The steps of the plan's tail (CpuPlan::tail) run once for each block of rows.
class BatchRun final : public Job {
 public:
  BatchRun(const Run& run, Shares& shares) : run_(run), shares_(shares) {}

  std::int64_t next(int thread) override {
    const CpuPlan& plan = run_.plan;
    for (;;) {
      if (step_ == plan.steps.size()) {
        if (plan.tail == plan.steps.size() || run_.tail_row + kTailRows >= run_.batch.rows) return 0;
        run_.tail_row += kTailRows;
        step_ = plan.tail;
      }
      run_.in_tail = step_ >= plan.tail;
      now_ = &plan.steps[step_++];
      cut_ = std::visit([&](const auto& s) { return cut(run_, s); }, *now_);
      if (cut_.tasks == 0) continue;
      if (cut_.shared_out) shares_.deal(cut_.tasks);
      if (cut_.tasks > 1) return cut_.tasks;
      run_.cancel.check();
      task(0, thread);  // a single task runs here, because a phase for one task would cost a barrier
    }
  }

  void task(std::int64_t index, int thread) override {
    // If Shares distributes the tasks, `index` only shows that the team granted this thread a task, and Shares chooses the task.
    if (cut_.shared_out) index = shares_.take(thread);
    std::visit([&](const auto& s) { cpu::task(run_, s, cut_, index, thread); }, *now_);
  }

 private:
  // run_, step_, now_ and cut_ are written only between phases, so the tasks of a phase can read them without a lock.
  Run run_;
  std::size_t step_ = 0;
  const Step* now_ = nullptr;
  Cut cut_;

  Shares& shares_;
};

class Busy {
 public:
  explicit Busy(ScratchSpace& space) : space_(space) { require(!space_.busy.exchange(true), "a workspace serves one run at a time"); }
  ~Busy() { space_.busy.store(false); }

 private:
  ScratchSpace& space_;
};

}  // namespace

// ---------------------------------------------------------------- the executable
ProgramExecutable::ProgramExecutable(Program program, std::shared_ptr<const PackedWeights> weights, Compute compute,
                                     std::shared_ptr<TeamHolder> team)
    : program_(std::move(program)),
      weights_(std::move(weights)),
      shapes_(shapes_of(*weights_)),
      plan_(lower(program_, shapes_, compute, folded_of(*weights_))),
      team_(std::move(team)) {
  std::size_t widest = 0;
  for (Step& step : plan_.steps) {
    if (auto* linear = std::get_if<LinearStep>(&step))
      for (ProductPart& part : linear->parts) fold_bias(part, linear->op.scale);
    if (auto* gated = std::get_if<GatedStep>(&step)) fold_bias(gated->gate, 1), fold_bias(gated->up, 1);
    if (const auto* norm = std::get_if<NormStep>(&step)) widest = std::max(widest, static_cast<std::size_t>(norm->op.in.width));
  }
  constants_.ones.assign(widest, 1.0f);
  constants_.zeros.assign(widest, 0.0f);
}

// Computes the bias that replaces a part's own bias b if a norm is folded into the part's matrix W (Folded). W multiplies the norm's output
// x = weight * y + bias. The result of the part is scale W x + b = scale (W weight) y + (scale W bias + b). The term in the last
// parentheses is the new bias.
void ProgramExecutable::fold_bias(ProductPart& part, float scale) {
  const PackedMatrix& matrix = weights_->matrix(part.weight);
  if (!matrix.folded) return;
  std::vector<float> bias(matrix.product_of_bias, matrix.product_of_bias + matrix.rows);
  const float* own = weights_->vector(part.bias);
  for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = scale * bias[i] + (own ? own[i] : 0);
  part.folded_bias = static_cast<std::int32_t>(constants_.folded_biases.size());
  constants_.folded_biases.push_back(std::move(bias));
}

void ProgramExecutable::run(Workspace& workspace, CacheStore* caches, const Batch& batch, const Io& io, const Cancel& cancel) const {
  auto* space = dynamic_cast<ScratchSpace*>(&workspace);
  const auto* store = dynamic_cast<PageStore*>(caches);
  require(space != nullptr && (caches == nullptr || store != nullptr), "program '", program_.name,
          "': a workspace or caches of another device");
  cancel.check();
  const Busy busy(*space);
  check_batch(program_, plan_.facts, shapes_, batch, io);
  if (!program_.caches.empty()) {
    require(store != nullptr, "program '", program_.name, "': needs caches");
    check_pages(program_, store->shapes(), store->pages(), batch);
  }
  if (!program_.states.empty()) {
    require(store != nullptr, "program '", program_.name, "': needs states");
    check_states(program_, store->state_shapes(), store->states(), batch);
  }
  if (batch.rows == 0) return;
  space->layout.arrange(plan_, batch, space->threads);
  space->fit();
  if (plan_.most_chosen > 0) space->pairs.reserve(batch.rows, plan_.most_chosen, plan_.most_experts);
  space->pages.clear();
  for (std::size_t s = 0; !program_.caches.empty() && s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    const std::int64_t pages = ceil_div(std::int64_t{segment.past} + segment.rows, kPageTokens);
    for (std::int64_t p = 0; p < pages; ++p) space->pages.push_back(store->page(segment.pages[static_cast<std::size_t>(p)]));
  }
  ExpertPass experts(weights_->cache());
  BatchRun run({plan_, *weights_, constants_, *space, store, batch, io, cancel, kernels(), space->pairs, experts}, space->shares);
  if (space->crew == Crew::team) {
    team_->get().run(run, cancel);
  } else {
    run_alone(run, cancel);
  }
  cancel.check();  // throws if the run was cancelled, because some rows are then not computed
}

}  // namespace pumice::cpu
