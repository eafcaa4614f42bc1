// Floats of 8 bits, as DeepSeek, Qwen and transformers' "fp8" write them. A matrix of R rows and C columns, in blocks, consists of
//   weight           F8_E4M3 [R, C]
//   weight_scale_inv [R / block rows, C / block columns], rounded up; F32, F16, BF16, or powers of two as F8_E8M0. A weight is
//                    scale * value, although the name means the inverse of a scale
// If config.json has no weight_block_size, there is one scale for the matrix, or one for each row. vLLM's AutoFP8 calls the scales
// weight_scale. Scales of activations are not used. Other schemes with such matrices use add_fp8_module() (fbgemm.cpp, modelopt.cpp).
// Source: inference/kernel.py (weight_dequant) of DeepSeek-V3, integrations/finegrained_fp8.py of transformers 5.
#include "files/schemes/fp8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/checked.h"
#include "files/made_tensor.h"
#include "files/schemes/byte_rows.h"
#include "files/schemes/floats.h"

namespace pumice::files::schemes {
namespace {

// Reads as many scales as `out` has, beginning with value `first` of the tensor.
void read_block_scales(std::span<const File> files, const TensorInfo& tensor, std::int64_t first, std::span<float> out) {
  if (tensor.format) return read_numbers(files, tensor, first, static_cast<std::int64_t>(out.size()), out.data());
  std::vector<std::uint8_t> exponents(out.size());
  read_bytes(files, tensor, static_cast<std::uint64_t>(first), exponents.size(), exponents.data());
  // An F8_E8M0 code e is 2^(e - 127), but 255 is NaN (OCP Microscaling Formats 1.0, E8M0).
  std::ranges::transform(exponents, out.begin(), [](std::uint8_t e) { return e == 255 ? NAN : std::ldexp(1.0f, e - 127); });
}

// Makes rows in Format::F8_E4M3, whose blocks have 128 columns and a float scale. If a block would need two scales, or if rows do not
// divide into such blocks, the rows are made as BF16 or F32. BF16 is exact if all scales are powers of two. F32 is always exact, because
// weights are defined as float32 products.
class MadeOfFp8 final : public MadeTensor {
 public:
  MadeOfFp8(const Fp8& fp8, ByteRows rows)
      : rows_(std::move(rows)),
        weight_(*fp8.weight),
        scales_(*fp8.scales),
        cols_(rows_.width(0)),
        across_(ceil_div(cols_, fp8.block_cols)),
        block_rows_(fp8.block_rows),
        block_cols_(fp8.block_cols) {
    packing = fp8.library + ", floats of 8 bits, ";
    if (block_rows_ == rows_.rows() && across_ == 1)
      packing += "one scale";
    else if (block_rows_ == 1 && across_ == 1)
      packing += "one scale a row";
    else if (weight_.shape.size() == 3)
      packing += "one scale an expert";
    else
      packing += str("blocks of ", block_rows_, " x ", block_cols_);
    const bool one_scale = across_ == 1 || block_cols_ % kBlock == 0;
    if (cols_ % kBlock == 0 && one_scale)
      format_ = Format::F8_E4M3;
    else if (fp8.powers_of_two || scales_.format_name == "F8_E8M0")
      format_ = Format::BF16;
  }

  Format format() const { return format_; }

  void read(std::span<const File> files, std::int64_t first, std::int64_t count, std::uint8_t* out) const override {
    const std::int64_t begin = first / block_rows_, end = (first + count - 1) / block_rows_ + 1;
    std::vector<float> scales(static_cast<std::size_t>((end - begin) * across_));
    read_block_scales(files, scales_, begin * across_, scales);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(count * cols_));
    std::uint8_t* const to[] = {codes.data()};
    rows_.read(files, first, count, to);
    for (std::int64_t r = 0; r < count; ++r, out += row_bytes(format_, cols_)) {
      const std::span row(codes.data() + r * cols_, static_cast<std::size_t>(cols_));
      const std::span of_row(scales.data() + ((first + r) / block_rows_ - begin) * across_, static_cast<std::size_t>(across_));
      check(files, first + r, row, of_row);
      format_ == Format::F8_E4M3 ? write_codes(row, of_row, out) : write_floats(row, of_row, out);
    }
  }

 private:
  static constexpr std::int64_t kBlock = info(Format::F8_E4M3).block;

  // Throws if a code is NaN, if a scale is not finite, if a scale is larger than Format::F8_E4M3 allows (core/finite.cpp), or if rows are
  // made as BF16 and the product of a scale and some float of 8 bits would not be exact in BF16.
  void check(std::span<const File> files, std::int64_t row, std::span<const std::uint8_t> codes, std::span<const float> scales) const {
    for (std::size_t block = 0; block < scales.size(); ++block) {
      const float scale = scales[block];
      const auto fail = [&](const auto&... why) {
        fail_at(ErrorKind::model_format, files[scales_.file].path(), "tensor " + scales_.name, std::nullopt, "row ", row,
                " of the matrix: block ", block, " has the scale ", scale, why...);
      };
      if (!std::isfinite(scale)) fail();
      // The absolute values of floats of 8 bits are 0 and 2^-9 to 448. With a scale from 2^-117 to 2^118, products that are not 0 are
      // normal numbers of BF16.
      if (format_ == Format::BF16 && (std::bit_cast<std::uint32_t>(scale) & 0x807fffff || scale < 0x1p-117f || scale > 0x1p118f))
        fail("; powers of two from 2^-117 to 2^118 are needed");
      if (format_ == Format::F8_E4M3 && std::fabs(scale) >= 0x1p64f) fail("; sizes below 2^64 are read");
    }
    const auto nan = std::ranges::find_if(codes, [](std::uint8_t code) { return (code & 127) == 127; });
    if (nan != codes.end())
      fail_at(ErrorKind::model_format, files[weight_.file].path(), "tensor " + weight_.name, std::nullopt, "row ", row, ", column ",
              nan - codes.begin(), " is NaN (code ", int{*nan}, ")");
  }

  void write_codes(std::span<const std::uint8_t> codes, std::span<const float> scales, std::uint8_t* out) const {
    for (std::int64_t col = 0; col < cols_; col += kBlock) {
      std::memcpy(out, &scales[static_cast<std::size_t>(col / block_cols_)], sizeof(float));
      std::memcpy(out + sizeof(float), codes.data() + col, static_cast<std::size_t>(kBlock));
      out += sizeof(float) + static_cast<std::size_t>(kBlock);
    }
  }

  void write_floats(std::span<const std::uint8_t> codes, std::span<const float> scales, std::uint8_t* out) const {
    std::vector<float> weights(codes.size());
    for (std::size_t col = 0; col < codes.size(); ++col)
      weights[col] = scales[col / static_cast<std::size_t>(block_cols_)] * e4m3_values()[codes[col]];
    pack(format_, weights.data(), cols_, out);
  }

  ByteRows rows_;
  TensorInfo weight_, scales_;
  std::int64_t cols_, across_, block_rows_, block_cols_;
  Format format_ = Format::F32;
};

// Finds the tensors of a matrix with one scale, or with one scale for each row.
Fp8 fp8_of(PackedFolder& folder, const std::string& module, const Fp8Library& library) {
  for (const std::string_view unused : library.unused) folder.drop(folder.find(module, unused));
  const TensorInfo& weight = folder.need(module, "weight", {"F8_E4M3"});
  const auto there = std::ranges::find_if(library.scales, [&](std::string_view name) { return folder.find(module, name) != nullptr; });
  const TensorInfo& scales =
      folder.need(module, there == library.scales.end() ? library.scales[0] : *there, {"F32", "F16", "BF16", "F8_E8M0"});
  Fp8 fp8{.module = module, .library = library.name, .weight = &weight, .scales = &scales};
  if (!scales.shape.empty() && scales.shape[0] > 1) fp8.block_rows = 1;
  return fp8;
}

}  // namespace

void add_fp8_matrix(PackedFolder& folder, const Fp8& given) {
  Fp8 fp8 = given;
  const TensorInfo &weight = *fp8.weight, &scales = *fp8.scales;
  refuse_experts(folder, weight);
  folder.need_shape(weight, {-1, -1});
  const std::int64_t rows = weight.shape[0], cols = weight.shape[1];
  if (fp8.block_rows == 0) fp8.block_rows = rows;
  if (fp8.block_cols == 0) fp8.block_cols = cols;
  const std::int64_t down = ceil_div(rows, fp8.block_rows), across = ceil_div(cols, fp8.block_cols);
  const bool one = down == 1 && across == 1 && (scales.shape.empty() || scales.shape == std::vector<std::int64_t>{1});
  const bool by_row = fp8.block_rows == 1 && across == 1 && scales.shape == std::vector{rows};
  if (!one && !by_row) folder.need_shape(scales, {down, across});
  const ByteRows bytes(folder, {weight}, false);
  const auto made = std::make_shared<const MadeOfFp8>(fp8, bytes);
  folder.add(bytes.tensor(fp8.module, cols, made->format(), made), {&weight, &scales});
}

void add_fp8_stack(PackedFolder& folder, const std::string& stack, const Fp8Library& library) {
  for (const std::string_view unused : library.unused) folder.drop(folder.find(str(stack, "_", unused)));
  const TensorInfo &weight = folder.need(stack, {"F8_E4M3"}), &scales = folder.need(str(stack, "_", library.scales[0]), {"F32"});
  folder.need_shape(weight, {-1, -1, -1});
  const std::int64_t experts = weight.shape[0], cols = weight.shape[1], rows = experts * weight.shape[2];
  const auto count = static_cast<std::int64_t>(scales.bytes / sizeof(float));
  if (count != 1 && ((count != experts && count != rows) || scales.shape[0] != experts))
    folder.fail_tensor(scales, "has ", count, " numbers; 1, or ", experts, " for the experts, or ", rows, " for their rows are needed");
  const Fp8 fp8{
      .module = stack, .library = library.name, .weight = &weight, .scales = &scales, .block_rows = rows / count, .block_cols = cols};
  const ByteRows bytes(folder, {weight}, true);
  const auto made = std::make_shared<const MadeOfFp8>(fp8, bytes);
  folder.add(bytes.tensor(stack, cols, made->format(), made), {&weight, &scales});
}

void add_fp8_module(PackedFolder& folder, const std::string& module, const Fp8Library& library) {
  add_fp8_matrix(folder, fp8_of(folder, module, library));
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
  const Fp8Library library{
      .name = "FP8", .scales = {"weight_scale_inv", "weight_scale"}, .unused = {"input_scale", "activation_scale", "input_scale_inv"}};
  for (const std::string& module : folder.modules({"weight_scale_inv", "weight_scale"}, "F8_E4M3")) {
    Fp8 fp8 = fp8_of(folder, module, library);
    fp8.powers_of_two = powers;
    if (!block.empty()) {
      fp8.block_rows = block[0];
      fp8.block_cols = block[1];
    }
    add_fp8_matrix(folder, fp8);
  }
}

}  // namespace pumice::files::schemes
