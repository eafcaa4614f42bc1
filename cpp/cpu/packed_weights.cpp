#include "cpu/packed_weights.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>

#include "core/checked.h"
#include "cpu/blas.h"

namespace pumice::cpu {
namespace {

// Source bytes that one thread reads and packs at a time: source and groups together stay in a 512 KiB L2.
constexpr std::int64_t kPanelBytes = 192 * 1024;
// Source bytes of one turn on the team: about 10 ms at 10 GB/s.
constexpr std::int64_t kTurnBytes = 64 * 1024 * 1024;

// An exponent of all ones means NaN or infinity. Adding one at its lowest bit then carries into the sign's place, and only then: no
// comparison, no early exit, so that the loop runs in vectors (the check must stay small beside the packing).
template <class Word>
bool carries(const std::uint8_t* data, std::int64_t n, std::int64_t stride, Word exponent, Word lowest, Word sign) {
  Word all = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    Word word;
    std::memcpy(&word, data + i * stride, sizeof word);
    all = static_cast<Word>(all | ((word & exponent) + lowest));
  }
  return (all & sign) != 0;
}

bool all_finite(Format format, std::int64_t weights, const std::uint8_t* packed) {
  const std::int64_t bytes = info(format).block_bytes, blocks = weights / info(format).block;
  const auto halves = [&](int offset) { return !carries<std::uint16_t>(packed + offset, blocks, bytes, 0x7C00, 0x0400, 0x8000); };
  const auto pairs = [&](int offset) {  // two float16 side by side
    return !carries<std::uint32_t>(packed + offset, blocks, bytes, 0x7C007C00u, 0x04000400u, 0x80008000u);
  };
  switch (format) {  // where scales lie in a block: ggml-common.h, gguf-py quants.py
    case Format::F32: return !carries<std::uint32_t>(packed, weights, 4, 0x7F800000u, 0x00800000u, 0x80000000u);
    case Format::F16: return !carries<std::uint16_t>(packed, weights, 2, 0x7C00, 0x0400, 0x8000);
    case Format::BF16: return !carries<std::uint16_t>(packed, weights, 2, 0x7F80, 0x0080, 0x8000);
    case Format::Q4_0:
    case Format::Q5_0:
    case Format::Q8_0:
    case Format::IQ4_NL:
    case Format::IQ4_XS: return halves(0);
    case Format::Q4_1:
    case Format::Q5_1:
    case Format::Q4_K:
    case Format::Q5_K: return pairs(0);
    case Format::Q2_K: return pairs(80);
    case Format::Q3_K: return halves(108);
    case Format::Q6_K: return halves(208);
    // The scale is a power of two, 2^(e - 128) on codes up to 12: past 252 the product leaves float32 (255 is the format's NaN).
    case Format::MXFP4: return !carries<std::uint16_t>(packed, blocks, bytes, 0x00FF, 3, 0x0100);
  }
  return false;
}

std::int64_t checked_group_bytes(const Matrix& matrix) {
  const FormatInfo& format = info(matrix.format);
  // 2^31 either way is beyond any model and keeps all later sums inside 64 bits.
  if (matrix.rows < 1 || matrix.cols < 1 || matrix.rows > INT32_MAX || matrix.cols > INT32_MAX || matrix.cols % format.block != 0) {
    fail(ErrorKind::unsupported_model, "tensor '", matrix.name, "' (", format.name, ") has ", matrix.rows, " rows of ", matrix.cols,
         " weights; needed: 1 to ", INT32_MAX, " of each, and rows of whole blocks of ", format.block);
  }
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

std::uint64_t packed_bytes(const Matrix& matrix) {
  const std::int64_t group = checked_group_bytes(matrix);
  if (stays_row_major(matrix.format)) {
    return static_cast<std::uint64_t>(mul_or_fail<std::int64_t>(matrix.rows, row_bytes(matrix.format, matrix.cols), "tensor"));
  }
  return static_cast<std::uint64_t>(mul_or_fail<std::int64_t>(ceil_div(matrix.rows, kGroupRows), group, "tensor"));
}

std::int64_t first_non_finite_row(Format format, std::int64_t rows, std::int64_t cols, const std::uint8_t* packed) {
  if (all_finite(format, rows * cols, packed)) return -1;
  std::int64_t row = 0;
  while (row + 1 < rows && all_finite(format, cols, packed + row * row_bytes(format, cols))) ++row;
  return row;
}

void PackedMatrix::unpack_row(std::int64_t row, float* out) const {
  if (row_major) {
    std::memcpy(out, data.data() + row * row_bytes(format, cols), static_cast<std::size_t>(row_bytes(format, cols)));
  } else {
    kernels->unpack_row(group(row / kGroupRows), static_cast<int>(row % kGroupRows), cols, out);
  }
}

PackedWeights::PackedWeights(const Weights& weights, const std::vector<bool>& used, Team& team, const Progress& progress,
                             const Cancel& cancel) {
  require(used.empty() || used.size() == weights.matrices.size(), "weights: `used` names ", used.size(), " matrices of ",
          weights.matrices.size());
  for (const Vector& vector : weights.vectors) {
    for (const float value : vector.values) {
      if (!std::isfinite(value)) {
        fail(ErrorKind::numeric, "tensor '", vector.name, "' holds a NaN or an infinity: the file is damaged or was converted wrongly");
      }
    }
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
    const std::int64_t groups = ceil_div(source.rows, kGroupRows);
    const std::int64_t step = std::max<std::int64_t>(1, kPanelBytes / (kGroupRows * row_bytes(source.format, source.cols)));
    for (std::int64_t g = 0; g < groups; g += step) panels.push_back({m, g, std::min(step, groups - g)});
  }
  check_memory(needed, "the model's weights");
  for (std::size_t m = 0; m < matrices_.size(); ++m) {
    if (used.empty() || used[m]) matrices_[m].data = Buffer(packed_bytes(weights.matrices[m]), "tensor '" + matrices_[m].name + "'");
  }
  bytes_ += needed;

  std::vector<std::vector<std::uint8_t>> sources(static_cast<std::size_t>(team.threads()));
  std::mutex progress_lock;
  std::uint64_t done = 0;
  const auto pack_panel = [&](const Panel& panel, int thread) {
    const Matrix& source = weights.matrices[panel.matrix];
    const PackedMatrix& packed = matrices_[panel.matrix];
    const std::int64_t stride = row_bytes(source.format, source.cols);
    const std::int64_t first = panel.first_group * kGroupRows;
    const std::int64_t rows = std::min(panel.groups * kGroupRows, source.rows - first);
    std::vector<std::uint8_t>& rows_read = sources[static_cast<std::size_t>(thread)];
    std::uint8_t* from;
    if (packed.row_major) {
      from = packed.data.data() + first * stride;
    } else {
      rows_read.resize(std::max(rows_read.size(), static_cast<std::size_t>(rows * stride)));
      from = rows_read.data();
    }
    source.read(first, rows, from);
    if (const std::int64_t bad = first_non_finite_row(source.format, rows, source.cols, from); bad >= 0) {
      fail(ErrorKind::numeric, "tensor '", source.name, "' (", name(source.format), ") holds a NaN or an infinity in row ", first + bad,
           ": the file is damaged or was converted wrongly; get it again");
    }
    for (std::int64_t g = 0; !packed.row_major && g < panel.groups; ++g) {
      packed.kernels->pack_group(from + g * kGroupRows * stride, stride, std::min<std::int64_t>(kGroupRows, rows - g * kGroupRows),
                                 source.cols, packed.data.data() + (panel.first_group + g) * packed.group_bytes);
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

}  // namespace pumice::cpu
