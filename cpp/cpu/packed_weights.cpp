#include "cpu/packed_weights.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>

#include "core/checked.h"
#include "core/finite.h"
#include "cpu/blas.h"
#include "cpu/sketch.h"

namespace pumice::cpu {
namespace {

// Number of source bytes that one call of Team::parallel() packs, in about 7 ms at 10 GB/s.
constexpr std::int64_t kTurnBytes = 64 * 1024 * 1024;
// Number of weights that one job of make_sketches() reads (about 0.3 ms), and number of these jobs in one call of Team::parallel().
constexpr std::int64_t kSketchJobWeights = 128 * 1024, kSketchJobs = 64;

// ---------------------------------------------------------------- norms that are folded
using MatrixPointers = std::vector<const Matrix*>;

// Returns a factor for each column of the matrices that multiply one norm's output. Each column is divided by its factor, and the
// activation that the column multiplies is multiplied by the factor. Large columns then lose less precision when weights and activations
// are rounded. A factor is the square root of the column's length (after the norm's weight is folded in), divided by the mean of these
// roots over all columns, and limited to the range from 1/20 to 20. (SmoothQuant, Xiao et al. 2023, also considers the values of
// activations; this function considers only the weights.)
std::vector<float> evened_columns(const MatrixPointers& matrices, const std::vector<float>& weight) {
  constexpr std::int64_t kRows = 64;
  const std::size_t cols = weight.size();
  std::vector<double> squares(cols, 0.0);
  std::vector<float> rows;
  for (const Matrix* matrix : matrices) {
    for (std::int64_t first = 0; first < matrix->rows; first += kRows) {
      const std::int64_t count = std::min(kRows, matrix->rows - first);
      rows.resize(static_cast<std::size_t>(count) * cols);
      matrix->read_floats(first, count, rows.data());
      for (std::size_t i = 0; i < rows.size(); ++i) squares[i % cols] += double{rows[i]} * rows[i];
    }
  }
  std::vector<float> even(cols);
  double mean = 0;
  for (std::size_t c = 0; c < cols; ++c) mean += squares[c] = std::sqrt(std::sqrt(squares[c]) * std::abs(double{weight[c]}));
  mean /= static_cast<double>(cols);
  for (std::size_t c = 0; c < cols; ++c) {
    constexpr double kMost = 20;
    even[c] = static_cast<float>(mean > 0 && mean < 1e30 ? std::clamp(squares[c] / mean, 1 / kMost, kMost) : 1.0);
  }
  return even;
}

std::vector<float> values_of(const Weights& weights, VectorId id, std::size_t cols, const Matrix& matrix) {
  if (id == VectorId::none) return std::vector<float>(cols, 0.0f);
  const Vector& vector = weights.vectors[static_cast<std::size_t>(id)];
  require(vector.values.size() == cols, "weights: '", matrix.name, "' has ", cols, " columns, and the norm '", vector.name, "' before it ",
          vector.values.size());
  return vector.values;
}

// Returns the norm's weight and bias in the form in which they are folded into `matrices`. If the weight for a column is too small to
// divide by, the column gets weight 1 and bias 0, so that nothing is folded into it.
Folded folded_into(const Weights& weights, const NormBefore& norm, const MatrixPointers& matrices) {
  const auto cols = static_cast<std::size_t>(matrices.front()->cols);
  for (const Matrix* matrix : matrices) {
    require(static_cast<std::size_t>(matrix->cols) == cols, "weights: '", matrix->name, "' has ", matrix->cols,
            " columns, and the norm before it ", cols);
  }
  const Matrix& any = *matrices.front();
  Folded made{values_of(weights, norm.weight, cols, any), values_of(weights, norm.bias, cols, any), {}, {}};
  for (std::size_t c = 0; c < cols; ++c)
    if (!(std::abs(made.weight[c]) > std::max(1e-20f, 1e-6f * std::abs(made.bias[c])))) made.weight[c] = 1, made.bias[c] = 0;
  const std::vector<float> even = evened_columns(matrices, made.weight);
  for (std::size_t c = 0; c < cols; ++c) {
    made.scale.push_back(even[c] / made.weight[c]);
    made.shift.push_back(-made.bias[c] * made.scale[c]);
    made.weight[c] /= even[c];
  }
  return made;
}

}  // namespace

// ---------------------------------------------------------------- all weights
PackedWeights::PackedWeights(const Weights& weights, std::span<const Program* const> programs, Team& team, const Progress& progress,
                             const Cancel& cancel, std::uint64_t expert_bytes) {
  const WeightShapes shapes = pumice::shapes_of(weights);
  std::vector<ExpertLayer> cached = expert_layers(programs);
  if (expert_bytes >= cpu::expert_bytes(cached, shapes).all) cached.clear();
  take_vectors(weights.vectors);
  lay_out(weights, used_matrices(programs, shapes), cached, sketched_matrices(programs, shapes));
  if (!cached.empty()) {
    cache_ = std::make_unique<ExpertCache>(std::move(cached), weights.matrices, matrices_, expert_bytes, team.threads());
    cache_->require_unchanged = weights.require_unchanged;
    bytes_ += cache_->bytes();
  }
  fold_norms(weights, norms_before(programs, weights.matrices.size()));
  pack(weights.matrices, team, progress, cancel);
  make_sketches(team, cancel);
}

void PackedWeights::take_vectors(const std::vector<Vector>& vectors) {
  for (const Vector& vector : vectors) {
    check_finite(vector);
    bytes_ += vector.values.size() * sizeof(float);
  }
  vectors_ = vectors;
}

// Computes and checks all sizes before any memory is allocated.
void PackedWeights::lay_out(const Weights& weights, const std::vector<bool>& used, std::span<const ExpertLayer> cached,
                            const std::vector<bool>& sketched) {
  std::uint64_t needed = 0;
  std::vector<bool> in_arena = used;
  for (const ExpertLayer& layer : cached)
    for (const std::size_t m : layer.matrices) in_arena[m] = false;
  matrices_.resize(weights.matrices.size());
  for (std::size_t m = 0; m < matrices_.size(); ++m) {
    const MatrixShape source = shape_of(weights.matrices[m]);
    PackedMatrix& packed = matrices_[m];
    packed.name = source.name;
    packed.format = source.format;
    packed.rows = source.rows;
    packed.cols = source.cols;
    packed.experts = source.experts;
    if (!used[m]) continue;
    packed.group_bytes = group_bytes_of(source);
    packed.kernels = &kernels().matrix[source.format];
    packed.packing = packing_of(source);
    packed.rounding = source.rounding;
    packed.has_floats = source.has_floats;
    auto sum = checked_add(needed, in_arena[m] ? packed_bytes(source) : 0);
    if (sum && sketched[m]) sum = checked_add(*sum, sketch_bytes(source));
    if (!sum) fail(ErrorKind::out_of_memory, "weights: more bytes than can be addressed");
    needed = *sum;
  }
  check_memory(needed, "the model's weights");
  arena_ = Buffer(needed, "the model's weights");
  bytes_ += needed;
  std::uint8_t* at = arena_.data();
  for (std::size_t m = 0; m < matrices_.size(); ++m) {
    if (!in_arena[m]) continue;
    matrices_[m].data = at;
    at += packed_bytes(shape_of(weights.matrices[m]));
    if (!sketched[m]) continue;
    matrices_[m].sketch = at;
    at += sketch_bytes(shape_of(weights.matrices[m]));
  }
}

void PackedWeights::fold_norms(const Weights& weights, const std::vector<NormBefore>& norms) {
  const auto folds = [&](std::size_t m, const NormBefore& norm) {
    return matrices_[m].data != nullptr && matrices_[m].packing == Packing::bytes && norms[m] == norm;
  };
  for (std::size_t first = 0; first < matrices_.size(); ++first) {
    const NormBefore& norm = norms[first];
    if (norm.weight == VectorId::none || matrices_[first].folded || !folds(first, norm)) continue;
    MatrixPointers alike;
    for (std::size_t m = first; m < matrices_.size(); ++m)
      if (folds(m, norm)) alike.push_back(&weights.matrices[m]);
    folded_.push_back(std::make_unique<const Folded>(folded_into(weights, norm, alike)));
    for (std::size_t m = first; m < matrices_.size(); ++m) {
      if (!folds(m, norm)) continue;
      PackedMatrix& packed = matrices_[m];
      packed.folded = folded_.back().get();
      packed.product_of_bias = reinterpret_cast<float*>(packed.data + ceil_div(packed.rows, kGroupRows) * packed.group_bytes);
    }
  }
}

void PackedWeights::pack(const std::vector<Matrix>& sources, Team& team, const Progress& progress, const Cancel& cancel) {
  std::vector<Panel> panels;
  for (std::size_t m = 0; m < matrices_.size(); ++m) {
    for (std::int32_t expert = 0; matrices_[m].data != nullptr && expert < matrices_[m].experts; ++expert)
      add_panels(panels, m, matrices_[m], expert);
  }
  std::vector<PanelBuffers> buffers(static_cast<std::size_t>(team.threads()));
  std::mutex progress_lock;
  std::uint64_t done = 0;
  const auto count = [&](std::uint64_t bytes) {
    const std::lock_guard lock(progress_lock);
    done += bytes;
    if (progress) progress(done);
  };
  const auto pack_panel = [&](const Panel& panel, int thread) {
    const PackedMatrix& matrix = matrices_[panel.matrix];
    PanelPacker packer(sources[panel.matrix], matrix, buffers[static_cast<std::size_t>(thread)]);
    count(packer.pack(panel, matrix.data + panel.expert * matrix.expert_bytes()));
  };
  for (std::size_t begin = 0; begin < panels.size();) {
    std::size_t end = begin;
    for (std::int64_t bytes = 0; end < panels.size() && bytes < kTurnBytes; ++end) bytes += panels[end].bytes;
    team.parallel(
        static_cast<std::int64_t>(end - begin),
        [&](std::int64_t i, int thread) { pack_panel(panels[begin + static_cast<std::size_t>(i)], thread); }, cancel);
    begin = end;
  }
  if (cache_) cache_->fill([&](std::int64_t jobs, const auto& job) { team.parallel(jobs, job, cancel); }, count);
}

void PackedWeights::make_sketches(Team& team, const Cancel& cancel) {
  for (const PackedMatrix& matrix : matrices_) {
    if (matrix.sketch == nullptr) continue;
    const std::int64_t groups = matrix.groups_each(), bytes = sketch_group_bytes(matrix.cols);
    const std::int64_t each = std::max<std::int64_t>(1, kSketchJobWeights / (kGroupRows * matrix.cols)), jobs = ceil_div(groups, each);
    for (std::int64_t begin = 0; begin < jobs; begin += kSketchJobs) {  // in short turns, so that other callers can run jobs in between
      team.parallel(
          std::min(kSketchJobs, jobs - begin),
          [&](std::int64_t i, int) {
            Sketcher sketcher(matrix);
            const std::int64_t first = (begin + i) * each;
            for (std::int64_t g = first; g < std::min(groups, first + each); ++g) sketcher.make(g, matrix.sketch + g * bytes);
          },
          cancel);
    }
  }
}

WeightShapes shapes_of(const PackedWeights& weights) {
  WeightShapes shapes;
  for (const PackedMatrix& m : weights.matrices())
    shapes.matrices.push_back({m.name, m.format, m.rows, m.cols, m.experts, m.present(), m.rounding, m.has_floats});
  for (const Vector& v : weights.vectors())
    shapes.vectors.push_back({v.name, static_cast<std::int64_t>(v.values.size()), indices_of(v.values)});
  return shapes;
}

std::vector<const Folded*> folded_of(const PackedWeights& weights) {
  std::vector<const Folded*> folded;
  for (const PackedMatrix& m : weights.matrices()) folded.push_back(m.folded);
  return folded;
}

}  // namespace pumice::cpu
