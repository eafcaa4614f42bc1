// The operations that carry a state from row to row: Conv and Scan.
#include <algorithm>
#include <cstring>
#include <span>

#include "cpu/steps/steps.h"

namespace pumice::cpu {
namespace {

// A segment may continue from a saved state, in which each Conv and Scan has values of its own. Returns the values with index `id`, or null
// if the operation has none or the segment continues from no state.
const float* state_before(const Run& run, const Segment& segment, StateId id) {
  return id == StateId::none || segment.state < 0 ? nullptr : run.store->state(segment.state, id);
}

std::span<const SavedState> saves_of(const Segment& segment, StateId id) {
  return id == StateId::none ? std::span<const SavedState>{} : segment.saves;
}

// Returns row `row` of a convolution's input, counted from the segment's first row, or null if the row is zeros. Negative rows are in the
// state before the segment.
const float* conv_row(const Run& run, const Conv& op, const Segment& segment, const float* before, std::int64_t row) {
  if (row >= 0) return row < segment.rows ? run.row(op.in, segment.first + row) : nullptr;
  const std::int64_t kept = op.width - 1 + row;
  return before && kept >= 0 ? before + kept * round_up(std::int64_t{op.in.width}, kStripCols) : nullptr;
}

}  // namespace

Cut cut(const Run& run, const ConvStep& s) { return cut_rows(run.rows_of(Rows::tokens), std::int64_t{s.op.in.width} * s.op.width); }
void task(const Run& run, const ConvStep& s, const Cut& cut, std::int64_t index, int) {
  const Conv& op = s.op;
  const float *taps = run.weights.vector(op.taps), *bias = run.weights.vector(op.bias);
  const Range rows = cut.task_rows(index);
  const std::int64_t stride = round_up(std::int64_t{op.in.width}, kStripCols);
  const float* read[kMaxTaps];
  std::size_t at = 0;
  for (std::int64_t r = rows.first; r < rows.first + rows.count; ++r) {
    run.position_of(r, at);
    const Segment& segment = run.batch.segments[at];
    const float* before = state_before(run, segment, op.state);
    const std::int64_t own = r - segment.first, first = own - (op.centred ? (op.width - 1) / 2 : op.width - 1);
    for (std::int32_t j = 0; j < op.width; ++j) read[j] = conv_row(run, op, segment, before, first + j);
    run.kernels.rows.conv(read, taps, bias, op.width, op.activation, op.in.width, run.row(op.out, r));
    for (const SavedState& saved : saves_of(segment, op.state)) {
      if (saved.rows != own + 1) continue;
      float* to = run.store->state(saved.state, op.state);
      for (std::int32_t j = 1; j < op.width; ++j, to += stride) {
        std::fill_n(to, stride, 0.0f);
        if (read[j]) std::memcpy(to, read[j], static_cast<std::size_t>(op.in.width) * sizeof(float));
      }
    }
  }
}

namespace {

// Computes one head of one segment. The strips of the head's state are computed one after another, so that a strip stays in the L1 cache
// during its computation.
class HeadScan {
 public:
  HeadScan(const Run& run, const Scan& op, const Segment& segment, std::int64_t head, float* scratch)
      : run_(run),
        op_(op),
        segment_(segment),
        head_(head),
        decay_(scratch),
        gain_(decay_ + round_up(std::int64_t{segment.rows}, kStripCols)) {
    zeros_ = gain_ + round_up(std::int64_t{segment.rows}, kStripCols);
    own_ = zeros_ + strip_floats();
    if (!state_before(run, segment, op.state)) std::fill_n(zeros_, strip_floats(), 0.0f);
    const bool delta = op.rule == ScanRule::delta;
    const ScanGates gates{.step = run.row(op.step, segment.first) + head,
                          .beta = delta ? run.row(op.beta, segment.first) + head : nullptr,
                          .step_stride = run.stride(op.step),
                          .beta_stride = delta ? run.stride(op.beta) : 0,
                          .step_bias = value_of(op.step_bias),
                          .rate = value_of(op.rate),
                          .floor = op.floor,
                          .strength = op.strength};
    run.kernels.rows.scan_gates(gates, segment.rows, decay_, gain_);
  }

  void run() const {
    for (std::int64_t strip = 0; strip < strips_of(op_.value_dim) && !run_.cancel.requested(); ++strip) run_strip(strip);
  }

 private:
  std::int64_t strip_floats() const { return std::int64_t{op_.key_dim} * kStripCols; }
  float value_of(VectorId id) const { return id == VectorId::none ? 0.0f : run_.weights.vector(id)[head_]; }

  void run_strip(std::int64_t strip) const {
    const std::int64_t at = (head_ * strips_of(op_.value_dim) + strip) * strip_floats();
    const float* from = state_before(run_, segment_, op_.state);
    from = from ? from + at : zeros_;
    std::int64_t done = 0;
    for (const SavedState& saved : saves_of(segment_, op_.state)) {
      float* to = run_.store->state(saved.state, op_.state) + at;
      run_rows(strip, done, saved.rows - done, from, to);
      done = saved.rows;
      from = to;
    }
    if (done < segment_.rows) run_rows(strip, done, segment_.rows - done, from, own_);
  }

  void run_rows(std::int64_t strip, std::int64_t first, std::int64_t rows, const float* from, float* to) const {
    const std::int64_t heads = op_.v.width / op_.value_dim, r = segment_.first + first;
    const std::int64_t key_head = op_.tiled ? head_ % op_.key_heads : head_ / (heads / op_.key_heads), col = strip * kStripCols;
    const ScanCall call{.q = run_.row(op_.q, r) + key_head * op_.key_dim,
                        .k = run_.row(op_.k, r) + key_head * op_.key_dim,
                        .v = run_.row(op_.v, r) + head_ * op_.value_dim + col,
                        .q_stride = run_.stride(op_.q),
                        .k_stride = run_.stride(op_.k),
                        .v_stride = run_.stride(op_.v),
                        .decay = decay_ + first,
                        .gain = gain_ + first,
                        .key_dim = op_.key_dim,
                        .rule = op_.rule,
                        .skip = value_of(op_.skip),
                        .out = run_.row(op_.out, r) + head_ * op_.value_dim + col,
                        .out_stride = run_.stride(op_.out)};
    run_.kernels.rows.scan(call, rows, static_cast<int>(std::min<std::int64_t>(kStripCols, op_.value_dim - col)), from, to);
  }

  const Run& run_;
  const Scan& op_;
  const Segment& segment_;
  const std::int64_t head_;
  float *decay_, *gain_;  // one number per row
  // zeros_ is the state strip at the beginning of a text. own_ gets the strip after the segment's last row if that state is not saved.
  float *zeros_, *own_;
};

}  // namespace

// A task is one head of one segment.
Cut cut(const Run& run, const ScanStep& s) {
  const auto segments = static_cast<std::int64_t>(run.batch.segments.size());
  Cut cut{.rows = {0, segments * (s.op.v.width / s.op.value_dim)}};
  cut.per_task = std::max<std::int64_t>(1, ceil_div(cut.rows.count, kMaxTasks));
  cut.tasks = ceil_div(cut.rows.count, cut.per_task);
  return cut;
}
void task(const Run& run, const ScanStep& s, const Cut& cut, std::int64_t index, int thread) {
  const std::int64_t heads = s.op.v.width / s.op.value_dim;
  const Range units = cut.task_rows(index);
  for (std::int64_t u = units.first; u < units.first + units.count && !run.cancel.requested(); ++u) {
    const Segment& segment = run.batch.segments[static_cast<std::size_t>(u / heads)];
    HeadScan(run, s.op, segment, u % heads, reinterpret_cast<float*>(run.scratch_of(thread))).run();
  }
}

}  // namespace pumice::cpu
