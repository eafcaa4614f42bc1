// bitsandbytes. A matrix of R rows and C columns in 4 bits (nf4, fp4) consists of these tensors:
//   weight           U8 [R C / 2, 1] (or [1, R C / 2]): the codes of all rows as one list; the first code of a byte is in its high half
//   weight.quant_map F32 [16]: the values of the codes
//   weight.absmax    F32 [blocks]: a factor for each block of `blocksize` codes. If absmax is U8, it has codes of the factors. Factor i is
//                    then nested_quant_map[code i] * nested_absmax[i / nested_blocksize] + nested_offset, from these tensors:
//     weight.nested_absmax    F32 [blocks / nested_blocksize]
//     weight.nested_quant_map F32 [256]
//   weight.quant_state.bitsandbytes__nf4 (or __fp4) U8: JSON with shape, dtype, blocksize, nested_blocksize and nested_offset
// A weight is quant_map[code] * factor, a float32 product that the CUDA kernel rounds to `dtype`.
// A matrix in 8 bits (LLM.int8) consists of these tensors:
//   weight I8 [R, C], SCB F32 [R]: a weight is code * SCB / 127 in float32
// Source: functional.py (QuantState), csrc/kernels.cu (kDequantizeBlockwise), _ops.py (int8_vectorwise_dequant) of bitsandbytes 0.48.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/checked.h"
#include "files/json.h"
#include "files/schemes/floats.h"
#include "files/schemes/folder.h"

namespace pumice::files::schemes {
namespace {

constexpr std::uint64_t kMaxState = 1 << 16;  // largest size in bytes of a matrix's JSON (quant_state)
constexpr std::int64_t kMaxBlock = 1 << 20;

// The fields of a matrix's JSON (quant_state) that are used here.
struct State {
  std::int64_t rows = 0, cols = 0, block = 0, nested_block = 0;
  float nested_offset = 0;
  Format format = Format::F32;
};

State state_of(const PackedFolder& folder, const TensorInfo& tensor, bool nested) {
  if (tensor.format_name != "U8" || tensor.bytes > kMaxState)
    folder.fail_tensor(tensor, "is ", tensor.format_name, " of ", tensor.bytes, " bytes; U8 of at most ", kMaxState, " bytes is needed");
  std::string text(static_cast<std::size_t>(tensor.bytes), '\0');
  read_bytes(folder.files(), tensor, 0, tensor.bytes, text.data());
  const std::string where = str(folder.files()[tensor.file].path(), ": tensor ", tensor.name);
  const Metadata json(where, parse_config(where, text));
  const auto need_size = [&](const char* key) {
    const std::int64_t size = json.integer(key).value_or(0);
    if (size < 1 || size > kMaxBlock) folder.fail_tensor(tensor, "has ", key, " ", size, "; 1 to ", kMaxBlock, " are read");
    return size;
  };
  State state{.block = need_size("blocksize")};
  if (nested) {
    state.nested_block = need_size("nested_blocksize");
    const double offset = json.number("nested_offset").value_or(NAN);
    state.nested_offset = static_cast<float>(offset);
    if (!std::isfinite(state.nested_offset)) folder.fail_tensor(tensor, "has nested_offset ", offset, "; a finite number is needed");
  }
  const auto shape = json.integer_list("shape").value_or(std::vector<std::int64_t>{});
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (shape.size() != 2 || std::ranges::any_of(shape, [](std::int64_t n) { return n < 1 || n > kMost; }))
    folder.fail_tensor(tensor, "has a shape that is no matrix");
  state.rows = shape[0];
  state.cols = shape[1];
  const std::string dtype = json.string("dtype").value_or("");
  if (dtype == "bfloat16") {
    state.format = Format::BF16;
  } else if (dtype == "float16") {
    state.format = Format::F16;
  } else if (dtype != "float32") {
    folder.fail_tensor(tensor, "has dtype ", quote(dtype), "; float32, float16 and bfloat16 are read");
  }
  return state;
}

struct Nested4 {  // what is needed to compute factors that are stored as codes
  TensorInfo absmax, map;
  std::int64_t block = 0;
  float offset = 0;
};

// Returns the factors of blocks [first, first + count). `nested` is empty if absmax has the factors themselves and not codes.
std::vector<float> read_factors(std::span<const File> files, const TensorInfo& absmax, const std::optional<Nested4>& nested,
                                std::int64_t first, std::int64_t count) {
  std::vector<float> factors(static_cast<std::size_t>(count));
  if (!nested) {
    read_numbers(files, absmax, first, count, factors.data());
    return factors;
  }
  std::vector<std::uint8_t> codes(factors.size());
  read_bytes(files, absmax, static_cast<std::uint64_t>(first), codes.size(), codes.data());
  std::array<float, 256> map{};
  read_numbers(files, nested->map, 0, 256, map.data());
  const std::int64_t begin = first / nested->block, end = (first + count - 1) / nested->block + 1;
  std::vector<float> outer(static_cast<std::size_t>(end - begin));
  read_numbers(files, nested->absmax, begin, end - begin, outer.data());
  for (std::int64_t i = 0; i < count; ++i)
    factors[static_cast<std::size_t>(i)] =
        map[codes[static_cast<std::size_t>(i)]] * outer[static_cast<std::size_t>((first + i) / nested->block - begin)] + nested->offset;
  return factors;
}

void add_4_bits(PackedFolder& folder, const std::string& module) {
  const std::string name = module + ".weight", state_name = name + ".quant_state";
  const bool fp4 = folder.find(state_name, "bitsandbytes__fp4") ||
                   (!folder.find(state_name, "bitsandbytes__nf4") && folder.config().string(folder.key("bnb_4bit_quant_type")) == "fp4");
  const TensorInfo& json = folder.need(state_name, fp4 ? "bitsandbytes__fp4" : "bitsandbytes__nf4", {"U8"});
  const TensorInfo &codes = folder.need(module, "weight", {"U8"}), &map = folder.need(name, "quant_map", {"F32"}),
                   &absmax = folder.need(name, "absmax", {"F32", "U8"});
  const bool is_nested = absmax.format_name == "U8";
  const State state = state_of(folder, json, is_nested);
  const std::int64_t all = mul_or_fail(state.rows, state.cols, name.c_str()), bytes = ceil_div(all, std::int64_t{2}),
                     blocks = ceil_div(all, state.block);
  if (codes.shape != std::vector<std::int64_t>{1, bytes}) folder.need_shape(codes, {bytes, 1});
  folder.need_shape(map, {16});
  folder.need_shape(absmax, {blocks});
  std::optional<Nested4> nested;
  const TensorInfo *outer = nullptr, *outer_map = nullptr;
  if (is_nested) {
    outer = &folder.need(name, "nested_absmax", {"F32"});
    outer_map = &folder.need(name, "nested_quant_map", {"F32"});
    folder.need_shape(*outer, {ceil_div(blocks, state.nested_block)});
    folder.need_shape(*outer_map, {256});
    nested = Nested4{.absmax = *outer, .map = *outer_map, .block = state.nested_block, .offset = state.nested_offset};
  }
  Floats floats{.module = module,
                .rows = state.rows,
                .cols = state.cols,
                .format = state.format,
                .packing = str("bitsandbytes, ", fp4 ? "fp4" : "nf4", ", blocks of ", state.block, is_nested ? ", nested" : ""),
                .from = codes};
  floats.read = [codes, map, absmax, nested, cols = state.cols, block = state.block](std::span<const File> files, std::int64_t first,
                                                                                     std::int64_t count, float* out) {
    const std::int64_t begin = first * cols, end = begin + count * cols;  // indices in the list of all codes
    std::array<float, 16> values{};
    read_numbers(files, map, 0, 16, values.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!std::isfinite(values[i]))
        fail_at(ErrorKind::model_format, files[map.file].path(), "tensor " + map.name, std::nullopt, "value ", i, " is ", values[i]);
    }
    std::vector<std::uint8_t> packed(static_cast<std::size_t>((end + 1) / 2 - begin / 2));
    read_bytes(files, codes, static_cast<std::uint64_t>(begin / 2), packed.size(), packed.data());
    const std::int64_t low = begin / block;
    const std::vector<float> factors = read_factors(files, absmax, nested, low, (end - 1) / block + 1 - low);
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t number = at / block;
      const float factor = factors[static_cast<std::size_t>(number - low)];
      if (!std::isfinite(factor))
        fail_at(ErrorKind::model_format, files[absmax.file].path(), "tensor " + absmax.name, std::nullopt, "row ", at / cols,
                " of the matrix: block ", number, " has the factor ", factor);
      for (const std::int64_t stop = std::min(end, (number + 1) * block); at < stop; ++at) {
        const std::uint8_t byte = packed[static_cast<std::size_t>(at / 2 - begin / 2)];
        *out++ = values[at % 2 == 0 ? byte >> 4 : byte & 15] * factor;
      }
    }
  };
  folder.add(made_of(std::move(floats)), {&codes, &map, &absmax, &json, outer, outer_map});
}

void add_8_bits(PackedFolder& folder, const std::string& module) {
  const TensorInfo &codes = folder.need(module, "weight", {"I8"}), &scales = folder.need(module, "SCB", {"F32"});
  folder.need_shape(codes, {-1, -1});
  const std::int64_t rows = codes.shape[0], cols = codes.shape[1];
  folder.need_shape(scales, {rows});
  const TensorInfo* order = folder.find(module, "weight_format");
  if (order) {
    std::uint8_t kind = 0;
    if (order->format_name != "U8" || order->bytes != 1) folder.fail_tensor(*order, "is no single number of U8");
    read_bytes(folder.files(), *order, 0, 1, &kind);
    if (kind != 0) folder.fail_tensor(*order, "is ", int{kind}, "; 0, codes row by row, is read");
  }
  Floats floats{.module = module,
                .rows = rows,
                .cols = cols,
                .packing = "bitsandbytes, int8",
                .not_exact = "its scales are F32, and those of blocks are F16",
                .from = codes};
  floats.read = [codes, scales, cols](std::span<const File> files, std::int64_t first, std::int64_t count, float* out) {
    std::vector<float> scale(static_cast<std::size_t>(count));
    read_numbers(files, scales, first, count, scale.data());
    std::vector<std::int8_t> row(static_cast<std::size_t>(cols));
    for (std::int64_t r = 0; r < count; ++r) {
      const float by = scale[static_cast<std::size_t>(r)];
      if (!std::isfinite(by))
        fail_at(ErrorKind::model_format, files[scales.file].path(), "tensor " + scales.name, std::nullopt, "row ", first + r,
                " has the scale ", by);
      read_bytes(files, codes, static_cast<std::uint64_t>((first + r) * cols), row.size(), row.data());
      for (const std::int8_t code : row) *out++ = static_cast<float>(code) * by * 7.874015718698502e-3f;  // 1 / 127 as float32
    }
  };
  folder.add(made_of(std::move(floats)), {&codes, &scales, order});
}

}  // namespace

void add_bitsandbytes(PackedFolder& folder) {
  std::set<std::string> four;
  for (const std::string& name : folder.modules({"absmax", "quant_map", "nested_absmax", "nested_quant_map"})) {
    if (name.ends_with(".weight")) four.insert(name.substr(0, name.size() - std::string_view(".weight").size()));
  }
  for (const std::string& name : folder.modules({"bitsandbytes__nf4", "bitsandbytes__fp4"})) {
    constexpr std::string_view kEnd = ".weight.quant_state";
    if (name.ends_with(kEnd)) four.insert(name.substr(0, name.size() - kEnd.size()));
  }
  four.merge(folder.modules({}, "U8"));
  for (const std::string& module : four) add_4_bits(folder, module);
  for (const std::string& module : folder.modules({"SCB"}, "I8")) add_8_bits(folder, module);
}

}  // namespace pumice::files::schemes
