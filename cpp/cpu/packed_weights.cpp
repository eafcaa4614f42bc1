#include "cpu/packed_weights.h"

#include <algorithm>
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

std::int64_t checked_group_bytes(const Matrix& matrix) {
  const FormatInfo& format = info(matrix.format);
  // 2^31 either way is beyond any model and keeps all later sums inside 64 bits.
  if (matrix.rows < 1 || matrix.cols < 1 || matrix.rows > INT32_MAX || matrix.cols > INT32_MAX || matrix.cols % format.block != 0) {
    fail(ErrorKind::unsupported_model, "tensor '", matrix.name, "' (", format.name, ") has ", matrix.rows, " rows of ", matrix.cols,
         " weights; needed: 1 to ", INT32_MAX, " of each, and rows of whole blocks of ", format.block);
  }
  if (packs_fixed(matrix.format, matrix.may_round)) return kernels().matrix.fixed.group_bytes(matrix.cols);
  return kernels().matrix[matrix.format].group_bytes(matrix.cols);
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

bool stays_row_major(Format format) { return format == Format::F32 && sgemm_by_openblas(); }

bool packs_fixed(Format format, bool may_round) { return may_round && !info(format).quantized && !stays_row_major(format); }

std::uint64_t packed_bytes(const Matrix& matrix) {
  const std::int64_t group = checked_group_bytes(matrix);
  if (stays_row_major(matrix.format)) {
    const auto rows = static_cast<std::uint64_t>(mul_or_fail<std::int64_t>(matrix.rows, row_bytes(matrix.format, matrix.cols), "tensor"));
    return checked_align(rows, 64).value();  // below 2^63
  }
  return static_cast<std::uint64_t>(mul_or_fail<std::int64_t>(ceil_div(matrix.rows, kGroupRows), group, "tensor"));
}

void PackedMatrix::unpack_row(std::int64_t row, float* out) const {
  if (row_major) {
    std::memcpy(out, data + row * row_bytes(format, cols), static_cast<std::size_t>(row_bytes(format, cols)));
  } else {
    kernels->unpack_row(group(row / kGroupRows), static_cast<int>(row % kGroupRows), cols, out);
  }
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
  struct Panel { std::size_t matrix; std::int64_t first_group, groups; };
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
    const auto sum = checked_add(needed, packed_bytes(source));
    if (!sum) fail(ErrorKind::out_of_memory, "weights: more bytes than can be addressed");
    needed = *sum;
    packed.group_bytes = checked_group_bytes(source);
    packed.kernels = &kernels().matrix[source.format];
    packed.row_major = stays_row_major(source.format);
    packed.fixed = packs_fixed(source.format, source.may_round);
    packed.may_round = source.may_round;
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
    at += packed_bytes(weights.matrices[m]);
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
    if (packed.row_major) {
      from = packed.data + first * stride;
    } else {
      rows_read.resize(std::max(rows_read.size(), static_cast<std::size_t>(rows * stride)));
      from = rows_read.data();
    }
    source.read(first, rows, from);
    check_finite(source, first, rows, from);
    for (std::int64_t g = 0; !packed.row_major && g < panel.groups; ++g) {
      const std::uint8_t* first_row = from + g * kGroupRows * stride;
      const std::int64_t of_group = std::min<std::int64_t>(kGroupRows, rows - g * kGroupRows);
      std::uint8_t* group = packed.data + (panel.first_group + g) * packed.group_bytes;
      if (packed.fixed) {
        floats.resize(static_cast<std::size_t>(of_group * source.cols));
        unpack(source.format, first_row, of_group * source.cols, floats.data());
        kernels().matrix.fixed.pack_group(floats.data(), of_group, source.cols, group);
      } else {
        packed.kernels->pack_group(first_row, stride, of_group, source.cols, group);
      }
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
    shapes.matrices.push_back({m.name, m.format, m.rows, m.cols, m.data != nullptr, m.may_round});
  for (const Vector& v : weights.vectors()) shapes.vectors.push_back({v.name, static_cast<std::int64_t>(v.values.size())});
  return shapes;
}

}  // namespace pumice::cpu
