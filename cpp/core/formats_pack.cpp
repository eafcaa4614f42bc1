// Packs float weights. 16-bit floats are rounded; quantised formats look for the codes and scales of least squared error.
#include <cmath>

#include "core/error.h"
#include "core/formats_blocks.h"

namespace pumice {

namespace {

using blocks::store_u16;

// Q8_0: d = max |w| / 127, codes by rounding.
void pack_q8_0(const float* weights, std::int64_t count, std::uint8_t* packed) {
  for (; count > 0; --count, weights += 32, packed += 34) {
    float largest = 0;
    for (int i = 0; i < 32; ++i) largest = std::fmax(largest, std::fabs(weights[i]));
    const std::uint16_t half = f32_to_f16(largest / 127.0f);
    const float d = f16_to_f32(half), inverse = d > 0 ? 1.0f / d : 0.0f;
    store_u16(packed, half);
    for (int i = 0; i < 32; ++i) {
      const float code = std::fmin(std::fmax(std::nearbyint(weights[i] * inverse), -127.0f), 127.0f);
      packed[2 + i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(code));
    }
  }
}

}  // namespace

bool can_pack(Format format) {
  return format == Format::F32 || format == Format::F16 || format == Format::BF16 || format == Format::Q8_0;
}

void pack(Format format, const float* weights, std::int64_t n, std::uint8_t* packed) {
  const FormatInfo& f = info(format);
  require(can_pack(format), "pack: weights cannot be written as ", f.name);
  require(n >= 0 && n % f.block == 0, "pack: ", n, " weights are not whole blocks of ", f.name, ", which hold ", f.block);
  if (format == Format::F32 && n > 0) std::memcpy(packed, weights, static_cast<std::size_t>(n) * sizeof(float));
  if (format == Format::F16) for (std::int64_t i = 0; i < n; ++i) store_u16(packed + 2 * i, f32_to_f16(weights[i]));
  if (format == Format::BF16) for (std::int64_t i = 0; i < n; ++i) store_u16(packed + 2 * i, f32_to_bf16(weights[i]));
  if (format == Format::Q8_0) pack_q8_0(weights, n / 32, packed);
}

}  // namespace pumice
