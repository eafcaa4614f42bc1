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

inline constexpr std::uint32_t kNoGgufId = 0xffffffff;  // of a format that GGUF files do not have

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

std::optional<Format> format_from_gguf(std::uint32_t id);       // nothing for kNoGgufId
std::optional<Format> format_from_name(std::string_view name);  // ignores case: "q4_k", "F16"

// Unpacks `n` weights; `n` is a multiple of the format's block. This is the reference implementation that every kernel is compared with.
// Its results are bit-equal to those of gguf.quants.dequantize in gguf-py.
void unpack(Format format, const std::uint8_t* packed, std::int64_t n, float* out);

// pack() packs `n` float weights. For F32, F16 and BF16 it rounds to nearest even. For quantized formats it searches for the least squared
// error (formats_pack.cpp). It throws ErrorKind::invalid_argument if can_pack() is false. It throws ErrorKind::numeric if the format is
// quantized and a weight is NaN or outside [-65504, 65504].
bool can_pack(Format format);
void pack(Format format, const float* weights, std::int64_t n, std::uint8_t* packed);

// Throws ErrorKind::numeric if a weight is NaN or outside [-65504, 65504]. pack() checks weights so for quantized formats.
void check_weights(Format format, const float* weights, std::int64_t n);

// Packs `rows` rows, as pack() does, but a weight's squared error counts `column_weights[column]` times: the mean square of what the column
// is multiplied by. There is one number for each column, 0 or more. Throws what pack() throws, where the weight is counted within its row,
// and ErrorKind::invalid_argument for a column weight that is negative or not finite.
void pack_rows(Format format, const float* weights, std::int64_t rows, std::span<const float> column_weights, std::uint8_t* packed);

// Conversions between 16-bit floats and float32. Conversions to float32 are exact. Conversions from float32 round to nearest even.
// Infinities stay infinities and NaN stays NaN.
float f16_to_f32(std::uint16_t half);
std::uint16_t f32_to_f16(float value);
inline float bf16_to_f32(std::uint16_t b) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(b) << 16); }
std::uint16_t f32_to_bf16(float value);

}  // namespace pumice
