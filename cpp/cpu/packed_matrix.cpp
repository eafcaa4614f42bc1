#include "cpu/packed_matrix.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "core/finite.h"
#include "cpu/blas.h"

namespace pumice::cpu {
namespace {

// Number of source bytes that one thread reads and packs at a time. The source and the packed groups together fit in an L2 cache of 512
// KiB.
constexpr std::int64_t kPanelBytes = 192 * 1024;
// Returns the number of bytes for PackedMatrix::product_of_bias. These bytes are reserved even if no norm is folded, because cost() sees
// only one program and cannot know which norms are folded.
std::uint64_t bytes_of_products(const MatrixShape& matrix) {
  if (packing_of(matrix) != Packing::bytes) return 0;
  return static_cast<std::uint64_t>(round_up(matrix.rows_each(), kGroupRows) * matrix.experts) * sizeof(float);
}

}  // namespace

bool sgemm_by_blas() {
  static const bool chosen = [] {
    const char* value = std::getenv("PUMICE_SGEMM");
    const std::string_view name = value ? value : "";
    if (name.empty() || name == "own") return false;
    std::string known = blas_name();
    for (char& letter : known) letter |= 0x20;  // converts to lower case
    require(name == known, "the environment variable PUMICE_SGEMM is \"", name, "\"; known are own, ", known);
    if (!blas()) fail(ErrorKind::device, "PUMICE_SGEMM asks for ", blas_name(), ", which cannot be used: ", blas_why_not());
    return true;
  }();
  return chosen;
}

Packing packing_of(const MatrixShape& matrix) {
  require(matrix.experts == 1 || matrix.rounding != Rounding::bytes, "matrix '", matrix.name, "' of ", matrix.experts,
          " experts cannot be rounded to 8 bits");
  if (matrix.format == Format::F32 && sgemm_by_blas()) return Packing::row_major;
  if (matrix.rounding == Rounding::bytes && matrix.has_floats) {
    // 8-bit codes require that the number of columns is a multiple of kByteBlock (64).
    return matrix.cols % kByteBlock == 0 ? Packing::bytes : Packing::format;
  }
  const bool floats = matrix.has_floats || !info(matrix.format).quantized;
  return matrix.rounding != Rounding::none && floats ? Packing::fixed : Packing::format;
}

std::int64_t group_bytes_of(const MatrixShape& matrix) {
  const FormatInfo& format = info(matrix.format);
  // Matrices with 2^31 rows or columns are refused, because with fewer rows and columns none of the later sums overflows 64 bits. No model
  // has so many.
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

std::uint64_t packed_bytes(const MatrixShape& matrix) {
  const std::int64_t group = group_bytes_of(matrix);
  if (packing_of(matrix) == Packing::row_major) {
    const auto rows = static_cast<std::uint64_t>(mul_or_fail<std::int64_t>(matrix.rows, row_bytes(matrix.format, matrix.cols), "tensor"));
    return checked_align(rows, 64).value();  // has a value, because `rows` is below 2^63
  }
  const std::int64_t groups = mul_or_fail<std::int64_t>(ceil_div(matrix.rows_each(), kGroupRows) * matrix.experts, group, "tensor");
  return static_cast<std::uint64_t>(groups) + bytes_of_products(matrix);
}

std::int64_t PackedMatrix::expert_bytes() const {
  return packing == Packing::row_major ? rows_each() * row_bytes(format, cols) : groups_each() * group_bytes;
}

void PackedMatrix::unpack_row(std::int64_t row, float* out) const {
  if (packing == Packing::row_major) {
    std::memcpy(out, data + row * row_bytes(format, cols), static_cast<std::size_t>(row_bytes(format, cols)));
  } else {
    kernels->unpack_row(data + row / kGroupRows * group_bytes, static_cast<int>(row % kGroupRows), cols, out);
  }
}

// ---------------------------------------------------------------- panels
namespace {

// Multiplies `rows` rows of weights by a norm's weight, and writes the products of the unchanged rows with the norm's bias to
// product_of_bias.
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

}  // namespace

void add_panels(std::vector<Panel>& panels, std::size_t matrix, const PackedMatrix& packed, std::int32_t expert) {
  const std::int64_t groups = packed.groups_each(), group_bytes = kGroupRows * row_bytes(packed.format, packed.cols);
  const std::int64_t step = std::max<std::int64_t>(1, kPanelBytes / group_bytes);
  for (std::int64_t g = 0; g < groups; g += step) {
    const std::int64_t count = std::min(step, groups - g);
    panels.push_back({matrix, expert, g, count, count * group_bytes});
  }
}

PanelPacker::PanelPacker(const Matrix& source, const PackedMatrix& packed, PanelBuffers& buffers)
    : source_(source),
      packed_(packed),
      buffers_(buffers),
      stride_(row_bytes(source.format, source.cols)),
      from_floats_((packed.packing == Packing::fixed || packed.packing == Packing::bytes) && source.read_floats) {}

PanelPacker::Rows PanelPacker::rows_of(const Panel& panel) const {
  const std::int64_t in_expert = panel.first_group * kGroupRows;
  return {in_expert, panel.expert * packed_.rows_each() + in_expert, std::min(panel.groups * kGroupRows, packed_.rows_each() - in_expert)};
}

std::uint64_t PanelPacker::pack(const Panel& panel, std::uint8_t* expert) {
  const Rows rows = rows_of(panel);
  const std::uint8_t* from = from_floats_ ? nullptr : read(rows.first, rows.count, expert + rows.in_expert * stride_);
  for (std::int64_t row = 0; packed_.packing != Packing::row_major && row < rows.count; row += kGroupRows) {
    const std::int64_t count = std::min<std::int64_t>(kGroupRows, rows.count - row);
    const std::uint8_t* group_from = from ? from + row * stride_ : nullptr;
    std::uint8_t* group = expert + (rows.in_expert + row) / kGroupRows * packed_.group_bytes;
    if (packed_.packing == Packing::format) {
      packed_.kernels->pack_group(group_from, stride_, count, source_.cols, group);
    } else {
      pack_rounded(group_from, rows.first + row, count, group);
    }
  }
  return static_cast<std::uint64_t>(rows.count * stride_);
}

std::uint64_t PanelPacker::check(const Panel& panel) {
  const Rows rows = rows_of(panel);
  if (from_floats_) {
    buffers_.floats.resize(static_cast<std::size_t>(rows.count * source_.cols));
    read_floats(rows.first, rows.count, buffers_.floats.data());
  } else {
    buffers_.rows.resize(std::max(buffers_.rows.size(), static_cast<std::size_t>(rows.count * stride_)));
    source_.read(rows.first, rows.count, buffers_.rows.data());
    check_finite(source_, rows.first, rows.count, buffers_.rows.data());
  }
  return static_cast<std::uint64_t>(rows.count * stride_);
}

// Reads rows in the file's format and returns their address. If the matrix stays row-major, the rows are read directly to their final
// address, `row_major`; otherwise into a buffer.
const std::uint8_t* PanelPacker::read(std::int64_t first, std::int64_t rows, std::uint8_t* row_major) {
  std::uint8_t* to = row_major;
  if (packed_.packing != Packing::row_major) {
    buffers_.rows.resize(std::max(buffers_.rows.size(), static_cast<std::size_t>(rows * stride_)));
    to = buffers_.rows.data();
  }
  source_.read(first, rows, to);
  check_finite(source_, first, rows, to);
  return to;
}

void PanelPacker::pack_rounded(const std::uint8_t* from, std::int64_t row, std::int64_t count, std::uint8_t* group) {
  buffers_.floats.resize(static_cast<std::size_t>(count * source_.cols));
  float* floats = buffers_.floats.data();
  from ? unpack(source_.format, from, count * source_.cols, floats) : read_floats(row, count, floats);
  if (packed_.packing == Packing::fixed) return kernels().matrix.fixed.pack_group(floats, count, source_.cols, group);
  if (packed_.folded) fold(*packed_.folded, count, floats, packed_.product_of_bias + row);
  kernels().matrix.bytes.pack_group(floats, count, source_.cols, group);
}

void PanelPacker::read_floats(std::int64_t row, std::int64_t count, float* out) const {
  source_.read_floats(row, count, out);
  const Matrix shape{.name = source_.name, .format = Format::F32, .rows = source_.rows, .cols = source_.cols};
  check_finite(shape, row, count, reinterpret_cast<const std::uint8_t*>(out));
}

}  // namespace pumice::cpu
