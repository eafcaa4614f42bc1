// Weight formats: names, sizes, and the reference implementations of packing and unpacking.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace pumice {

enum class Format : std::uint8_t {
#define PUMICE_FORMAT(name, gguf_id, block, bytes, int8) name,
#include "core/formats.def"
#undef PUMICE_FORMAT
};

inline constexpr std::uint32_t kNoGgufId = 0xffffffff;  // the id of formats that no GGUF file has

struct FormatInfo {
  Format format;
  std::string_view name;
  std::uint32_t gguf_id;
  std::int64_t block;        // weights per block
  std::int64_t block_bytes;  // bytes per block
  bool quantized;            // true: products may use activations rounded to int8
};

inline constexpr FormatInfo kFormats[] = {
#define PUMICE_FORMAT(name, gguf_id, block, bytes, int8) {Format::name, #name, gguf_id, block, bytes, int8},
#include "core/formats.def"
#undef PUMICE_FORMAT
};
inline constexpr std::size_t kFormatCount = std::size(kFormats);

constexpr const FormatInfo& info(Format format) { return kFormats[static_cast<std::size_t>(format)]; }
constexpr std::string_view name(Format format) { return info(format).name; }
constexpr std::int64_t row_bytes(Format format, std::int64_t cols) { return cols / info(format).block * info(format).block_bytes; }

std::optional<Format> format_from_gguf(std::uint32_t id);       // returns an empty optional for an unknown id and for kNoGgufId
std::optional<Format> format_from_name(std::string_view name);  // ignores the case of letters: "q4_k", "F16"

// Unpacks (dequantizes) `n` weights. `n` must be a multiple of the number of weights in a block. Tests compare every kernel with this
// reference implementation. Its results have the same bits as those of gguf.quants.dequantize in gguf-py.
void unpack(Format format, const std::uint8_t* packed, std::int64_t n, float* out);

// can_pack() returns whether pack() supports a format. pack() packs `n` float weights. It rounds to nearest, ties to even, for F32, F16 and
// BF16. For quantized formats it searches for the codes with the least squared error (formats_pack.cpp). pack() throws
// ErrorKind::invalid_argument if can_pack() is false, and ErrorKind::numeric if the format is quantized and a weight is NaN or outside
// [-65504, 65504].
bool can_pack(Format format);
void pack(Format format, const float* weights, std::int64_t n, std::uint8_t* packed);

// Throws ErrorKind::numeric if a weight is NaN or outside [-65504, 65504]. pack() calls this for quantized formats.
void check_weights(Format format, const float* weights, std::int64_t n);

// Packs `rows` rows like pack(), but multiplies the squared error of each weight by column_weights[column], the mean square of the
// activations that the column is multiplied by. Throws what pack() throws, and messages give the index of a weight within its row. Also
// throws ErrorKind::invalid_argument if a column weight is negative or not finite.
void pack_rows(Format format, const float* weights, std::int64_t rows, std::span<const float> column_weights, std::uint8_t* packed);

// Conversions between 16-bit floats and float32. Conversions to float32 are exact. Conversions from float32 round to nearest, ties to even.
// Infinities stay infinities and NaN stays NaN.
float f16_to_f32(std::uint16_t half);
std::uint16_t f32_to_f16(float value);
inline float bf16_to_f32(std::uint16_t b) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(b) << 16); }
std::uint16_t f32_to_bf16(float value);

}  // namespace pumice
