// Floats of 8 bits, as DeepSeek, Qwen and transformers' "fp8" write them. A matrix of R rows and C columns, in blocks, consists of
//   weight           F8_E4M3 [R, C]
//   weight_scale_inv [R / block rows, C / block columns], rounded up: a weight is scale * value, although the name says the inverse.
//                    F32, F16, BF16, or powers of two as F8_E8M0
// Without weight_block_size there is one scale for the matrix, or one for each row. vLLM's AutoFP8 calls it weight_scale. Scales of
// activations are not used.
// Source: inference/kernel.py (weight_dequant) of DeepSeek-V3, integrations/finegrained_fp8.py of transformers 5.
#include "files/schemes/fp8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "core/checked.h"
#include "files/schemes/floats.h"

namespace pumice::files::schemes {
namespace {

// Reads `count` scales, beginning with value `first`.
void read_block_scales(std::span<const File> files, const TensorInfo& tensor, std::int64_t first, std::span<float> out) {
  if (tensor.format) return read_numbers(files, tensor, first, static_cast<std::int64_t>(out.size()), out.data());
  std::vector<std::uint8_t> exponents(out.size());
  read_bytes(files, tensor, static_cast<std::uint64_t>(first), exponents.size(), exponents.data());
  // 2^(e - 127); 255 is NaN (OCP Microscaling Formats 1.0, E8M0).
  std::ranges::transform(exponents, out.begin(), [](std::uint8_t e) { return e == 255 ? NAN : std::ldexp(1.0f, e - 127); });
}

// Throws unless a scale is finite and, if all are powers of two, BF16 holds its products with all floats of 8 bits.
void check_scale(std::span<const File> files, const TensorInfo& tensor, std::int64_t row, std::int64_t block, float scale, bool power) {
  const auto fail = [&](const auto&... why) {
    fail_at(ErrorKind::model_format, files[tensor.file].path(), "tensor " + tensor.name, std::nullopt, "row ", row,
            " of the matrix: block ", block, " has the scale ", scale, why...);
  };
  if (!std::isfinite(scale)) fail();
  // The smallest value is 2^-9, the largest 448: their products are normal numbers of BF16.
  if (power && (std::bit_cast<std::uint32_t>(scale) & 0x807fffff || scale < 0x1p-117f || scale > 0x1p118f))
    fail("; powers of two from 2^-117 to 2^118 are needed");
}

std::string fp8_packing(const Fp8& fp8, std::int64_t rows, std::int64_t cols) {
  if (fp8.block_rows == rows && fp8.block_cols == cols) return fp8.library + ", floats of 8 bits, one scale";
  if (fp8.block_rows == 1 && fp8.block_cols == cols) return fp8.library + ", floats of 8 bits, one scale a row";
  return str(fp8.library, ", floats of 8 bits, blocks of ", fp8.block_rows, " x ", fp8.block_cols);
}

}  // namespace

void add_fp8_matrix(PackedFolder& folder, const Fp8& given) {
  Fp8 fp8 = given;
  const TensorInfo &weight = *fp8.weight, &scales = *fp8.scales;
  if (weight.shape.size() == 3)
    folder.unsupported("quant_method", "has all experts in ", weight.name,
                       ", which is not read if it is packed; one tensor for each expert is");
  folder.need_shape(weight, {-1, -1});
  const std::int64_t rows = weight.shape[0], cols = weight.shape[1];
  if (fp8.block_rows == 0) fp8.block_rows = rows;
  if (fp8.block_cols == 0) fp8.block_cols = cols;
  const std::int64_t down = ceil_div(rows, fp8.block_rows), across = ceil_div(cols, fp8.block_cols);
  const bool one = down == 1 && across == 1 && (scales.shape.empty() || scales.shape == std::vector<std::int64_t>{1});
  const bool by_row = fp8.block_rows == 1 && across == 1 && scales.shape == std::vector{rows};
  if (!one && !by_row) folder.need_shape(scales, {down, across});

  Floats floats{.module = fp8.module, .rows = rows, .cols = cols, .packing = fp8_packing(fp8, rows, cols), .from = weight};
  const bool power = fp8.powers_of_two || scales.format_name == "F8_E8M0";
  if (power) {
    floats.format = Format::BF16;
  } else {
    floats.not_exact = "no format has floats of 8 bits";
  }
  floats.read = [weight, scales, cols, across, power, block_rows = fp8.block_rows, block_cols = fp8.block_cols](
                    std::span<const File> files, std::int64_t first, std::int64_t count, float* out) {
    const std::int64_t begin = first / block_rows, end = (first + count - 1) / block_rows + 1;
    std::vector<float> scale(static_cast<std::size_t>((end - begin) * across));
    read_block_scales(files, scales, begin * across, scale);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(count * cols));
    read_bytes(files, weight, static_cast<std::uint64_t>(first * cols), codes.size(), codes.data());
    const std::array<float, 256>& values = e4m3_values();
    const std::uint8_t* code = codes.data();
    for (std::int64_t row = first; row < first + count; ++row) {
      for (std::int64_t block = 0; block < across; ++block) {
        const float by = scale[static_cast<std::size_t>((row / block_rows - begin) * across + block)];
        check_scale(files, scales, row, block, by, power);
        for (std::int64_t col = block * block_cols; col < std::min(cols, (block + 1) * block_cols); ++col, ++code) {
          if ((*code & 127) == 127)
            fail_at(ErrorKind::model_format, files[weight.file].path(), "tensor " + weight.name, std::nullopt, "row ", row, ", column ",
                    col, " is NaN (code ", int{*code}, ")");
          *out++ = by * values[*code];
        }
      }
    }
  };
  folder.add(made_of(std::move(floats)), {&weight, &scales});
}

void add_fp8(PackedFolder& folder) {
  const Metadata& config = folder.config();
  if (const auto format = config.string(folder.key("fmt")); format && *format != "e4m3")
    folder.unsupported("fmt", "is ", quote(*format), "; e4m3 is read");
  const bool powers = config.string(folder.key("scale_fmt")).value_or("") == "ue8m0";
  const auto block = config.integer_list(folder.key("weight_block_size")).value_or(std::vector<std::int64_t>{});
  if (!block.empty() && (block.size() != 2 || std::ranges::any_of(block, [](std::int64_t n) { return n < 1 || n > (1 << 20); })))
    fail_at(ErrorKind::model_format, config.file(), folder.key("weight_block_size"), std::nullopt, "is no list of two numbers from 1 to ",
            1 << 20);
  for (const std::string& module : folder.modules({"weight_scale_inv", "weight_scale"}, "F8_E4M3")) {
    for (const char* unused : {"input_scale", "activation_scale", "input_scale_inv"}) folder.drop(folder.find(module, unused));
    const TensorInfo& weight = folder.need(module, "weight", {"F8_E4M3"});
    const char* const suffix = folder.find(module, "weight_scale") ? "weight_scale" : "weight_scale_inv";
    const TensorInfo& scales = folder.need(module, suffix, {"F32", "F16", "BF16", "F8_E8M0"});
    Fp8 fp8{.module = module, .library = "FP8", .weight = &weight, .scales = &scales, .powers_of_two = powers};
    if (!block.empty()) {
      fp8.block_rows = block[0];
      fp8.block_cols = block[1];
    } else if (!scales.shape.empty() && scales.shape[0] > 1) {
      fp8.block_rows = 1;
    }
    add_fp8_matrix(folder, fp8);
  }
}

}  // namespace pumice::files::schemes
