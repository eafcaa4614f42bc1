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

namespace pumice::cpu {
namespace {

// Source bytes that one thread reads and packs at a time. The source and the packed groups fit together in an L2 cache of 512 KiB.
constexpr std::int64_t kPanelBytes = 192 * 1024;
// Source bytes that are packed in one job of the team. The job takes about 10 ms at 10 GB/s.
constexpr std::int64_t kTurnBytes = 64 * 1024 * 1024;

std::int64_t checked_group_bytes(const MatrixShape& matrix) {
  const FormatInfo& format = info(matrix.format);
  // No model has 2^31 rows or columns, and below that all later sums fit in 64 bits.
  if (matrix.rows < 1 || matrix.cols < 1 || matrix.rows > INT32_MAX || matrix.cols > INT32_MAX || matrix.cols % format.block != 0) {
    fail(ErrorKind::unsupported_model, "tensor '", matrix.name, "' (", format.name, ") has ", matrix.rows, " rows of ", matrix.cols,
         " weights; needed: 1 to ", INT32_MAX, " of each, and rows of whole blocks of ", format.block);
  }
  const MatrixKernels& known = kernels().matrix;
  switch (packing_of(matrix)) {
    case Packing::fixed:
      return known.fixed.group_bytes(matrix.cols);
    case Packing::bytes:
      return known.bytes.group_bytes(matrix.cols);
    default:
      return known[matrix.format].group_bytes(matrix.cols);
  }
}

// Returns the bytes for the products of a matrix with a folded norm's bias. These bytes are reserved even if no norm is folded, because
// cost() sees only one program and cannot know which norms are folded.
std::uint64_t bytes_of_products(const MatrixShape& matrix) {
  if (packing_of(matrix) != Packing::bytes) return 0;
  return static_cast<std::uint64_t>(round_up(matrix.rows_each(), kGroupRows) * matrix.experts) * sizeof(float);
}

}  // namespace

bool sgemm_by_openblas() {
  static const bool chosen = [] {
    const char* value = std::getenv("PUMICE_SGEMM");
    const std::string_view name = value ? value : "";
    if (name.empty() || name == "own") return false;
    require(name == "openblas", "the environment variable PUMICE_SGEMM is \"", name, "\"; known are own, openblas");
    if (!blas()) fail(ErrorKind::device, "PUMICE_SGEMM asks for OpenBLAS, which cannot be used: ", blas_why_not());
    return true;
  }();
  return chosen;
}

Packing packing_of(const MatrixShape& matrix) {
  require(matrix.experts == 1 || matrix.rounding != Rounding::bytes, "matrix '", matrix.name, "' of ", matrix.experts,
          " experts cannot be rounded to 8 bits");
  if (matrix.format == Format::F32 && sgemm_by_openblas()) return Packing::row_major;
  if (matrix.rounding == Rounding::bytes && matrix.has_floats) {
    // 8-bit codes, stored as bytes or as words, require columns in whole blocks of 64.
    return matrix.cols % kByteBlock == 0 ? Packing::bytes : Packing::format;
  }
  const bool floats = matrix.has_floats || !info(matrix.format).quantized;
  return matrix.rounding != Rounding::none && floats ? Packing::fixed : Packing::format;
}

std::uint64_t packed_bytes(const MatrixShape& matrix) {
  const std::int64_t group = checked_group_bytes(matrix);
  if (packing_of(matrix) == Packing::row_major) {
    const auto rows = static_cast<std::uint64_t>(mul_or_fail<std::int64_t>(matrix.rows, row_bytes(matrix.format, matrix.cols), "tensor"));
    return checked_align(rows, 64).value();  // below 2^63
  }
  const std::int64_t groups = mul_or_fail<std::int64_t>(ceil_div(matrix.rows_each(), kGroupRows) * matrix.experts, group, "tensor");
  return static_cast<std::uint64_t>(groups) + bytes_of_products(matrix);
}

void PackedMatrix::unpack_row(std::int64_t row, float* out) const {
  if (packing == Packing::row_major) {
    std::memcpy(out, data + row * row_bytes(format, cols), static_cast<std::size_t>(row_bytes(format, cols)));
  } else {
    kernels->unpack_row(group(row / kGroupRows), static_cast<int>(row % kGroupRows), cols, out);
  }
}

namespace {

// ---------------------------------------------------------------- norms that are folded
using MatrixPointers = std::vector<const Matrix*>;

// Returns a factor for each column of the matrices that multiply one norm's output. The factor is the square root of the column's length
// after folding, divided by the mean of these roots over all columns. A column is divided by its factor, and the activation that it
// multiplies is multiplied by the factor, so that large columns lose less precision in both. (SmoothQuant, Xiao et al. 2023, also considers
// the activations; this function considers only the weights.) Factors far from 1 are limited.
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

// Returns what is folded into `matrices`. If the norm's weight for a column is too small to divide by, this column stays unfolded, with
// weight 1 and bias 0.
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

// Multiplies `rows` rows of weights by a norm's weight, and computes their products with the norm's bias.
void fold(const Folded& folded, std::int64_t rows, float* weights, float* product_of_bias) {
  for (std::int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (std::size_t c = 0; c < folded.weight.size(); ++c, ++weights) {
      sum += double{*weights} * folded.bias[c];
      *weights *= folded.weight[c];
    }
    product_of_bias[r] = static_cast<float>(sum);
  }
}

// ---------------------------------------------------------------- panels
// Groups of a matrix that one thread reads and packs at a time.
struct Panel {
  std::size_t matrix;
  std::int32_t expert;
  std::int64_t first_group, groups, bytes;  // bytes: of the source rows
};

std::vector<Panel> panels_of(const std::vector<PackedMatrix>& matrices) {
  std::vector<Panel> panels;
  for (std::size_t m = 0; m < matrices.size(); ++m) {
    const PackedMatrix& packed = matrices[m];
    if (packed.data == nullptr) continue;
    const std::int64_t groups = packed.groups_each(), group_bytes = kGroupRows * row_bytes(packed.format, packed.cols);
    const std::int64_t step = std::max<std::int64_t>(1, kPanelBytes / group_bytes);
    for (std::int32_t expert = 0; expert < packed.experts; ++expert) {
      for (std::int64_t g = 0; g < groups; g += step) {
        const std::int64_t count = std::min(step, groups - g);
        panels.push_back({m, expert, g, count, count * group_bytes});
      }
    }
  }
  return panels;
}

// The buffers of one thread.
struct Buffers {
  std::vector<std::uint8_t> rows;
  std::vector<float> floats;  // rows of one group, as floats
};

class PanelPacker {
 public:
  PanelPacker(const Matrix& source, const PackedMatrix& packed, Buffers& buffers)
      : source_(source), packed_(packed), buffers_(buffers), stride_(row_bytes(source.format, source.cols)) {}

  // Packs a panel and returns the number of its source bytes. The last group of a panel may have fewer than 16 rows.
  std::uint64_t pack(const Panel& panel) {
    const std::int64_t in_expert = panel.first_group * kGroupRows, first = panel.expert * packed_.rows_each() + in_expert;
    const std::int64_t rows = std::min(panel.groups * kGroupRows, packed_.rows_each() - in_expert);
    const bool rounds = packed_.packing == Packing::fixed || packed_.packing == Packing::bytes;
    const std::uint8_t* from = rounds && source_.read_floats ? nullptr : read(first, rows);
    if (packed_.packing != Packing::row_major) {
      for (std::int64_t row = 0; row < rows; row += kGroupRows) {
        const std::int64_t count = std::min<std::int64_t>(kGroupRows, rows - row);
        const std::uint8_t* group_from = from ? from + row * stride_ : nullptr;
        rounds ? pack_rounded(group_from, first + row, count) : pack_as_it_is(group_from, first + row, count);
      }
    }
    return static_cast<std::uint64_t>(rows * stride_);
  }

 private:
  // Returns rows as the file has them. Rows that are not packed are read directly to their final address.
  const std::uint8_t* read(std::int64_t first, std::int64_t rows) {
    std::uint8_t* to = packed_.data + first * stride_;
    if (packed_.packing != Packing::row_major) {
      buffers_.rows.resize(std::max(buffers_.rows.size(), static_cast<std::size_t>(rows * stride_)));
      to = buffers_.rows.data();
    }
    source_.read(first, rows, to);
    check_finite(source_, first, rows, to);
    return to;
  }

  // The group of a row, which is the first of its group.
  std::uint8_t* group(std::int64_t row) const {
    const std::int64_t expert = row / packed_.rows_each(), in_expert = row % packed_.rows_each();
    return packed_.data + (expert * packed_.groups_each() + in_expert / kGroupRows) * packed_.group_bytes;
  }

  void pack_as_it_is(const std::uint8_t* from, std::int64_t row, std::int64_t count) const {
    packed_.kernels->pack_group(from, stride_, count, source_.cols, group(row));
  }

  void pack_rounded(const std::uint8_t* from, std::int64_t row, std::int64_t count) {
    buffers_.floats.resize(static_cast<std::size_t>(count * source_.cols));
    float* floats = buffers_.floats.data();
    from ? unpack(source_.format, from, count * source_.cols, floats) : read_floats(row, count, floats);
    if (packed_.packing == Packing::fixed) return kernels().matrix.fixed.pack_group(floats, count, source_.cols, group(row));
    if (packed_.folded) fold(*packed_.folded, count, floats, packed_.product_of_bias + row);
    kernels().matrix.bytes.pack_group(floats, count, source_.cols, group(row));
  }

  void read_floats(std::int64_t row, std::int64_t count, float* out) const {
    source_.read_floats(row, count, out);
    const Matrix shape{.name = source_.name, .format = Format::F32, .rows = source_.rows, .cols = source_.cols};
    check_finite(shape, row, count, reinterpret_cast<const std::uint8_t*>(out));
  }

  const Matrix& source_;
  const PackedMatrix& packed_;
  Buffers& buffers_;
  const std::int64_t stride_;  // bytes from one row of the source to the next
};

}  // namespace

// ---------------------------------------------------------------- all weights
PackedWeights::PackedWeights(const Weights& weights, std::span<const Program* const> programs, Team& team, const Progress& progress,
                             const Cancel& cancel) {
  take_vectors(weights.vectors);
  lay_out(weights, used_matrices(programs, pumice::shapes_of(weights)));
  fold_norms(weights, norms_before(programs, weights.matrices.size()));
  pack(weights.matrices, team, progress, cancel);
}

void PackedWeights::take_vectors(const std::vector<Vector>& vectors) {
  for (const Vector& vector : vectors) {
    check_finite(vector);
    bytes_ += vector.values.size() * sizeof(float);
  }
  vectors_ = vectors;
}

// All sizes are computed and checked before any memory is allocated.
void PackedWeights::lay_out(const Weights& weights, const std::vector<bool>& used) {
  std::uint64_t needed = 0;
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
    packed.group_bytes = checked_group_bytes(source);
    packed.kernels = &kernels().matrix[source.format];
    packed.packing = packing_of(source);
    packed.rounding = source.rounding;
    packed.has_floats = source.has_floats;
    const auto sum = checked_add(needed, packed_bytes(source));
    if (!sum) fail(ErrorKind::out_of_memory, "weights: more bytes than can be addressed");
    needed = *sum;
  }
  check_memory(needed, "the model's weights");
  arena_ = Buffer(needed, "the model's weights");
  bytes_ += needed;
  std::uint8_t* at = arena_.data();
  for (std::size_t m = 0; m < matrices_.size(); ++m) {
    if (!used[m]) continue;
    matrices_[m].data = at;
    at += packed_bytes(shape_of(weights.matrices[m]));
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
  const std::vector<Panel> panels = panels_of(matrices_);
  std::vector<Buffers> buffers(static_cast<std::size_t>(team.threads()));
  std::mutex progress_lock;
  std::uint64_t done = 0;
  const auto pack_panel = [&](const Panel& panel, int thread) {
    PanelPacker packer(sources[panel.matrix], matrices_[panel.matrix], buffers[static_cast<std::size_t>(thread)]);
    const std::uint64_t bytes = packer.pack(panel);
    const std::lock_guard lock(progress_lock);
    done += bytes;
    if (progress) progress(done);
  };
  for (std::size_t begin = 0; begin < panels.size();) {
    std::size_t end = begin;
    for (std::int64_t bytes = 0; end < panels.size() && bytes < kTurnBytes; ++end) bytes += panels[end].bytes;
    team.parallel(
        static_cast<std::int64_t>(end - begin),
        [&](std::int64_t i, int thread) { pack_panel(panels[begin + static_cast<std::size_t>(i)], thread); }, cancel);
    begin = end;
  }
}

WeightShapes shapes_of(const PackedWeights& weights) {
  WeightShapes shapes;
  for (const PackedMatrix& m : weights.matrices())
    shapes.matrices.push_back({m.name, m.format, m.rows, m.cols, m.experts, m.data != nullptr, m.rounding, m.has_floats});
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
