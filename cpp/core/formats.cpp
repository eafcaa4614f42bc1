// Names and ids of formats, 16-bit floats, and the table from a format to the function that unpacks its blocks.
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
    if (f.gguf_id == id) return f.format;
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

// Half to float. Normal numbers: the exponent's bias changes from 15 to 127 (+112). Subnormal numbers are mantissa * 2^-24, which is exact
// as a float. Infinities and NaN get the largest exponent; a signalling NaN becomes quiet, as in the processors' own conversion.
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
    half = 0x7e00 | (magnitude >> 13 & 0x3ff);  // NaN: quiet, with the high bits of its payload
  } else if (magnitude >= 0x47800000) {
    half = 0x7c00;  // 65536 and more
  } else if (magnitude < 0x38800000) {
    // Below 2^-14: one step of a half is 2^-24, and so is one step of a float in [0.5, 1): the addition rounds to nearest even.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<std::uint32_t>(0.5f);
  } else {
    half = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;  // a carry into infinity is the right result
  }
  return static_cast<std::uint16_t>(sign | half);
}

std::uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);  // NaN: quiet
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace pumice
