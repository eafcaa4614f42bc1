// Names and ids of weight formats, conversions of 16-bit floats, and the table of the functions that unpack the blocks of each format.
#include "core/formats.h"

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "core/formats_blocks.h"

static_assert(std::endian::native == std::endian::little, "packed weights are read as they lie in the file: little-endian");

namespace pumice {

namespace {

using UnpackBlocks = void (*)(const std::uint8_t* packed, std::int64_t count, float* out);
constexpr UnpackBlocks kUnpack[] = {
#define PUMICE_FORMAT(name, gguf_id, block, bytes, int8) blocks::unpack_##name,
#include "core/formats.def"
#undef PUMICE_FORMAT
};

constexpr char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

}  // namespace

std::optional<Format> format_from_gguf(std::uint32_t id) {
  for (const FormatInfo& f : kFormats) {
    if (f.gguf_id == id && id != kNoGgufId) return f.format;
  }
  return std::nullopt;
}

std::optional<Format> format_from_name(std::string_view name) {
  const auto same = [](char a, char b) { return lower(a) == lower(b); };
  for (const FormatInfo& f : kFormats) {
    if (std::equal(name.begin(), name.end(), f.name.begin(), f.name.end(), same)) return f.format;
  }
  return std::nullopt;
}

void unpack(Format format, const std::uint8_t* packed, std::int64_t n, float* out) {
  const FormatInfo& f = info(format);
  require(n >= 0 && n % f.block == 0, "unpack: ", n, " weights are not whole blocks of ", f.name, ", which hold ", f.block);
  kUnpack[static_cast<std::size_t>(format)](packed, n / f.block, out);
}

// Converts a half to a float. For a normal number, the bias of the exponent changes from 15 to 127, so 112 is added. A subnormal number is
// mantissa * 2^-24, which a float represents exactly. Infinities and NaN get the largest exponent. A signalling NaN becomes a quiet NaN, as
// in the processors' own conversion.
float f16_to_f32(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 1023;
  std::uint32_t bits;
  if (exponent == 0) {
    bits = std::bit_cast<std::uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);
  } else if (exponent == 31) {
    bits = 0x7f800000 | mantissa << 13 | (mantissa ? 0x00400000 : 0);
  } else {
    bits = (exponent + 112) << 23 | mantissa << 13;
  }
  return std::bit_cast<float>(sign | bits);
}

std::uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  std::uint32_t half;
  if (magnitude > 0x7f800000) {
    half = 0x7e00 | (magnitude >> 13 & 0x3ff);  // a NaN becomes quiet and keeps the high bits of its payload
  } else if (magnitude >= 0x47800000) {
    half = 0x7c00;  // magnitudes of 65536 and more become infinity
  } else if (magnitude < 0x38800000) {
    // Below 2^-14, neighbouring halves differ by 2^-24. Neighbouring floats in [0.5, 1) also differ by 2^-24. Adding 0.5 therefore rounds
    // the magnitude to the nearest half, ties to even.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<std::uint32_t>(0.5f);
  } else {
    // The largest values may round up and carry into the exponent of infinity, which is the correct result.
    half = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

std::uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);  // a NaN becomes quiet
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace pumice
