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

// Source bytes that one thread reads and packs at a time: source and groups together stay in a 512 KiB L2.
constexpr std::int64_t kPanelBytes = 192 * 1024;
// Source bytes of one turn on the team: about 10 ms at 10 GB/s.
constexpr std::int64_t kTurnBytes = 64 * 1024 * 1024;

std::int64_t checked_group_bytes(const MatrixShape& matrix) {
  const FormatInfo& format = info(matrix.format);
  // 2^31 either way is beyond any model and keeps all later sums inside 64 bits.
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

// `rows` rows with a norm's weight, and what they make of its bias.
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

std::uint64_t bytes_of_products(const MatrixShape& matrix) {  // of a folded bias
  if (packing_of(matrix) != Packing::bytes || matrix.narrow.norm_weight == VectorId::none) return 0;
  return static_cast<std::uint64_t>(round_up(matrix.rows, kGroupRows)) * sizeof(float);
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
  if (matrix.may_round && matrix.narrow && !matrix.narrow.in_bytes) return Packing::fixed;
  // Whole blocks of activations in words are what both kinds of codes divide into.
  if (matrix.may_round && matrix.narrow && matrix.cols % kFixedBlock == 0) return Packing::bytes;
  if (stays_row_major(matrix.format)) return Packing::row_major;
  return matrix.may_round && !info(matrix.format).quantized ? Packing::fixed : Packing::format;
}

bool stays_row_major(Format format) { return format == Format::F32 && sgemm_by_openblas(); }

std::uint64_t packed_bytes(const MatrixShape& matrix) {
  const std::int64_t group = checked_group_bytes(matrix);
  if (stays_row_major(matrix.format)) {
    const auto rows = static_cast<std::uint64_t>(mul_or_fail<std::int64_t>(matrix.rows, row_bytes(matrix.format, matrix.cols), "tensor"));
    return checked_align(rows, 64).value();  // below 2^63
  }
  const std::int64_t groups = mul_or_fail<std::int64_t>(ceil_div(matrix.rows, kGroupRows), group, "tensor");
  return static_cast<std::uint64_t>(groups) + bytes_of_products(matrix);
}

void PackedMatrix::unpack_row(std::int64_t row, float* out) const {
  if (packing == Packing::row_major) {
    std::memcpy(out, data + row * row_bytes(format, cols), static_cast<std::size_t>(row_bytes(format, cols)));
  } else {
    kernels->unpack_row(group(row / kGroupRows), static_cast<int>(row % kGroupRows), cols, out);
  }
}

// The square root of each column's length, of all matrices that multiply what one norm makes and have its weight folded in: a column is
// divided by it, and what it multiplies grows by it, so that large columns lose less on both sides (as SmoothQuant, Xiao et al. 2023, moves
// the difficulty, but by weights alone). Those that stand far apart are limited.
std::vector<float> evened_columns(const Weights& weights, const Folded& folded) {
  constexpr std::int64_t kRows = 64;
  const std::size_t cols = folded.weight.size();
  std::vector<double> squares(cols, 0.0);
  std::vector<float> rows;
  for (const Matrix& matrix : weights.matrices) {
    const Narrow& narrow = matrix.narrow;
    if (packing_of(shape_of(matrix)) != Packing::bytes || narrow.norm_weight != folded.norm_weight || narrow.norm_bias != folded.norm_bias)
      continue;
    require(static_cast<std::size_t>(matrix.cols) == cols, "weights: '", matrix.name, "' has ", matrix.cols,
            " columns, and the norm before it ", cols);
    for (std::int64_t first = 0; first < matrix.rows; first += kRows) {
      const std::int64_t count = std::min(kRows, matrix.rows - first);
      rows.resize(static_cast<std::size_t>(count) * cols);
      narrow.floats(first, count, rows.data());
      for (std::size_t i = 0; i < rows.size(); ++i) squares[i % cols] += double{rows[i]} * rows[i];
    }
  }
  std::vector<float> even(cols);
  double mean = 0;
  for (std::size_t c = 0; c < cols; ++c) mean += squares[c] = std::sqrt(std::sqrt(squares[c]) * std::abs(double{folded.weight[c]}));
  mean /= static_cast<double>(cols);
  for (std::size_t c = 0; c < cols; ++c) {
    constexpr double kMost = 20;
    even[c] = static_cast<float>(mean > 0 && mean < 1e30 ? std::clamp(squares[c] / mean, 1 / kMost, kMost) : 1.0);
  }
  return even;
}

// What cannot be divided by stays unfolded: x = 1 * x + 0.
const Folded* PackedWeights::folded(const Weights& weights, const Matrix& matrix) {
  const Narrow& narrow = matrix.narrow;
  if (narrow.norm_weight == VectorId::none) return nullptr;
  const auto cols = static_cast<std::size_t>(matrix.cols);
  for (const auto& known : folded_) {
    if (known->norm_weight != narrow.norm_weight || known->norm_bias != narrow.norm_bias) continue;
    require(known->weight.size() == cols, "weights: '", matrix.name, "' has ", cols, " columns, and the norm before it ",
            known->weight.size());
    return known.get();
  }
  const auto values = [&](VectorId id) {
    if (id == VectorId::none) return std::vector<float>(cols, 0.0f);
    const Vector& vector = weights.vectors[static_cast<std::size_t>(id)];
    require(vector.values.size() == cols, "weights: '", matrix.name, "' has ", cols, " columns, and the norm '", vector.name,
            "' before it ", vector.values.size());
    return vector.values;
  };
  Folded made{narrow.norm_weight, narrow.norm_bias, values(narrow.norm_weight), values(narrow.norm_bias), {}, {}};
  for (std::size_t c = 0; c < cols; ++c)
    if (!(std::abs(made.weight[c]) > std::max(1e-20f, 1e-6f * std::abs(made.bias[c])))) made.weight[c] = 1, made.bias[c] = 0;
  const std::vector<float> even = evened_columns(weights, made);
  for (std::size_t c = 0; c < cols; ++c) {
    made.scale.push_back(even[c] / made.weight[c]);
    made.shift.push_back(-made.bias[c] * made.scale[c]);
    made.weight[c] /= even[c];
  }
  return folded_.emplace_back(std::make_unique<Folded>(std::move(made))).get();
}

PackedWeights::PackedWeights(const Weights& weights, const std::vector<bool>& used, Team& team, const Progress& progress,
                             const Cancel& cancel) {
  require(used.empty() || used.size() == weights.matrices.size(), "weights: `used` names ", used.size(), " matrices of ",
          weights.matrices.size());
  for (const Vector& vector : weights.vectors) {
    check_finite(vector);
    bytes_ += vector.values.size() * sizeof(float);
  }
  vectors_ = weights.vectors;

  // All sizes are known and checked before the first byte is allocated.
  struct Panel {
    std::size_t matrix;
    std::int64_t first_group, groups;
  };
  std::vector<Panel> panels;
  std::uint64_t needed = 0;
  matrices_.resize(weights.matrices.size());
  for (std::size_t m = 0; m < matrices_.size(); ++m) {
    const Matrix& source = weights.matrices[m];
    PackedMatrix& packed = matrices_[m];
    packed.name = source.name;
    packed.format = source.format;
    packed.rows = source.rows;
    packed.cols = source.cols;
    if (!used.empty() && !used[m]) continue;
    const auto sum = checked_add(needed, packed_bytes(shape_of(source)));
    if (!sum) fail(ErrorKind::out_of_memory, "weights: more bytes than can be addressed");
    needed = *sum;
    packed.group_bytes = checked_group_bytes(shape_of(source));
    packed.kernels = &kernels().matrix[source.format];
    packed.packing = packing_of(shape_of(source));
    packed.may_round = source.may_round;
    packed.narrow = source.narrow;
    if (packed.packing == Packing::bytes) packed.folded = folded(weights, source);
    const std::int64_t groups = ceil_div(source.rows, kGroupRows);
    const std::int64_t step = std::max<std::int64_t>(1, kPanelBytes / (kGroupRows * row_bytes(source.format, source.cols)));
    for (std::int64_t g = 0; g < groups; g += step) panels.push_back({m, g, std::min(step, groups - g)});
  }
  check_memory(needed, "the model's weights");
  arena_ = Buffer(needed, "the model's weights");
  std::uint8_t* at = arena_.data();
  for (std::size_t m = 0; m < matrices_.size(); ++m) {
    if (!used.empty() && !used[m]) continue;
    matrices_[m].data = at;
    at += packed_bytes(shape_of(weights.matrices[m]));
    if (matrices_[m].folded) matrices_[m].product_of_bias = reinterpret_cast<float*>(at - bytes_of_products(shape_of(weights.matrices[m])));
  }
  bytes_ += needed;

  struct Source {
    std::vector<std::uint8_t> rows;
    std::vector<float> floats;  // of one group
  };
  std::vector<Source> sources(static_cast<std::size_t>(team.threads()));
  std::mutex progress_lock;
  std::uint64_t done = 0;
  const auto pack_panel = [&](const Panel& panel, int thread) {
    const Matrix& source = weights.matrices[panel.matrix];
    const PackedMatrix& packed = matrices_[panel.matrix];
    const std::int64_t stride = row_bytes(source.format, source.cols);
    const std::int64_t first = panel.first_group * kGroupRows;
    const std::int64_t rows = std::min(panel.groups * kGroupRows, source.rows - first);
    auto& [rows_read, floats] = sources[static_cast<std::size_t>(thread)];
    std::uint8_t* from;
    if (packed.packing == Packing::row_major) {
      from = packed.data + first * stride;
    } else {
      rows_read.resize(std::max(rows_read.size(), static_cast<std::size_t>(rows * stride)));
      from = rows_read.data();
    }
    const bool narrowed = source.narrow && packed.packing != Packing::format;
    if (!narrowed) {
      source.read(first, rows, from);
      check_finite(source, first, rows, from);
    }
    for (std::int64_t g = 0; packed.packing != Packing::row_major && g < panel.groups; ++g) {
      const std::uint8_t* first_row = from + g * kGroupRows * stride;
      const std::int64_t row = first + g * kGroupRows, of_group = std::min<std::int64_t>(kGroupRows, rows - g * kGroupRows);
      std::uint8_t* group = packed.data + (panel.first_group + g) * packed.group_bytes;
      if (packed.packing == Packing::format) {
        packed.kernels->pack_group(first_row, stride, of_group, source.cols, group);
        continue;
      }
      floats.resize(static_cast<std::size_t>(of_group * source.cols));
      if (narrowed) {
        source.narrow.floats(row, of_group, floats.data());
        const Matrix shape{.name = source.name, .rows = source.rows, .cols = source.cols};
        check_finite(shape, row, of_group, reinterpret_cast<const std::uint8_t*>(floats.data()));
      } else {
        unpack(source.format, first_row, of_group * source.cols, floats.data());
      }
      if (packed.packing == Packing::fixed) {
        kernels().matrix.fixed.pack_group(floats.data(), of_group, source.cols, group);
        continue;
      }
      if (packed.folded) fold(*packed.folded, of_group, floats.data(), packed.product_of_bias + row);
      kernels().matrix.bytes.pack_group(floats.data(), of_group, source.cols, group);
    }
    const std::lock_guard lock(progress_lock);
    done += static_cast<std::uint64_t>(rows * stride);
    if (progress) progress(done);
  };
  for (std::size_t begin = 0; begin < panels.size();) {
    std::size_t end = begin;
    for (std::int64_t bytes = 0; end < panels.size() && bytes < kTurnBytes; ++end) {
      const Matrix& source = weights.matrices[panels[end].matrix];
      bytes += panels[end].groups * kGroupRows * row_bytes(source.format, source.cols);
    }
    team.parallel(
        static_cast<std::int64_t>(end - begin),
        [&](std::int64_t i, int thread) { pack_panel(panels[begin + static_cast<std::size_t>(i)], thread); }, cancel);
    begin = end;
  }
}

WeightShapes shapes_of(const PackedWeights& weights) {
  WeightShapes shapes;
  for (const PackedMatrix& m : weights.matrices())
    shapes.matrices.push_back({m.name, m.format, m.rows, m.cols, m.data != nullptr, m.may_round, m.narrow});
  for (const Vector& v : weights.vectors())
    shapes.vectors.push_back({v.name, static_cast<std::int64_t>(v.values.size()), indices_of(v.values)});
  return shapes;
}

}  // namespace pumice::cpu
