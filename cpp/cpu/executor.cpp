#include "cpu/executor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "core/checked.h"
#include "cpu/blas.h"
#include "cpu/kernels.h"

namespace pumice::cpu {
namespace {

// ---------------------------------------------------------------- how work is cut
// Of these, and those in executor.h, none changes a bit of the result (kernels.h).
constexpr std::int64_t kTaskBytes = 24 * 1024;        // of weights: 1 to 2 us
constexpr std::int64_t kMostTaskBytes = 256 * 1024;   // about 15 us: what a thread can lag behind at the end of a step
constexpr std::int64_t kTaskFloats = 16 * 1024;       // of a step over rows: 2 to 5 us
constexpr std::int64_t kTaskMacs = 64 * 1024;         // of attention
constexpr std::int64_t kTileFloats = 8 * 1024;        // scratch for the second product of a gated step
constexpr std::int64_t kLine = 64;

std::uint64_t align_line(std::uint64_t n) {
  const auto aligned = checked_align(n, kLine);
  if (!aligned) fail(ErrorKind::out_of_memory, "cpu: scratch of more bytes than can be addressed");
  return *aligned;
}
std::uint64_t bytes_of(std::int64_t a, std::int64_t b) {
  return static_cast<std::uint64_t>(mul_or_fail<std::int64_t>(a, b, "cpu: scratch"));
}

std::int64_t unit_rows(const AttendShape& shape) { return std::max<std::int64_t>(1, kMaxQueries / shape.group); }
// Groups of more heads than one call takes.
std::int64_t head_splits(const AttendShape& shape) { return ceil_div(shape.group, kMaxQueries); }

struct Keys {  // [first, end)
  std::int64_t first, end;
  std::int64_t first_chunk() const { return first / kChunkKeys; }
  std::int64_t last_chunk() const { return (end - 1) / kChunkKeys; }
};
Keys keys_of(const AttendShape& shape, const Segment& segment, std::int64_t row) {
  if (shape.causal) {
    const std::int64_t position = segment.past + row;
    return {shape.window > 0 ? std::max<std::int64_t>(0, position - shape.window + 1) : 0, position + 1};
  }
  const std::int64_t seen = segment.rows - segment.unseen;
  if (shape.window == 0) return {0, seen};
  return {std::max<std::int64_t>(0, row - shape.window), std::min<std::int64_t>(seen, row + shape.window + 1)};
}

struct Unit {
  std::size_t segment;
  int kv_head;
  std::int64_t row, rows;     // of the segment
  std::int64_t head, heads;   // of the group
  std::int64_t first_chunk, last_chunk;
};
Unit unit_at(const AttendShape& shape, const AttendSchedule& schedule, const Batch& batch, std::int64_t index) {
  const auto after = std::upper_bound(schedule.first_unit.begin(), schedule.first_unit.end(), index);
  Unit unit;
  unit.segment = static_cast<std::size_t>(after - schedule.first_unit.begin()) - 1;
  const Segment& segment = batch.segments[unit.segment];
  const std::int64_t blocks = ceil_div(segment.rows, unit_rows(shape)), splits = head_splits(shape);
  std::int64_t local = index - schedule.first_unit[unit.segment];
  unit.kv_head = static_cast<int>(local / (blocks * splits));  // the units of one kv head follow each other: its pages stay near
  local %= blocks * splits;
  unit.head = local % splits * kMaxQueries;
  unit.heads = std::min<std::int64_t>(kMaxQueries, shape.group - unit.head);
  unit.row = local / splits * unit_rows(shape);
  unit.rows = std::min(unit_rows(shape), segment.rows - unit.row);
  unit.first_chunk = keys_of(shape, segment, unit.row).first_chunk();
  unit.last_chunk = keys_of(shape, segment, unit.row + unit.rows - 1).last_chunk();
  return unit;
}

void schedule(const AttendShape& shape, const Batch& batch, int threads, AttendSchedule& out) {
  out.first_unit.clear();
  out.pieces.clear();
  out.first_piece.clear();
  out.units = 0;
  out.most_chunks = 1;
  out.partial_floats = 0;
  double macs = 0;
  for (const Segment& segment : batch.segments) {
    out.first_unit.push_back(out.units);
    out.units += shape.kv_heads * ceil_div(segment.rows, unit_rows(shape)) * head_splits(shape);
    const Keys last = keys_of(shape, segment, segment.rows - 1);
    const std::int64_t most_keys = shape.window > 0 ? std::min(last.end, 2 * std::int64_t{shape.window} + kMaxQueries) : last.end;
    out.most_chunks = std::max(out.most_chunks, std::min(last.last_chunk() + 1, most_keys / kChunkKeys + 2));
    macs += 2.0 * static_cast<double>(segment.rows) * shape.kv_heads * shape.group * shape.head_dim * static_cast<double>(most_keys);
  }
  out.first_unit.push_back(out.units);
  const double per_unit = macs / static_cast<double>(std::max<std::int64_t>(1, out.units));
  out.units_per_task = std::max<std::int64_t>(1, static_cast<std::int64_t>(kTaskMacs / std::max(1.0, per_unit)));
  out.units_per_task = std::max(out.units_per_task, ceil_div(out.units, kMaxTasks));
  out.split = threads > 1 && out.units < 4 * threads && out.most_chunks > 1;
  if (!out.split) return;
  for (std::int64_t u = 0; u < out.units; ++u) {
    const Unit unit = unit_at(shape, out, batch, u);
    out.first_piece.push_back(static_cast<std::int64_t>(out.pieces.size()));
    for (std::int64_t chunk = unit.first_chunk; chunk <= unit.last_chunk; ++chunk) {
      out.pieces.push_back({u, chunk, out.partial_floats});
      out.partial_floats += unit.rows * unit.heads * (shape.head_dim + 2);
    }
  }
  out.first_piece.push_back(static_cast<std::int64_t>(out.pieces.size()));
}

}  // namespace

std::int64_t block_rows(std::int64_t rows) {
  return std::min(rows, round_up(ceil_div(rows, ceil_div(rows, kBlockRows)), 12));
}

// ---------------------------------------------------------------- memory of a batch
void BatchLayout::arrange(const CpuPlan& plan, const Batch& batch, int threads) {
  rows[static_cast<int>(Rows::tokens)] = batch.rows;
  rows[static_cast<int>(Rows::segments)] = static_cast<std::int64_t>(batch.segments.size());
  rows[static_cast<int>(Rows::selected)] = static_cast<std::int64_t>(batch.selected.size());

  page_runs.clear();
  first_page.clear();
  std::int64_t pages = 0, most_pages = 1;
  for (std::size_t s = 0; plan.facts.takes_segments && s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    first_page.push_back(pages);
    const std::int64_t of_segment = ceil_div(std::int64_t{segment.past} + segment.rows, kPageTokens);
    pages += of_segment;
    most_pages = std::max(most_pages, of_segment);
    for (std::int32_t row = 0; row < segment.rows;) {
      const std::int32_t position = segment.past + row;
      const std::int32_t count = std::min(segment.rows - row, kPageTokens - position % kPageTokens);
      page_runs.push_back({static_cast<std::int32_t>(s), segment.first + row, count, position});
      row += count;
    }
  }
  first_page.push_back(pages);

  total = 0;
  const auto take = [&](std::uint64_t bytes) {
    const std::uint64_t at = total;
    const auto sum = checked_add(total, align_line(bytes));
    if (!sum) fail(ErrorKind::out_of_memory, "cpu: scratch of more bytes than can be addressed");
    total = *sum;
    return at;
  };
  area_at.clear();
  for (const Area& area : plan.areas) {
    const std::int64_t count = rows[static_cast<int>(area.rows)];
    area_at.push_back(take(bytes_of(area.in_blocks ? std::min(count, kTailRows) : count, area.row_bytes) + 2 * kLine));
  }
  turns_at.clear();
  for (const RopeTable& table : plan.turns) turns_at.push_back(take(bytes_of(batch.rows, std::int64_t{8} * std::ssize(table.inv_freq))));

  attends.resize(plan.attends.size());
  std::uint64_t kept = 0, partials = 0, per_thread = 0;
  if (plan.gated) per_thread = bytes_of(kTileFloats, sizeof(float));
  per_thread = std::max(per_thread, 2 * align_line(bytes_of(plan.widest_embedding, sizeof(float))));
  for (std::size_t a = 0; a < attends.size(); ++a) {
    const AttendShape& shape = plan.attends[a];
    schedule(shape, batch, threads, attends[a]);
    if (!shape.cached) kept = std::max(kept, bytes_of(pages * shape.kv_heads, kv_page_bytes(KvFormat::f32, shape.head_dim)));
    partials = std::max(partials, bytes_of(attends[a].partial_floats, sizeof(float)));
    const std::int64_t own = attends[a].split ? 0 : attends[a].most_chunks * kMaxQueries * (shape.head_dim + 2);
    per_thread = std::max(per_thread, align_line(bytes_of(most_pages, sizeof(std::uint8_t*))) + align_line(bytes_of(own, sizeof(float))));
  }
  kept_at = take(kept);
  partials_at = take(partials);
  thread_bytes = align_line(per_thread) + 2 * kLine;  // threads' pieces never share a line, nor a pair of them
  threads_at = take(bytes_of(static_cast<std::int64_t>(thread_bytes), threads));
}

// Steps of an eighth: batches of slowly growing size do not allocate each time.
std::uint64_t scratch_capacity(std::uint64_t needed) {
  std::uint64_t step = 4096;
  while (step * 16 <= needed) step *= 2;
  return (needed + step - 1) / step * step;
}

void ScratchSpace::fit() {
  constexpr std::uint64_t kWorthGivingBack = 32 << 20;
  const std::uint64_t wanted = scratch_capacity(layout.total);
  // A long prompt between single steps keeps its scratch; sixteen small runs in a row give it back.
  far_too_large = scratch.bytes() > kWorthGivingBack && wanted < scratch.bytes() / 4 ? far_too_large + 1 : 0;
  if (wanted <= scratch.bytes() && far_too_large < 16) return;
  scratch = Buffer();
  far_too_large = 0;
  if (wanted > kWorthGivingBack) check_memory(wanted, "the scratch memory of a run");
  scratch = Buffer(wanted, "the scratch memory of a run");
}

// ---------------------------------------------------------------- one run
namespace {

class BatchRun final : public Job {
 public:
  BatchRun(const ProgramExecutable& executable, ScratchSpace& space, const PageStore* store, const Batch& batch, const Io& io,
           const Cancel& cancel)
      : exe_(executable), plan_(executable.plan()), weights_(executable.weights()), space_(space), layout_(space.layout), store_(store),
        batch_(batch), io_(io), cancel_(cancel), kernels_(kernels()) {}

  std::int64_t next(int thread) override {
    for (;;) {
      if (step_ == plan_.steps.size()) {
        if (plan_.tail == plan_.steps.size() || tail_row_ + kTailRows >= batch_.rows) return 0;
        tail_row_ += kTailRows;
        step_ = plan_.tail;
      }
      const Step& step = plan_.steps[step_];
      in_tail_ = step_ >= plan_.tail;
      ++step_;
      shared_out_ = false;
      const std::int64_t tasks = std::visit([&](const auto& s) { return this->tasks(s); }, step);
      if (tasks == 0) continue;
      now_ = &step;
      if (shared_out_) space_.shares.deal(tasks);
      if (tasks > 1) return tasks;
      cancel_.check();
      task(0, thread);  // not worth a barrier
    }
  }

  void task(std::int64_t index, int thread) override {
    if (shared_out_) index = space_.shares.take(thread);
    std::visit([&](const auto& s) { this->run(s, index, thread); }, *now_);
  }

 private:
  // ------------------------------------------------------------ rows and memory
  struct Range { std::int64_t first, count; };
  Range rows_of(Rows rows) const {
    const std::int64_t count = layout_.rows[static_cast<int>(rows)];
    return in_tail_ ? Range{tail_row_, std::min(kTailRows, count - tail_row_)} : Range{0, count};
  }
  const SlotPlace& slot(const View& view) const { return plan_.slots[static_cast<std::size_t>(view.slot)]; }
  std::int64_t stride(const View& view) const { return slot(view).stride; }
  std::uint8_t* area(std::int32_t a) const { return space_.scratch.data() + layout_.area_at[static_cast<std::size_t>(a)]; }
  std::int64_t first_row(std::int32_t a) const { return plan_.areas[static_cast<std::size_t>(a)].in_blocks ? tail_row_ : 0; }

  float* row(const View& view, std::int64_t r) const {
    const SlotPlace& place = slot(view);
    if (place.area < 0) return io_.out.data() + r * place.stride + view.col;
    return reinterpret_cast<float*>(area(place.area)) + (r - first_row(place.area)) * place.stride + view.col;
  }

  const QuantizedPlace& place_of(std::int32_t q) const { return plan_.quantized[static_cast<std::size_t>(q)]; }
  std::int64_t rows_at(const QuantizedPlace& place) const {
    const std::int64_t all = layout_.rows[static_cast<int>(place.rows)];
    return place.terms() * (plan_.areas[static_cast<std::size_t>(place.area)].in_blocks ? std::min(all, kTailRows) : all);
  }
  FixedRows fixed(std::int32_t q) const {
    const QuantizedPlace& place = place_of(q);
    FixedRows rows;
    rows.cols = place.cols;
    rows.rows = rows_at(place);
    rows.codes = reinterpret_cast<std::int16_t*>(area(place.area));
    const std::int64_t blocks = rows.rows * ceil_div(rows.cols, kFixedBlock);
    rows.scales = reinterpret_cast<float*>(rows.codes + blocks * kFixedBlock);
    rows.starts = reinterpret_cast<std::int32_t*>(rows.scales + blocks);
    return rows;
  }
  // Codes of 8 bits, as the instruction set takes them.
  FixedRows words(std::int32_t q) const {
    const QuantizedPlace& place = place_of(q);
    FixedRows rows{.codes = reinterpret_cast<std::int16_t*>(area(place.area)), .rows = rows_at(place), .cols = place.cols};
    rows.scales = reinterpret_cast<float*>(rows.codes + rows.rows * rows.cols);
    rows.starts = reinterpret_cast<std::int32_t*>(rows.scales + rows.rows * (rows.cols / kByteBlock));
    return rows;
  }
  ByteRows bytes(std::int32_t q) const {
    const QuantizedPlace& place = place_of(q);
    ByteRows rows{.codes = area(place.area), .rows = rows_at(place), .cols = place.cols};
    rows.scales = reinterpret_cast<float*>(rows.codes + rows.rows * rows.cols);
    rows.zeros = reinterpret_cast<std::int32_t*>(rows.scales + rows.rows * (rows.cols / kByteBlock));
    return rows;
  }
  bool in_bytes() const { return kernels_.matrix.bytes.of_bytes != nullptr; }

  QuantRows quantized(std::int32_t q) const {
    const QuantizedPlace& place = place_of(q);
    QuantRows rows;
    rows.cols = place.cols;
    rows.rows = rows_at(place);
    std::uint8_t* at = area(place.area);
    rows.codes = reinterpret_cast<std::int8_t*>(at);
    at += round_up(rows.rows * rows.cols, kLine);
    rows.scales = reinterpret_cast<float*>(at);
    at += round_up(rows.rows * (rows.cols / kQuantBlock) * static_cast<std::int64_t>(sizeof(float)), kLine);
    rows.sums = reinterpret_cast<std::int32_t*>(at);
    return rows;
  }
  std::int64_t quantized_row(std::int32_t q, std::int64_t r) const { return place_of(q).terms() * (r - first_row(place_of(q).area)); }
  void quantize(const float* in, std::int64_t in_stride, std::int32_t q, std::int64_t first, std::int64_t count) const {
    switch (place_of(q).codes) {
      case Codes::int8: return kernels_.rows.quantize(in, in_stride, count, quantized_row(q, first), quantized(q));
      case Codes::fixed: return kernels_.rows.quantize_fixed(in, in_stride, count, quantized_row(q, first), fixed(q));
      case Codes::bytes: {
        const Folded* folded = weights_.matrix(place_of(q).folded).folded;
        const Turn turn = folded ? Turn{folded->scale.data(), folded->shift.data()} : Turn{};
        if (in_bytes()) return kernels_.rows.quantize_bytes(in, in_stride, count, quantized_row(q, first), turn, bytes(q));
        return kernels_.rows.quantize_words(in, in_stride, count, quantized_row(q, first), turn, words(q));
      }
      case Codes::two_int8: {
        const QuantRows out = quantized(q);
        for (std::int64_t r = 0; r < count; ++r) quantize_twice(in + r * in_stride, quantized_row(q, first + r), out);
      }
    }
  }
  // x ~ s c + s' c': the second term is what rounding took from the first, at most s / 2, so that s' <= s / 254.
  void quantize_twice(const float* in, std::int64_t row, const QuantRows& out) const {
    constexpr std::int64_t kCols = 16 * kQuantBlock;
    float rest[kCols];
    for (std::int64_t c = 0; c < out.cols; c += kCols) {
      const std::int64_t block = c / kQuantBlock * out.rows;
      const QuantRows part{out.codes + block * kQuantBlock, out.scales + block, out.sums + 2 * block, out.rows,
                           std::min(kCols, out.cols - c)};
      kernels_.rows.quantize(in + c, part.cols, 1, row, part);
      for (std::int64_t k = 0; k < part.cols; ++k) {
        const std::int64_t at = k / kQuantBlock * part.rows + row;
        rest[k] = in[c + k] - part.scales[at] * static_cast<float>(part.codes[at * kQuantBlock + k % kQuantBlock]);
      }
      kernels_.rows.quantize(rest, part.cols, 1, row + 1, part);
    }
  }

  std::uint8_t* scratch_of(int thread) const {
    return space_.scratch.data() + layout_.threads_at + static_cast<std::uint64_t>(thread) * layout_.thread_bytes + kLine;
  }

  // Steps over rows: tasks of about kTaskFloats.
  std::int64_t row_tasks(Rows rows, std::int64_t width) {
    range_ = rows_of(rows);
    rows_per_task_ = std::max<std::int64_t>(1, kTaskFloats / width);
    rows_per_task_ = std::max(rows_per_task_, ceil_div(range_.count, kMaxTasks));
    return ceil_div(range_.count, rows_per_task_);
  }
  Range task_rows(std::int64_t index) const {
    const std::int64_t first = index * rows_per_task_;
    return {range_.first + first, std::min(rows_per_task_, range_.count - first)};
  }

  // ------------------------------------------------------------ input, embedding
  std::int64_t tasks(const InputStep& s) {
    const SlotPlace& place = plan_.slots[static_cast<std::size_t>(s.slot)];
    return row_tasks(place.rows, place.width);
  }
  void run(const InputStep& s, std::int64_t index, int) {
    const std::int32_t width = plan_.slots[static_cast<std::size_t>(s.slot)].width;
    const Range rows = task_rows(index);
    for (std::int64_t r = rows.first; r < rows.first + rows.count; ++r) {
      std::memmove(row({s.slot, 0, width}, r), io_.in.data() + r * width, static_cast<std::size_t>(width) * sizeof(float));
    }
  }

  std::int64_t tasks(const EmbedStep& s) { return row_tasks(Rows::tokens, s.op.out.width); }
  void run(const EmbedStep& s, std::int64_t index, int thread) {
    const Range rows = task_rows(index);
    const std::int64_t width = s.op.out.width;
    float* position_row = reinterpret_cast<float*>(scratch_of(thread));
    float* type_row = position_row + round_up(width, kLine / 4);
    std::size_t at = 0;
    for (std::int64_t r = rows.first; r < rows.first + rows.count; ++r) {
      float* out = row(s.op.out, r);
      weights_.matrix(s.op.tokens).unpack_row(batch_.ids[static_cast<std::size_t>(r)], out);
      if (s.op.positions != MatrixId::none) {
        weights_.matrix(s.op.positions).unpack_row(position_of(r, at), position_row);
      }
      if (s.op.types != MatrixId::none) {
        weights_.matrix(s.op.types).unpack_row(batch_.types.empty() ? 0 : batch_.types[static_cast<std::size_t>(r)], type_row);
      }
      kernels_.rows.scale_add(out, s.op.scale, s.op.positions != MatrixId::none ? position_row : nullptr,
                              s.op.types != MatrixId::none ? type_row : nullptr, width, out);
    }
  }

  // `at`: the segment of the row before, so that a walk over rows is a walk over segments.
  std::int64_t position_of(std::int64_t r, std::size_t& at) const {
    if (at >= batch_.segments.size() || r < batch_.segments[at].first) at = 0;
    const auto holds = [&](const Segment& s) { return r >= s.first && r < std::int64_t{s.first} + s.rows; };
    if (!holds(batch_.segments[at])) {
      const auto after = std::upper_bound(batch_.segments.begin(), batch_.segments.end(), r,
                                          [](std::int64_t row, const Segment& s) { return row < s.first; });
      at = static_cast<std::size_t>(after - batch_.segments.begin()) - 1;
    }
    return batch_.segments[at].past + (r - batch_.segments[at].first);
  }

  // ------------------------------------------------------------ norm, quantization
  std::int64_t tasks(const NormStep& s) { return row_tasks(slot(s.op.in).rows, s.op.in.width); }
  void run(const NormStep& s, std::int64_t index, int) {
    const Norm& op = s.op;
    const Range rows = task_rows(index);
    const std::int64_t group = op.group == 0 ? op.in.width : op.group;
    const float* weight = op.weight == VectorId::none ? exe_.ones() : weights_.vector(op.weight);
    const float* bias = op.bias == VectorId::none ? exe_.zeros() : weights_.vector(op.bias);
    for (std::int64_t r = rows.first; r < rows.first + rows.count; ++r) {
      const float* in = row(op.in, r);
      const float* add = op.add ? row(op.add, r) : nullptr;
      float* out = row(op.out, r);
      for (std::int64_t c = 0; c < op.in.width; c += group) {
        if (op.kind == NormKind::rms) {
          kernels_.rows.rms_norm(in + c, weight, add ? add + c : nullptr, op.eps, group, out + c);
        } else {
          kernels_.rows.layer_norm(in + c, weight, bias, add ? add + c : nullptr, op.eps, group, out + c);
        }
      }
      for (const std::int32_t q : s.quantized) quantize(out, stride(op.out), q, r, 1);
    }
  }

  std::int64_t tasks(const QuantizeStep& s) { return row_tasks(slot(s.in).rows, s.in.width); }
  void run(const QuantizeStep& s, std::int64_t index, int) {
    const Range rows = task_rows(index);
    quantize(row(s.in, rows.first), stride(s.in), s.quantized, rows.first, rows.count);
  }

  // ------------------------------------------------------------ products
  // Tasks are blocks of groups of one part times blocks of rows; the blocks of groups are innermost, so that threads at work at the
  // same time share the rows, which are the larger half. Of few rows the weights are what counts: each thread takes a run of tasks.
  std::int64_t cut_product(std::int64_t groups, std::int64_t group_bytes, std::int64_t cols, Rows kind, std::int64_t most_groups) {
    range_ = rows_of(kind);
    const std::int64_t share = space_.threads * 8;
    std::int64_t blocks = 1;
    if (range_.count <= kNarrowRows) {
      shared_out_ = true;
      rows_per_task_ = std::max<std::int64_t>(1, range_.count);
      const std::int64_t most = std::max<std::int64_t>(1, kMostTaskBytes / group_bytes);
      groups_per_task_ = std::clamp(ceil_div(groups, share), std::min(most, ceil_div(kTaskBytes, group_bytes)), most);
    } else {
      rows_per_task_ = block_rows(range_.count);
      blocks = ceil_div(range_.count, rows_per_task_);
      const std::int64_t least = std::min(kBlockGroups, ceil_div(4 * kTaskMacs, kGroupRows * cols * rows_per_task_));
      groups_per_task_ = round_up(std::clamp(ceil_div(groups * blocks, share), least, kBlockGroups), kTileGroups);
    }
    groups_per_task_ = std::min(groups_per_task_, most_groups);
    while (ceil_div(groups, groups_per_task_) * blocks > kMaxTasks / 2) groups_per_task_ *= 2;
    return range_.count == 0 ? 0 : blocks;
  }

  // out = in * W^T for outputs [first, first + count) of a part.
  void product(const ProductPart& part, const View& in, std::int64_t first, std::int64_t count, const Range& rows, float* out,
               std::int64_t out_stride) const {
    const PackedMatrix& matrix = weights_.matrix(part.weight);
    const std::int32_t q = part.quantized;
    if (q >= 0) {
      switch (place_of(q).codes) {
        case Codes::int8:
          return matrix.kernels->product_int8(matrix.group(first / kGroupRows), count, matrix.cols, quantized(q),
                                              quantized_row(q, rows.first), rows.count, out, out_stride);
        case Codes::two_int8: return product_of_two_terms(matrix, q, first, count, rows, out, out_stride);
        case Codes::fixed: {
          const ProductFixed product = matrix.packing == Packing::fixed ? kernels_.matrix.fixed.product : matrix.kernels->product_fixed;
          return product(matrix.group(first / kGroupRows), count, matrix.cols, fixed(q), quantized_row(q, rows.first), rows.count, out,
                         out_stride);
        }
        case Codes::bytes: {
          const ByteKernels& product = kernels_.matrix.bytes;
          const std::uint8_t* groups = matrix.group(first / kGroupRows);
          const std::int64_t row = quantized_row(q, rows.first);
          if (in_bytes()) return product.of_bytes(groups, count, matrix.cols, bytes(q), row, rows.count, out, out_stride);
          return product.of_words(groups, count, matrix.cols, words(q), row, rows.count, out, out_stride);
        }
      }
    }
    if (matrix.packing == Packing::row_major) {
      blas()->sgemm_nt(rows.count, count, matrix.cols, row(in, rows.first), stride(in),
                       reinterpret_cast<const float*>(matrix.data) + first * matrix.cols, matrix.cols, out, out_stride);
    } else {
      const ProductF32 product = part.may_round ? matrix.kernels->product_bf16 : matrix.kernels->product_f32;
      product(matrix.group(first / kGroupRows), count, matrix.cols, row(in, rows.first), stride(in), rows.count, out, out_stride);
    }
  }

  // Both terms of a row pass over the weights together: for few rows, whose time goes into reading weights, the second costs little.
  void product_of_two_terms(const PackedMatrix& matrix, std::int32_t q, std::int64_t first, std::int64_t count, const Range& rows,
                            float* out, std::int64_t out_stride) const {
    alignas(kLine) float tile[kTileFloats];
    const std::int64_t width = std::min(count, kTileFloats / (2 * rows.count) / kGroupRows * kGroupRows);
    for (std::int64_t c = 0; c < count; c += width) {
      const std::int64_t cols = std::min(width, count - c);
      matrix.kernels->product_int8(matrix.group((first + c) / kGroupRows), cols, matrix.cols, quantized(q), quantized_row(q, rows.first),
                                   2 * rows.count, tile, width);
      for (std::int64_t r = 0; r < rows.count; ++r) {
        const float* terms = tile + 2 * r * width;
        for (std::int64_t i = 0; i < cols; ++i) out[r * out_stride + c + i] = terms[i] + terms[width + i];
      }
    }
  }

  std::int64_t group_bytes(const ProductPart& part) const {
    return std::max<std::int64_t>(kLine, weights_.matrix(part.weight).group_bytes);
  }

  std::int64_t tasks(const LinearStep& s) {
    std::int64_t groups = 0, heaviest = 0, cols = 1;
    for (const ProductPart& part : s.parts) {
      groups += ceil_div(part.rows, kGroupRows);
      heaviest = std::max(heaviest, group_bytes(part));
      cols = part.cols;
    }
    const std::int64_t blocks = cut_product(groups, heaviest, cols, slot(s.op.in).rows, INT32_MAX);
    group_tasks_ = 0;
    for (const ProductPart& part : s.parts) group_tasks_ += ceil_div(ceil_div(part.rows, kGroupRows), groups_per_task_);
    return group_tasks_ * blocks;
  }
  void run(const LinearStep& s, std::int64_t index, int) {
    const Range rows = task_rows(index / group_tasks_);
    std::int64_t task = index % group_tasks_;
    const ProductPart* part = s.parts.data();
    for (std::int64_t own; task >= (own = ceil_div(ceil_div(part->rows, kGroupRows), groups_per_task_)); ++part) task -= own;
    const std::int64_t first = task * groups_per_task_ * kGroupRows;
    const std::int64_t count = std::min(groups_per_task_ * kGroupRows, part->rows - first);
    float* out = row(s.op.out, rows.first) + part->col + first;
    if (!s.op.residual || !(s.op.residual == s.op.out)) {
      product(*part, s.op.in, first, count, rows, out, stride(s.op.out));
      const float* residual = s.op.residual ? row(s.op.residual, rows.first) + part->col + first : nullptr;
      kernels_.rows.epilogue(out, stride(s.op.out), rows.count, count, finish_of(s, *part, first, residual));
      return;
    }
    finish_in_place(s, *part, first, count, rows, out);
  }
  const float* bias_of(const ProductPart& part, std::int64_t first) const {
    if (part.folded_bias >= 0) return exe_.folded_bias(part.folded_bias) + first;
    return part.bias == VectorId::none ? nullptr : weights_.vector(part.bias) + first;
  }
  Finish finish_of(const LinearStep& s, const ProductPart& part, std::int64_t first, const float* residual) const {
    return {.bias = bias_of(part, first), .activation = s.op.activation,
            .residual = residual, .residual_stride = residual ? stride(s.op.residual) : 0, .scale = s.op.scale, .softcap = s.op.softcap,
            .alpha_p = s.op.alpha_p, .alpha_n = s.op.alpha_n};
  }
  // x = x + W h: the product goes to a tile beside, since its place still holds x.
  void finish_in_place(const LinearStep& s, const ProductPart& part, std::int64_t first, std::int64_t count, const Range& rows,
                       float* out) const {
    alignas(kLine) float tile[kTileFloats];
    const std::int64_t width = std::min<std::int64_t>(count, kTileFloats / rows.count / kGroupRows * kGroupRows);
    for (std::int64_t c = 0; c < count; c += width) {
      const std::int64_t cols = std::min(width, count - c);
      product(part, s.op.in, first + c, cols, rows, tile, width);
      kernels_.rows.epilogue(tile, width, rows.count, cols, finish_of(s, part, first + c, out + c));
      for (std::int64_t r = 0; r < rows.count; ++r) {
        std::memcpy(out + r * stride(s.op.out) + c, tile + r * width, static_cast<std::size_t>(cols) * sizeof(float));
      }
    }
  }

  std::int64_t tasks(const GatedStep& s) {
    const std::int64_t groups = ceil_div(s.gate.rows, kGroupRows);
    const std::int64_t most = kTileFloats / (kGroupRows * std::min(kBlockRows, std::max<std::int64_t>(1, rows_of(slot(s.in).rows).count)));
    const std::int64_t blocks = cut_product(groups, group_bytes(s.gate) + group_bytes(s.up), s.gate.cols, slot(s.in).rows, most);
    group_tasks_ = ceil_div(groups, groups_per_task_);
    return group_tasks_ * blocks;
  }
  void run(const GatedStep& s, std::int64_t index, int thread) {
    const Range rows = task_rows(index / group_tasks_);
    const std::int64_t first = index % group_tasks_ * groups_per_task_ * kGroupRows;
    const std::int64_t end = std::min(first + groups_per_task_ * kGroupRows, s.gate.rows);
    const std::int64_t width = std::min(groups_per_task_ * kGroupRows, kTileFloats / rows.count / kGroupRows * kGroupRows);
    float* up = reinterpret_cast<float*>(scratch_of(thread));
    for (std::int64_t c = first; c < end; c += width) {
      const std::int64_t count = std::min(width, end - c);
      float* out = row(s.out, rows.first) + c;
      product(s.gate, s.in, c, count, rows, out, stride(s.out));
      product(s.up, s.in, c, count, rows, up, width);
      const float *gate_bias = bias_of(s.gate, c), *up_bias = bias_of(s.up, c);
      for (std::int64_t r = 0; r < rows.count; ++r) {
        kernels_.rows.gate(out + r * stride(s.out), up + r * width, gate_bias, up_bias, s.activation, count);
      }
    }
  }

  std::int64_t tasks(const MultiplyStep& s) { return row_tasks(slot(s.op.a).rows, s.op.a.width); }
  void run(const MultiplyStep& s, std::int64_t index, int) {
    const Range rows = task_rows(index);
    const Multiply& op = s.op;
    for (std::int64_t r = rows.first; r < rows.first + rows.count; ++r) {
      if (op.b) {
        kernels_.rows.multiply(row(op.a, r), row(op.b, r), op.activation, op.scale, op.b.width, op.a.width / op.b.width, row(op.out, r));
      } else {
        kernels_.rows.scale_add(row(op.a, r), op.scale, nullptr, nullptr, op.a.width, row(op.out, r));
      }
    }
  }

  // ------------------------------------------------------------ positions, caches
  float* turns_row(std::int32_t t, std::int64_t r) const {
    const auto pairs = static_cast<std::int64_t>(plan_.turns[static_cast<std::size_t>(t)].inv_freq.size());
    return reinterpret_cast<float*>(space_.scratch.data() + layout_.turns_at[static_cast<std::size_t>(t)]) + r * 2 * pairs;
  }
  std::int64_t tasks(const TurnsStep& s) {
    return row_tasks(Rows::tokens, 32 * static_cast<std::int64_t>(plan_.turns[static_cast<std::size_t>(s.turns)].inv_freq.size()));
  }
  void run(const TurnsStep& s, std::int64_t index, int) {
    const RopeTable& rope = plan_.turns[static_cast<std::size_t>(s.turns)];
    const std::size_t pairs = rope.inv_freq.size();
    const Range rows = task_rows(index);
    RopeFrequencies frequencies(rope);
    std::size_t at = 0;
    for (std::int64_t r = rows.first; r < rows.first + rows.count; ++r) {
      const std::int64_t own = position_of(r, at);
      const std::span<const float> inv_freq = frequencies.of(std::max<std::int64_t>(batch_.segments[at].length, own + 1));
      const auto position = static_cast<float>(own);
      float* cos = turns_row(s.turns, r);
      float* sin = cos + pairs;
      for (std::size_t j = 0; j < pairs; ++j) {
        const double angle = position * inv_freq[j];  // a float32 product, as the models were trained with
        cos[j] = static_cast<float>(std::cos(angle)) * rope.magnitude;
        sin[j] = static_cast<float>(std::sin(angle)) * rope.magnitude;
      }
    }
  }

  std::int64_t page_run_tasks(std::int64_t width) {
    const auto runs = static_cast<std::int64_t>(layout_.page_runs.size());
    const std::int64_t floats = std::max<std::int64_t>(1, batch_.rows * width / std::max<std::int64_t>(1, runs));
    rows_per_task_ = std::max<std::int64_t>(1, kTaskFloats / floats);  // runs
    rows_per_task_ = std::max(rows_per_task_, ceil_div(runs, kMaxTasks));
    return ceil_div(runs, rows_per_task_);
  }
  template <class Body>
  void for_page_runs(std::int64_t index, const Body& body) const {
    const auto end = std::min<std::int64_t>((index + 1) * rows_per_task_, static_cast<std::int64_t>(layout_.page_runs.size()));
    for (std::int64_t i = index * rows_per_task_; i < end; ++i) body(layout_.page_runs[static_cast<std::size_t>(i)]);
  }

  std::int64_t tasks(const RopeStoreStep& s) {
    std::int64_t width = s.head_dim > 0 ? s.store.k.width + s.store.v.width : 0;
    for (const Turned& rope : s.ropes) width += rope.x.width;
    return page_run_tasks(width);
  }
  void run(const RopeStoreStep& s, std::int64_t index, int) {
    for_page_runs(index, [&](const PageRun& run) {
      for (const Turned& rope : s.ropes) {
        for (std::int32_t r = 0; r < run.rows; ++r) turn(rope, run.first + r, run.position + r);
      }
      if (s.head_dim > 0) store(s, run);
    });
  }
  void turn(const Turned& s, std::int64_t r, std::int64_t position) const {
    float* x = row(s.x, r);
    if (s.turns >= 0) {
      const RopeTable& table = plan_.turns[static_cast<std::size_t>(s.turns)];
      const int pairs = static_cast<int>(table.inv_freq.size());
      const float* cos = turns_row(s.turns, r);
      for (std::int32_t c = 0; c < s.x.width; c += s.head_dim) {
        kernels_.rows.rope(x + c, cos, cos + pairs, 2 * pairs, table.interleaved);
      }
    }
    const std::int64_t lengths = s.temperature_length > 0 ? position / s.temperature_length : 0;
    if (lengths == 0) return;
    const double factor = 1 + s.temperature * std::log1p(static_cast<double>(lengths));
    kernels_.rows.scale_add(x, static_cast<float>(factor), nullptr, nullptr, s.x.width, x);
  }
  void store(const RopeStoreStep& s, const PageRun& run) const {
    const auto& [k, v, cache] = s.store;
    std::uint8_t* page = space_.pages[static_cast<std::size_t>(layout_.first_page[static_cast<std::size_t>(run.segment)] +
                                                               run.position / kPageTokens)];
    for (int head = 0; head < k.width / s.head_dim; ++head) {
      kernels_.rows.kv_store(store_->format(), s.head_dim, row(k, run.first) + head * s.head_dim, row(v, run.first) + head * s.head_dim,
                             stride(k), stride(v), run.position % kPageTokens, run.rows, page + store_->offset(cache, head));
    }
  }

  // An encoder's keys and values lie on scratch pages, so that its attention is the same code.
  std::uint8_t* kept_page(const Attend& op, std::int64_t page, int head) const {
    return space_.scratch.data() + layout_.kept_at +
           static_cast<std::uint64_t>((page * op.kv_heads + head) * kv_page_bytes(KvFormat::f32, op.head_dim));
  }
  std::int64_t tasks(const KeepStep& s) { return page_run_tasks(s.op.k.width + s.op.v.width); }
  void run(const KeepStep& s, std::int64_t index, int) {
    const Attend& op = s.op;
    for_page_runs(index, [&](const PageRun& run) {
      const std::int64_t page = layout_.first_page[static_cast<std::size_t>(run.segment)] + run.position / kPageTokens;
      for (int head = 0; head < op.kv_heads; ++head) {
        kernels_.rows.kv_store(KvFormat::f32, op.head_dim, row(op.k, run.first) + head * op.head_dim,
                               row(op.v, run.first) + head * op.head_dim, stride(op.k), stride(op.v), run.position % kPageTokens, run.rows,
                               kept_page(op, page, head));
      }
    });
  }

  // ------------------------------------------------------------ attention
  std::int64_t tasks(const AttendStep& s) {
    const AttendSchedule& schedule = layout_.attends[static_cast<std::size_t>(s.shape)];
    return schedule.split ? static_cast<std::int64_t>(schedule.pieces.size()) : ceil_div(schedule.units, schedule.units_per_task);
  }
  void run(const AttendStep& s, std::int64_t index, int thread) {
    const AttendShape& shape = plan_.attends[static_cast<std::size_t>(s.shape)];
    const AttendSchedule& schedule = layout_.attends[static_cast<std::size_t>(s.shape)];
    auto** pages = reinterpret_cast<const std::uint8_t**>(scratch_of(thread));
    if (schedule.split) {
      const AttendSchedule::Piece& piece = schedule.pieces[static_cast<std::size_t>(index)];
      chunks(s, unit_at(shape, schedule, batch_, piece.unit), piece.chunk, piece.chunk, pages, shared_partials() + piece.partial);
      return;
    }
    std::int64_t most_pages = 1;
    for (std::size_t i = 0; i + 1 < layout_.first_page.size(); ++i) {
      most_pages = std::max(most_pages, layout_.first_page[i + 1] - layout_.first_page[i]);
    }
    float* partials =
        reinterpret_cast<float*>(scratch_of(thread) + align_line(static_cast<std::uint64_t>(most_pages) * sizeof(std::uint8_t*)));
    const std::int64_t end = std::min((index + 1) * schedule.units_per_task, schedule.units);
    for (std::int64_t u = index * schedule.units_per_task; u < end && !cancel_.requested(); ++u) {
      const Unit unit = unit_at(shape, schedule, batch_, u);
      chunks(s, unit, unit.first_chunk, unit.last_chunk, pages, partials);
      merge(s.op, shape, unit, partials);
    }
  }

  std::int64_t tasks(const MergeStep& s) {
    const AttendSchedule& schedule = layout_.attends[static_cast<std::size_t>(s.shape)];
    if (!schedule.split) return 0;
    units_per_merge_ = std::max<std::int64_t>(1, schedule.units * kTaskFloats / std::max<std::int64_t>(1, schedule.partial_floats));
    return ceil_div(schedule.units, units_per_merge_);
  }
  void run(const MergeStep& s, std::int64_t index, int) {
    const AttendShape& shape = plan_.attends[static_cast<std::size_t>(s.shape)];
    const AttendSchedule& schedule = layout_.attends[static_cast<std::size_t>(s.shape)];
    const std::int64_t end = std::min((index + 1) * units_per_merge_, schedule.units);
    for (std::int64_t u = index * units_per_merge_; u < end; ++u) {
      const std::int64_t first = schedule.pieces[static_cast<std::size_t>(schedule.first_piece[static_cast<std::size_t>(u)])].partial;
      merge(s.op, shape, unit_at(shape, schedule, batch_, u), shared_partials() + first);
    }
  }

  float* shared_partials() const { return reinterpret_cast<float*>(space_.scratch.data() + layout_.partials_at); }

  // Partials of chunks [first, last] of a unit, chunk after chunk; in a chunk row after row, head after head.
  void chunks(const AttendStep& s, const Unit& unit, std::int64_t first, std::int64_t last, const std::uint8_t** pages,
              float* partials) const {
    const Attend& op = s.op;
    const AttendShape& shape = plan_.attends[static_cast<std::size_t>(s.shape)];
    const Segment& segment = batch_.segments[unit.segment];
    const std::int64_t page_base = layout_.first_page[unit.segment];
    // One page more than these chunks' own, where there is one: it is fetched ahead.
    const std::int64_t end_key = keys_of(shape, segment, unit.row + unit.rows - 1).end;
    const std::int64_t end_page = std::min((last + 1) * (kChunkKeys / kPageTokens) + 1, ceil_div(end_key, kPageTokens));
    for (std::int64_t p = first * (kChunkKeys / kPageTokens); p < end_page; ++p) {
      pages[p] = shape.cached ? space_.pages[static_cast<std::size_t>(page_base + p)] + store_->offset(op.cache, unit.kv_head)
                              : kept_page(op, page_base + p, unit.kv_head);
    }
    const float* bias = op.bias == VectorId::none ? nullptr : weights_.vector(op.bias);
    const float* slopes = op.slopes == VectorId::none ? nullptr : weights_.vector(op.slopes);
    const std::int64_t first_head = unit.kv_head * std::int64_t{shape.group} + unit.head, reach = op.reach;
    const bool placed = op.places != VectorId::none;
    const auto of_head = [&](const View& view, std::int64_t r, std::int64_t head) -> const float* {
      return view ? row(view, segment.first + r) + head * (view.width / (op.q.width / op.head_dim)) : nullptr;
    };
    Query queries[kMaxQueries];
    int count = 0;
    for (std::int64_t r = unit.row; r < unit.row + unit.rows; ++r) {
      const Keys keys = keys_of(shape, segment, r);
      for (std::int64_t head = first_head; head < first_head + unit.heads; ++head) {
        queries[count++] = {row(op.q, segment.first + r) + head * shape.head_dim, keys.first, keys.end, segment.past + r,
                            bias ? bias + head * (2 * reach + 1) : nullptr, slopes ? slopes[head] : 0.0f,
                            placed ? of_head(op.by_query, r, head) : nullptr, placed ? of_head(op.by_key, 0, head) : nullptr};
      }
    }
    AttendCall call{shape.cached ? store_->format() : KvFormat::f32, shape.head_dim, op.scale, op.softcap, pages, 0, reach,
                    placed ? weights_.vector(op.places) : nullptr, op.by_key ? stride(op.by_key) : 0};
    for (call.chunk = first; call.chunk <= last; ++call.chunk) {
      if (cancel_.requested()) return;  // the run's end reports it
      kernels_.rows.attend(call, queries, count, partials);
      partials += count * (shape.head_dim + 2);
    }
  }

  // Each query folds the chunks that it sees, and no others: which ones went along is the batch's affair.
  void merge(const Attend& op, const AttendShape& shape, const Unit& unit, const float* partials) const {
    const Segment& segment = batch_.segments[unit.segment];
    const std::int64_t floats = shape.head_dim + 2, stride = unit.rows * unit.heads * floats;
    for (std::int64_t r = 0; r < unit.rows; ++r) {
      const Keys keys = keys_of(shape, segment, unit.row + r);
      const std::int64_t first = keys.first_chunk(), last = keys.last_chunk();
      float* out = row(op.out, segment.first + unit.row + r) + (unit.kv_head * std::int64_t{shape.group} + unit.head) * shape.head_dim;
      for (std::int64_t h = 0; h < unit.heads; ++h) {
        kernels_.rows.merge(partials + (first - unit.first_chunk) * stride + (r * unit.heads + h) * floats, last - first + 1, stride,
                            shape.head_dim, out + h * shape.head_dim);
      }
    }
  }

  // ------------------------------------------------------------ ends
  std::int64_t tasks(const SelectStep& s) { return row_tasks(Rows::selected, s.out.width); }
  void run(const SelectStep& s, std::int64_t index, int) {
    const Range rows = task_rows(index);
    for (std::int64_t r = rows.first; r < rows.first + rows.count; ++r) {
      std::memcpy(row(s.out, r), row(s.in, batch_.selected[static_cast<std::size_t>(r)]),
                  static_cast<std::size_t>(s.out.width) * sizeof(float));
    }
  }

  std::int64_t tasks(const PoolStep& s) {
    range_ = rows_of(Rows::segments);
    if (range_.count == 0) return 0;
    rows_per_task_ = std::max<std::int64_t>(1, kTaskFloats / (s.in.width * ceil_div(std::max(1, batch_.rows), range_.count)));
    return ceil_div(range_.count, rows_per_task_);
  }
  void run(const PoolStep& s, std::int64_t index, int) {
    const Range segments = task_rows(index);
    for (std::int64_t i = segments.first; i < segments.first + segments.count; ++i) {
      const Segment& segment = batch_.segments[static_cast<std::size_t>(i)];
      kernels_.rows.pool(row(s.in, segment.first), stride(s.in), segment.prompt, segment.rows, s.in.width, s.kind,
                         row(s.out, i));
    }
  }

  std::int64_t tasks(const LogProbStep& s) { return row_tasks(Rows::tokens, s.logits.width); }
  void run(const LogProbStep& s, std::int64_t index, int) {
    const Range rows = task_rows(index);
    for (std::int64_t r = rows.first; r < rows.first + rows.count; ++r) {
      const float* logits = row(s.logits, r);
      const double sum = kernels_.rows.log_sum_exp(logits, s.logits.width);
      *row(s.out, r) = static_cast<float>(static_cast<double>(logits[batch_.ids[static_cast<std::size_t>(r)]]) - sum);
    }
  }

  std::int64_t tasks(const TopStep& s) { return row_tasks(Rows::tokens, s.op.logits.width); }
  void run(const TopStep& s, std::int64_t index, int) {
    const Range rows = task_rows(index);
    for (std::int64_t r = rows.first; r < rows.first + rows.count; ++r) {
      std::span<const std::int32_t> reported;
      if (!batch_.reported_first.empty()) {
        const auto first = static_cast<std::size_t>(batch_.reported_first[static_cast<std::size_t>(r)]);
        reported = batch_.reported.subspan(first, static_cast<std::size_t>(batch_.reported_first[static_cast<std::size_t>(r) + 1]) - first);
      }
      const std::int32_t mask = batch_.allowed_first.empty() ? -1 : batch_.allowed_first[static_cast<std::size_t>(r)];
      top_row(s.op, row(s.op.logits, r), reported, mask < 0 ? nullptr : batch_.allowed.data() + mask, row(s.op.out, r));
    }
  }
  // The k largest so far, in order; nearly every logit is below the last of them. allowed: a bit for each id; null: all.
  static void top_row(const Top& op, const float* logits, std::span<const std::int32_t> reported, const std::uint32_t* allowed,
                      float* out) {
    const auto bits = [](std::int32_t word) { return std::bit_cast<float>(word); };
    const std::int32_t width = op.logits.width, k = op.k;
    std::fill_n(out, op.out.width, 0.0f);
    float *largest = out + kTopHead, *ids = largest + k;
    std::transform(reported.begin(), reported.end(), ids + k, [&](std::int32_t id) { return logits[id]; });
    std::int32_t not_finite = 0, first = -1, count = 0;
    auto next_reported = reported.begin();
    for (std::int32_t id = 0; id < width; ++id) {
      const float x = logits[id];
      if (!std::isfinite(x) && not_finite++ == 0) first = id;
      if (next_reported != reported.end() && *next_reported == id) {
        ++next_reported;
        continue;
      }
      if (count == k && x <= largest[k - 1]) continue;
      if (allowed != nullptr && (allowed[id / 32] >> (id % 32) & 1u) == 0) continue;
      if (count < k) ++count;
      std::int32_t at = count - 1;
      for (; at > 0 && largest[at - 1] < x; --at) {
        largest[at] = largest[at - 1];
        ids[at] = ids[at - 1];
      }
      largest[at] = x;
      ids[at] = bits(id);
    }
    out[0] = bits(not_finite);
    out[1] = bits(first);
    out[2] = not_finite > 0 ? logits[first] : 0.0f;
    out[3] = bits(count);
    for (std::int32_t i = count; i < k; ++i) {
      largest[i] = std::numeric_limits<float>::lowest();
      ids[i] = bits(-1);
    }
  }

  const ProgramExecutable& exe_;
  const CpuPlan& plan_;
  const PackedWeights& weights_;
  ScratchSpace& space_;
  const BatchLayout& layout_;
  const PageStore* store_;
  const Batch& batch_;
  const Io& io_;
  const Cancel& cancel_;
  const Kernels& kernels_;

  std::size_t step_ = 0;
  std::int64_t tail_row_ = 0;
  // The step at work, and how it is cut: written between phases only.
  const Step* now_ = nullptr;
  bool in_tail_ = false;
  bool shared_out_ = false;  // tasks are taken from space_.shares, whatever number the team calls
  Range range_{0, 0};
  std::int64_t rows_per_task_ = 1, groups_per_task_ = 1, group_tasks_ = 1, units_per_merge_ = 1;
};

class Busy {
 public:
  explicit Busy(ScratchSpace& space) : space_(space) {
    require(!space_.busy.exchange(true), "a workspace serves one run at a time");
  }
  ~Busy() { space_.busy.store(false); }

 private:
  ScratchSpace& space_;
};

}  // namespace

// ---------------------------------------------------------------- the executable
ProgramExecutable::ProgramExecutable(Program program, std::shared_ptr<const PackedWeights> weights, Compute compute,
                                     std::shared_ptr<TeamHolder> team)
    : program_(std::move(program)), weights_(std::move(weights)), shapes_(shapes_of(*weights_)), plan_(lower(program_, shapes_, compute)),
      team_(std::move(team)) {
  std::size_t widest = 0;
  for (Step& step : plan_.steps) {
    if (auto* linear = std::get_if<LinearStep>(&step))
      for (ProductPart& part : linear->parts) fold_bias(part, linear->op.scale);
    if (auto* gated = std::get_if<GatedStep>(&step)) fold_bias(gated->gate, 1), fold_bias(gated->up, 1);
    if (const auto* norm = std::get_if<NormStep>(&step)) widest = std::max(widest, static_cast<std::size_t>(norm->op.in.width));
  }
  ones_.assign(widest, 1.0f);
  zeros_.assign(widest, 0.0f);
}

// scale W x + b = scale (W weight) normed + (scale W bias + b).
void ProgramExecutable::fold_bias(ProductPart& part, float scale) {
  const PackedMatrix& matrix = weights_->matrix(part.weight);
  if (!matrix.folded) return;
  std::vector<float> bias(matrix.product_of_bias, matrix.product_of_bias + matrix.rows);
  const float* own = weights_->vector(part.bias);
  for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = scale * bias[i] + (own ? own[i] : 0);
  part.folded_bias = static_cast<std::int32_t>(folded_biases_.size());
  folded_biases_.push_back(std::move(bias));
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
  if (batch.rows == 0) return;
  space->layout.arrange(plan_, batch, space->threads);
  space->fit();
  space->pages.clear();
  for (std::size_t s = 0; !program_.caches.empty() && s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    const std::int64_t pages = ceil_div(std::int64_t{segment.past} + segment.rows, kPageTokens);
    for (std::int64_t p = 0; p < pages; ++p) space->pages.push_back(store->page(segment.pages[static_cast<std::size_t>(p)]));
  }
  BatchRun run(*this, *space, store, batch, io, cancel);
  if (space->crew == Crew::team) {
    team_->get().run(run, cancel);
  } else {
    run_alone(run, cancel);
  }
  cancel.check();  // a task that was cut short left its rows unfinished
}

}  // namespace pumice::cpu
