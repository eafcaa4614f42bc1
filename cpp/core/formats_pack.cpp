// Packs float weights. For F16 and BF16, weights are rounded. For quantized formats, the packer searches for the codes and scales with the
// least squared error. It packs four blocks at once, one in each vector lane, so that sums over a block need no shuffles and always add in
// the same order.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/formats_blocks.h"

namespace pumice {

namespace {

using blocks::kSuper;
using blocks::ScalesMins;
using blocks::store_u16;

constexpr int kLanes = 4, kBlock = 32;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));
using Mask = std::int32_t __attribute__((vector_size(kLanes * sizeof(float))));

struct Tile {
  Lanes x[kBlock];  // x[i] holds weight i of each of the four blocks
};

Lanes smaller(Lanes a, Lanes b) { return a < b ? a : b; }
Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }
Lanes inverse(Lanes v) { return v != 0.0f ? 1.0f / v : Lanes{}; }

// Rounds to the nearest integer, ties to even: v + 1.5 * 2^23 has no bits below 1. The result is exact for |v| < 2^22. Callers clamp larger
// values.
Lanes nearest(Lanes v) { return (v + 12582912.0f) - 12582912.0f; }
template <int low, int high>
Lanes code(Lanes v) {
  return smaller(larger(nearest(v), Lanes{} + static_cast<float>(low)), Lanes{} + static_cast<float>(high));
}

// Rounds a scale to a half float, the type in which the file stores it.
float half(float v) { return f16_to_f32(f32_to_f16(v)); }
Lanes half(Lanes v) { return Lanes{half(v[0]), half(v[1]), half(v[2]), half(v[3])}; }

Tile load_tile(const float* weights, int blocks) {
  Tile tile{};
  for (int b = 0; b < blocks; ++b) {
    for (int i = 0; i < kBlock; ++i) tile.x[i][b] = weights[kBlock * b + i];
  }
  return tile;
}

// ---------------------------------------------------------------- one scale, codes in [low, high]: Q4_0, Q8_0
template <int low, int high>
Lanes squared_error(const Tile& tile, Lanes d) {
  const Lanes scaled = inverse(d);
  Lanes error{};
  for (const Lanes x : tile.x) {
    const Lanes rest = x - d * code<low, high>(x * scaled);
    error += rest * rest;
  }
  return error;
}

// Returns the best scale of each block. Candidate k maps the largest absolute weight to the value first_reach + k * step, or to minus that
// value. This gives every weight a code, and the codes determine the scale that fits them best. Candidates are compared by the squared
// error with that scale, rounded to a half float.
template <int low, int high>
Lanes best_scale(const Tile& tile, float first_reach, float step, int steps) {
  Lanes largest{};
  for (const Lanes x : tile.x) largest = larger(largest, larger(x, -x));
  Lanes best = half(largest / static_cast<float>(high)), best_error = squared_error<low, high>(tile, best);
  for (const float sign : {1.0f, -1.0f}) {
    if (sign < 0 && low == -high) break;  // with symmetric codes the sign makes no difference
    for (int k = 0; k < steps; ++k) {
      const Lanes scaled = (sign * (first_reach + step * static_cast<float>(k))) * inverse(largest);
      Lanes xq{}, qq{};
      for (const Lanes x : tile.x) {
        const Lanes q = code<low, high>(x * scaled);
        xq += x * q;
        qq += q * q;
      }
      const Lanes d = half(xq * inverse(qq)), error = squared_error<low, high>(tile, d);
      const Mask better = error < best_error;
      best = better ? d : best;
      best_error = better ? error : best_error;
    }
  }
  return best;
}

void pack_q4_0(const Tile& tile, int blocks, std::uint8_t* packed) {
  const Lanes d = best_scale<-8, 7>(tile, 6.0f, 0.25f, 13), scaled = inverse(d);
  for (int b = 0; b < blocks; ++b) store_u16(packed + 18 * b, f32_to_f16(d[b]));
  for (int i = 0; i < kBlock / 2; ++i) {
    const Lanes q = code<-8, 7>(tile.x[i] * scaled) + 8.0f + 16.0f * (code<-8, 7>(tile.x[16 + i] * scaled) + 8.0f);
    for (int b = 0; b < blocks; ++b) packed[18 * b + 2 + i] = static_cast<std::uint8_t>(q[b]);
  }
}

void pack_q8_0(const Tile& tile, int blocks, std::uint8_t* packed) {
  const Lanes d = best_scale<-127, 127>(tile, 124.0f, 0.5f, 8), scaled = inverse(d);
  for (int b = 0; b < blocks; ++b) store_u16(packed + 34 * b, f32_to_f16(d[b]));
  for (int i = 0; i < kBlock; ++i) {
    const Lanes q = code<-127, 127>(tile.x[i] * scaled);
    for (int b = 0; b < blocks; ++b) packed[34 * b + 2 + i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(q[b]));
  }
}

// ---------------------------------------------------------------- scale and minimum, codes in [0, 15]: Q4_K
// A weight with the code q is scale * q - min, with min >= 0.
struct Affine {
  Lanes scale, min;
};

Lanes affine_code(Lanes x, Lanes min, Lanes scaled) { return code<0, 15>((x + min) * scaled); }

Lanes squared_error(const Tile& tile, const Affine& a) {
  const Lanes scaled = inverse(a.scale);
  Lanes error{};
  for (const Lanes x : tile.x) {
    const Lanes rest = x - (a.scale * affine_code(x, a.min, scaled) - a.min);
    error += rest * rest;
  }
  return error;
}

struct Sums {
  Lanes q{}, qq{}, xq{}, x{};
};
Sums sums(const Tile& tile, Lanes min, Lanes scaled) {
  Sums s;
  for (const Lanes x : tile.x) {
    const Lanes q = affine_code(x, min, scaled);
    s.q += q;
    s.qq += q * q;
    s.xq += x * q;
    s.x += x;
  }
  return s;
}

// Fits scale and min by least squares to the weights and codes that were summed. If the best min is negative, min is 0 and only the scale
// is fitted.
Affine fit(const Sums& s) {
  const Lanes det = inverse(static_cast<float>(kBlock) * s.qq - s.q * s.q);
  const Lanes scale = (static_cast<float>(kBlock) * s.xq - s.x * s.q) * det, min = (s.q * s.xq - s.qq * s.x) * det;
  const Mask free = min > 0.0f;
  return {free ? scale : s.xq * inverse(s.qq), free ? min : Lanes{}};
}

// Returns the best real-valued scale and min of each block. The 18 candidates spread the block's range of weights over 13.6 to 20.4 codes
// (with more than 15 codes, the largest weights are clamped). Each candidate is then fitted to the codes that it gives. The best candidate
// is fitted once more to its own codes.
Affine search(const Tile& tile) {
  Lanes low{}, high = tile.x[0];
  for (const Lanes x : tile.x) low = smaller(low, x), high = larger(high, x);
  const Lanes range = inverse(high - low);
  Affine best{(high - low) / 15.0f, -low};
  Lanes best_error = squared_error(tile, best);
  const auto consider = [&](const Affine& a) {
    const Lanes error = squared_error(tile, a);
    const Mask better = error < best_error;
    best = {better ? a.scale : best.scale, better ? a.min : best.min};
    best_error = better ? error : best_error;
  };
  for (int k = 0; k < 18; ++k) consider(fit(sums(tile, -low, (13.6f + 0.4f * static_cast<float>(k)) * range)));
  consider(fit(sums(tile, best.min, inverse(best.scale))));
  return best;
}

// The scales and minima of the eight blocks of a super-block, as small integers times the half floats d and dmin. Lane l of scale[t] and
// min[t] belongs to block 4 t + l.
struct Codes {
  Lanes scale[2], min[2];  // integers in [0, 63]
  float d = 0, dmin = 0;
  float error = 0;
};

Affine values(const Codes& c, int t) { return {c.d * c.scale[t], c.dmin * c.min[t]}; }

// For each block, tries the integers scale - 1 to scale + 1 together with min - 1 to min + 1 and keeps the pair with the least squared
// error. Sets c.error to the sum of these errors.
void settle(const Tile (&tiles)[2], Codes& c) {
  c.error = 0;
  for (int t = 0; t < 2; ++t) {
    const Lanes scale = c.scale[t], min = c.min[t];
    Lanes best_error = squared_error(tiles[t], values(c, t));
    for (int ds = -1; ds <= 1; ++ds) {
      for (int dm = -1; dm <= 1; ++dm) {
        const Lanes s = code<0, 63>(scale + static_cast<float>(ds)), m = code<0, 63>(min + static_cast<float>(dm));
        const Lanes error = squared_error(tiles[t], {c.d * s, c.dmin * m});
        const Mask better = error < best_error;
        c.scale[t] = better ? s : c.scale[t];
        c.min[t] = better ? m : c.min[t];
        best_error = better ? error : best_error;
      }
    }
    for (int b = 0; b < kLanes; ++b) c.error += best_error[b];
  }
}

// Fits d and dmin by least squares to the weights, integers and codes of the whole super-block. Returns false if these do not determine
// both numbers, or if the fitted d is not positive or the fitted dmin is negative.
bool refit(const Tile (&tiles)[2], Codes& c) {
  double ss = 0, sm = 0, mm = 0, xs = 0, xm = 0;
  for (int t = 0; t < 2; ++t) {
    const Affine a = values(c, t);
    const Sums s = sums(tiles[t], a.min, inverse(a.scale));
    for (int b = 0; b < kLanes; ++b) {
      const double scale = c.scale[t][b], min = c.min[t][b];
      ss += scale * scale * s.qq[b];
      sm += scale * min * s.q[b];
      mm += min * min * kBlock;
      xs += scale * s.xq[b];
      xm += min * s.x[b];
    }
  }
  const double det = ss * mm - sm * sm;
  if (!(det > 0)) return false;
  c.d = half(static_cast<float>((xs * mm - sm * xm) / det));
  c.dmin = half(static_cast<float>((xs * sm - ss * xm) / det));
  return c.d > 0 && c.dmin >= 0;
}

void pack_q4_k(const float* weights, std::uint8_t* packed) {
  const Tile tiles[2] = {load_tile(weights, kLanes), load_tile(weights + kLanes * kBlock, kLanes)};
  const Affine found[2] = {search(tiles[0]), search(tiles[1])};
  float largest_scale = 0, largest_min = 0;
  for (const Affine& a : found) {
    for (int b = 0; b < kLanes; ++b) {
      largest_scale = std::max(largest_scale, a.scale[b]);
      largest_min = std::max(largest_min, a.min[b]);
    }
  }
  Codes best;
  best.d = half(largest_scale / 63.0f);
  best.dmin = half(largest_min / 63.0f);
  for (int t = 0; t < 2; ++t) {
    best.scale[t] = code<0, 63>(found[t].scale * inverse(Lanes{} + best.d));
    best.min[t] = code<0, 63>(found[t].min * inverse(Lanes{} + best.dmin));
  }
  settle(tiles, best);
  Codes again = best;
  if (refit(tiles, again)) {
    settle(tiles, again);
    if (again.error < best.error) best = again;
  }

  store_u16(packed, f32_to_f16(best.d));
  store_u16(packed + 2, f32_to_f16(best.dmin));
  ScalesMins s;
  for (int b = 0; b < 8; ++b) {
    s.scale[b] = static_cast<std::uint8_t>(best.scale[b / kLanes][b % kLanes]);
    s.min[b] = static_cast<std::uint8_t>(best.min[b / kLanes][b % kLanes]);
  }
  blocks::store_scales_mins(s, packed + 4);
  std::uint8_t codes[8][kBlock];
  for (int t = 0; t < 2; ++t) {
    const Affine a = values(best, t);
    const Lanes scaled = inverse(a.scale);
    for (int i = 0; i < kBlock; ++i) {
      const Lanes q = affine_code(tiles[t].x[i], a.min, scaled);
      for (int b = 0; b < kLanes; ++b) codes[kLanes * t + b][i] = static_cast<std::uint8_t>(q[b]);
    }
  }
  for (int pair = 0; pair < 4; ++pair) {
    for (int i = 0; i < kBlock; ++i)
      packed[16 + kBlock * pair + i] = static_cast<std::uint8_t>(codes[2 * pair][i] | codes[2 * pair + 1][i] << 4);
  }
}

// ---------------------------------------------------------------- formats
void pack_plain_f32(const float* weights, std::int64_t n, std::uint8_t* packed) {
  if (n > 0) std::memcpy(packed, weights, static_cast<std::size_t>(n) * sizeof(float));
}
void pack_plain_f16(const float* weights, std::int64_t n, std::uint8_t* packed) {
  for (std::int64_t i = 0; i < n; ++i) store_u16(packed + 2 * i, f32_to_f16(weights[i]));
}
void pack_plain_bf16(const float* weights, std::int64_t n, std::uint8_t* packed) {
  for (std::int64_t i = 0; i < n; ++i) store_u16(packed + 2 * i, f32_to_bf16(weights[i]));
}
template <void (*pack_tile)(const Tile&, int, std::uint8_t*), int bytes>
void pack_tiles(const float* weights, std::int64_t n, std::uint8_t* packed) {
  for (std::int64_t b = 0; b < n / kBlock; b += kLanes) {
    const int blocks = static_cast<int>(std::min<std::int64_t>(kLanes, n / kBlock - b));
    pack_tile(load_tile(weights + kBlock * b, blocks), blocks, packed + bytes * b);
  }
}
void pack_supers(const float* weights, std::int64_t n, std::uint8_t* packed) {
  for (std::int64_t b = 0; b < n / kSuper; ++b) pack_q4_k(weights + kSuper * b, packed + 144 * b);
}

using Pack = void (*)(const float* weights, std::int64_t n, std::uint8_t* packed);
Pack packer(Format format) {
  if (format == Format::F32) return pack_plain_f32;
  if (format == Format::F16) return pack_plain_f16;
  if (format == Format::BF16) return pack_plain_bf16;
  if (format == Format::Q4_0) return pack_tiles<pack_q4_0, 18>;
  if (format == Format::Q8_0) return pack_tiles<pack_q8_0, 34>;
  if (format == Format::Q4_K) return pack_supers;
  return nullptr;
}

}  // namespace

bool can_pack(Format format) { return packer(format) != nullptr; }

void pack(Format format, const float* weights, std::int64_t n, std::uint8_t* packed) {
  const FormatInfo& f = info(format);
  const Pack pack_weights = packer(format);
  require(pack_weights != nullptr, "pack: weights cannot be written as ", f.name);
  require(n >= 0 && n % f.block == 0, "pack: ", n, " weights are not whole blocks of ", f.name, ", which hold ", f.block);
  if (f.quantized) {
    constexpr float kLargest = 65504;  // the largest half float; if no weight exceeds it, every scale fits into a half float
    for (std::int64_t i = 0; i < n; ++i) {
      if (std::fabs(weights[i]) <= kLargest) continue;
      fail(ErrorKind::numeric, "weight ", i, " is ", weights[i], "; ", f.name, " holds numbers from ", -kLargest, " to ", kLargest);
    }
  }
  pack_weights(weights, n, packed);
}

}  // namespace pumice
