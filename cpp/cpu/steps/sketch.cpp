// The steps that compute the largest logits of a head by means of the sketch of the head's matrix (cpu/sketch.h):
// - BoundsStep writes an upper bound of each logit in place of the logit.
// - SeedsStep computes the logits with the largest bounds. The k-th largest of these logits is the threshold. A smaller logit cannot be one
//   of the k largest.
// - RestStep computes the groups that have a bound of at least the threshold. In the other groups, bounds stay in place of the logits.
// Bounds below the threshold are not ranked by Top. Ids that are not allowed get the lowest float as their bound, and the logits of
// reported ids are always computed.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <utility>

#include "core/top.h"
#include "cpu/sketch.h"
#include "cpu/steps/part_product.h"
#include "cpu/steps/steps.h"

namespace pumice::cpu {
namespace {

constexpr float kLowest = std::numeric_limits<float>::lowest(), kMost = std::numeric_limits<float>::max();
constexpr std::int64_t kSliceGroups = 8;  // smallest number of groups in a slice, unless the head has fewer
// To find the threshold of k logits, SeedsStep computes the groups of the k + k / 2 + kMoreSeeds seeds (Seed) with the largest bounds.
constexpr std::int64_t kMoreSeeds = 3;
// A run uses the sketch only if the head has at least this many groups per reported id, because the logits of reported ids are always
// computed.
constexpr std::int64_t kReportedShare = 64;

// Returns the number of slices into which the groups of a head are divided. Each task computes one slice.
std::int64_t slices_of(std::int64_t groups) { return std::clamp(groups / kSliceGroups, std::int64_t{1}, kSketchSlices); }

// Returns the range of ids in a slice.
Range slice_of(const ProductPart& part, std::int64_t slice) {
  const std::int64_t groups = groups_of(part), slices = slices_of(groups);
  const std::int64_t first = groups * slice / slices * kGroupRows, end = groups * (slice + 1) / slices * kGroupRows;
  return {first, std::min(end, part.rows) - first};
}

// A slice's largest bound, and the id that has this bound. Ids that may not be ranked do not count.
struct Seed {
  float bound;
  std::int32_t id;
};

// Pointers into the scratch memory that the steps of this file use (sketch_row_bytes()).
struct SketchRows {
  SketchRows(const Run& run, const Sketching& s) {
    const SketchPlace& place = run.plan.sketches[static_cast<std::size_t>(s.place)];
    const std::int64_t rows = run.batch.rows, blocks = rows * (place.cols / kQuantBlock);
    std::uint8_t* at = run.area(place.area);
    const auto take = [&](std::int64_t bytes) { return std::exchange(at, at + round_up(bytes, kLine)); };
    constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
    codes.rows = rows;
    codes.cols = place.cols;
    codes.codes = reinterpret_cast<std::int8_t*>(take(rows * place.cols));
    codes.scales = reinterpret_cast<float*>(take(blocks * kFloat));
    codes.scaled_sums = reinterpret_cast<float*>(take(blocks * kFloat));
    codes.sums = reinterpret_cast<std::int32_t*>(take(2 * blocks * kFloat));
    thresholds = reinterpret_cast<float*>(take((rows + 1) * kFloat));
    seeds = reinterpret_cast<Seed*>(at);
  }
  Seed& seed(std::int64_t row, std::int64_t slice) const { return seeds[row * kSketchSlices + slice]; }
  // Returns the float behind the thresholds. It is 1 if all rows of activations have bounds, and otherwise 0.
  float& bounded() const { return thresholds[codes.rows]; }

  QuantRows codes;
  float* thresholds;  // [row]: the largest float below the row's threshold
  Seed* seeds;        // [row][slice]: the seed of the slice; each row has room for kSketchSlices seeds
};

std::int32_t ranked(const Run& run, const Sketching& s, std::int64_t row) {
  return run.batch.ranked.empty() ? s.top.k : run.batch.ranked[static_cast<std::size_t>(row)];
}

// Returns whether this run uses the sketch.
bool sketches(const Run& run, const Sketching& s) {
  const PackedMatrix& head = run.weights.matrix(s.part.weight);
  const std::int64_t rows = run.batch.rows;
  if (head.sketch == nullptr || rows > kSketchedRows) return false;
  std::int64_t ranks = 0;
  for (std::int64_t r = 0; r < rows; ++r) ranks += ranked(run, s, r);
  const auto reported = static_cast<std::int64_t>(run.batch.reported.size());
  return ranks * ids_for_each_rank(head.format) <= head.rows && reported * kReportedShare <= groups_of(s.part);
}
bool has_bounds(const Run& run, const Sketching& s) { return sketches(run, s) && SketchRows(run, s).bounded() == 1; }

Cut cut_slices(const Sketching& s) { return {.tasks = slices_of(groups_of(s.part)), .shared_out = true}; }

// Calls `each` for the ids in [first, first + count) that are not allowed in this row.
template <class Each>
void each_forbidden(const std::uint32_t* allowed, const Range& ids, const Each& each) {
  for (std::int64_t id = ids.first; allowed != nullptr && id < ids.first + ids.count;) {
    const std::uint32_t word = allowed[id / 32];
    if (word == ~0u && id % 32 == 0) {
      id += 32;
      continue;
    }
    if ((word >> (id % 32) & 1u) == 0) each(id);
    ++id;
  }
}

// Computes logits [first, first + count) of one row.
void logits(const Run& run, const Sketching& s, std::int64_t row, const Range& ids, float* out) {
  const Range rows{row, 1};
  PartProduct(run, s.part, s.in, rows).outputs(ids.first, ids.count, out, ids.count);
  if (s.scale != 1) run.kernels.rows.epilogue(out, ids.count, 1, ids.count, {.scale = s.scale});
}

}  // namespace

std::int64_t sketch_row_bytes(std::int64_t cols) {
  // kParts is the number of parts of SketchRows, each of which is rounded up to a cache line.
  constexpr std::int64_t kParts = 5, kPerBlock = 4 * sizeof(float);
  return cols + cols / kQuantBlock * kPerBlock + 2 * static_cast<std::int64_t>(sizeof(float)) +
         kSketchSlices * static_cast<std::int64_t>(sizeof(Seed)) + kParts * kLine;
}

// ---------------------------------------------------------------- activations, bounds
Cut cut(const Run& run, const SketchActivationsStep& s) { return {.tasks = sketches(run, s.sketching) ? 1 : 0}; }
void task(const Run& run, const SketchActivationsStep& s, const Cut&, std::int64_t, int) {
  const SketchRows to(run, s.sketching);
  to.bounded() = 1;
  for (std::int64_t r = 0; r < run.batch.rows; ++r) {
    if (!sketch_activations(run.kernels.rows, run.row(s.sketching.in, r), s.sketching.part.cols, r, to.codes)) to.bounded() = 0;
  }
}

Cut cut(const Run& run, const BoundsStep& s) { return has_bounds(run, s.sketching) ? cut_slices(s.sketching) : Cut(); }
void task(const Run& run, const BoundsStep& s, const Cut&, std::int64_t index, int) {
  const Sketching& sketching = s.sketching;
  const SketchRows x(run, sketching);
  const PackedMatrix& head = run.weights.matrix(sketching.part.weight);
  const Range ids = slice_of(sketching.part, index);
  const View& view = sketching.top.logits;
  float* out = run.row(view, 0) + ids.first;
  run.kernels.matrix[Format::Q5_0].product_int8(head.sketch + ids.first / kGroupRows * sketch_group_bytes(head.cols), ids.count,
                                                x.codes.cols, x.codes, 0, x.codes.rows, out, run.stride(view));
  if (sketching.scale != 1) run.kernels.rows.epilogue(out, run.stride(view), x.codes.rows, ids.count, {.scale = sketching.scale});
  for (std::int64_t r = 0; r < x.codes.rows; ++r) {
    float* row = run.row(view, r);
    each_forbidden(run.allowed(r), ids, [&](std::int64_t id) { row[id] = kLowest; });
    const auto reported = run.reported(r);
    const auto first = std::lower_bound(reported.begin(), reported.end(), ids.first);
    const auto end = std::lower_bound(first, reported.end(), ids.first + ids.count);
    std::for_each(first, end, [&](std::int32_t id) { row[id] = kLowest; });
    Seed best{kLowest, static_cast<std::int32_t>(ids.first)};
    for (std::int64_t id = ids.first; id < ids.first + ids.count; ++id) {
      if (id % kSkip == 0) id += run.kernels.rows.skip(row + id, ids.first + ids.count - id, best.bound);
      if (id < ids.first + ids.count && row[id] > best.bound) best = {row[id], static_cast<std::int32_t>(id)};
    }
    x.seed(r, index) = best;
    std::for_each(first, end, [&](std::int32_t id) { row[id] = kMost; });
  }
}

// ---------------------------------------------------------------- threshold
namespace {

// Returns the largest float below the threshold of one row, or minus infinity if all logits must be computed.
float below_threshold(const Run& run, const Sketching& s, const SketchRows& x, std::int64_t row) {
  const std::int64_t slices = slices_of(groups_of(s.part));
  const auto k = static_cast<std::int64_t>(ranked(run, s, row)), count = std::min(slices, k + k / 2 + kMoreSeeds);
  Seed* seeds = &x.seed(row, 0);
  std::partial_sort(seeds, seeds + count, seeds + slices, [](const Seed& a, const Seed& b) { return a.bound > b.bound; });
  const std::uint32_t* allowed = run.allowed(row);
  const auto reported = run.reported(row);
  float all[(kMostTop + kMostTop / 2 + kMoreSeeds) * kGroupRows];
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t first = seeds[i].id / kGroupRows * kGroupRows;
    const Range ids{first, std::min<std::int64_t>(kGroupRows, s.part.rows - first)};
    float tile[kGroupRows];
    logits(run, s, row, ids, tile);
    for (std::int64_t j = 0; j < ids.count; ++j) {
      const auto id = static_cast<std::int32_t>(first + j);
      if (!std::isfinite(tile[j])) return -std::numeric_limits<float>::infinity();
      if (allowed != nullptr && (allowed[id / 32] >> (id % 32) & 1u) == 0) continue;
      if (!std::binary_search(reported.begin(), reported.end(), id)) all[found++] = tile[j];
    }
  }
  if (found < k) return -std::numeric_limits<float>::infinity();
  std::nth_element(all, all + k - 1, all + found, std::greater<>());
  return std::nextafter(all[k - 1], -std::numeric_limits<float>::infinity());
}

}  // namespace

Cut cut(const Run& run, const SeedsStep& s) { return {.tasks = has_bounds(run, s.sketching) ? run.batch.rows : 0}; }
void task(const Run& run, const SeedsStep& s, const Cut&, std::int64_t index, int) {
  const SketchRows x(run, s.sketching);
  x.thresholds[index] = below_threshold(run, s.sketching, x, index);
}

// ---------------------------------------------------------------- the rest
Cut cut(const Run& run, const RestStep& s) { return has_bounds(run, s.sketching) ? cut_slices(s.sketching) : cut(run, s.whole); }
void task(const Run& run, const RestStep& s, const Cut& cut, std::int64_t index, int thread) {
  if (!has_bounds(run, s.sketching)) return task(run, s.whole, cut, index, thread);
  const SketchRows x(run, s.sketching);
  const Range ids = slice_of(s.sketching.part, index);
  const std::int64_t end = ids.first + ids.count;
  for (std::int64_t r = 0; r < x.codes.rows; ++r) {
    float* row = run.row(s.sketching.top.logits, r);
    const auto skip = [&](std::int64_t id) { return run.kernels.rows.skip(row + id, end - id, x.thresholds[r]); };
    for (std::int64_t id = ids.first + skip(ids.first); id < end; id += skip(id)) {
      const std::int64_t first = id;
      do {
        id = std::min(end, id + kGroupRows);
      } while (id < end && skip(id) == 0);
      logits(run, s.sketching, r, {first, id - first}, row + first);
    }
  }
}

}  // namespace pumice::cpu
