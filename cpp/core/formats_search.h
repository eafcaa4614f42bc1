// Searches for the scales and codes of quantized blocks that have the least weighted squared error. Only code that packs weights includes
// this header. The search handles four blocks at once, one in each vector lane, so that sums over a block need no shuffles and always add
// in the same order.
//
// In all these formats a weight is (d * scale) * level - dmin * min. The code of a weight stands for the level. A block has one d and one
// dmin, and each sub-block has one scale and one min. In formats without sub-blocks, scale and min are 1.
#pragma once

#include <cstdint>

#include "core/code_values.h"
#include "core/formats.h"
#include "core/formats_blocks.h"

namespace pumice::search {

inline constexpr int kLanes = 4;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));
using Mask = std::int32_t __attribute__((vector_size(kLanes * sizeof(float))));

inline Lanes smaller(Lanes a, Lanes b) { return a < b ? a : b; }
inline Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }
inline Lanes magnitude(Lanes a) { return larger(a, -a); }
inline Lanes inverse(Lanes v) { return v != 0.0f ? 1.0f / v : Lanes{}; }

// Rounds to the nearest integer, ties to even. The sum v + 1.5 * 2^23 has no bits below 1, so the addition rounds v. The result is exact
// for |v| < 2^22. Callers clamp larger values.
inline Lanes nearest(Lanes v) { return (v + 12582912.0f) - 12582912.0f; }
inline Lanes whole(Lanes v, int low, int high) {
  return smaller(larger(nearest(v), Lanes{} + static_cast<float>(low)), Lanes{} + static_cast<float>(high));
}

// Rounds a scale to a half float, the type in which the file stores scales. Magnitudes above the largest half float become the largest half
// float.
inline Lanes half(Lanes v) {
  const Lanes kept = smaller(larger(v, Lanes{} - 65504.0f), Lanes{} + 65504.0f);
  Lanes rounded;
  for (int b = 0; b < kLanes; ++b) rounded[b] = f16_to_f32(f32_to_f16(kept[b]));
  return rounded;
}

// The levels and scales that a format allows, and the candidates that the search tries.
struct Grid {
  int sub;                    // number of weights in a sub-block
  int low, high;              // smallest and largest level
  bool table;                 // true: the levels are kIq4Values; false: the levels are all integers from `low` to `high`
  bool affine;                // true: the format has a min
  int scale_low, scale_high;  // smallest and largest integer scale of a sub-block; both 0 if the block is one sub-block
  // Largest integer min of a sub-block; the smallest is 0. min_high is 0 in formats without a min, and in blocks of one sub-block, whose
  // min is not an integer.
  int min_high;
  // The search tries `steps` scales for a sub-block. Scale k maps the largest magnitude of the weights to first + k * step levels. If the
  // format has a min, scale k maps the range of the weights to this number of levels.
  float first, step;
  int steps;
  // Number of trials for the largest integer scale of a block, and for its largest integer min. In trial i, this scale is scale_high - i
  // (or scale_low + i if scales may be negative), and this min is min_high - i.
  int starts;
};

template <Format>
inline constexpr Grid kGrid{};
template <>
inline constexpr Grid kGrid<Format::Q4_0>{32, -8, 7, false, false, 0, 0, 0, 6.0f, 0.25f, 13, 1};
template <>
inline constexpr Grid kGrid<Format::Q5_0>{32, -16, 15, false, false, 0, 0, 0, 13.5f, 0.25f, 15, 1};
template <>
inline constexpr Grid kGrid<Format::Q8_0>{32, -127, 127, false, false, 0, 0, 0, 124.0f, 0.5f, 8, 1};
template <>
inline constexpr Grid kGrid<Format::Q4_1>{32, 0, 15, false, true, 0, 0, 0, 13.6f, 0.2f, 18, 1};
template <>
inline constexpr Grid kGrid<Format::Q5_1>{32, 0, 31, false, true, 0, 0, 0, 29.0f, 0.25f, 18, 1};
template <>
inline constexpr Grid kGrid<Format::IQ4_NL>{32, -127, 113, true, false, 0, 0, 0, 84.0f, 4.0f, 16, 1};
template <>
inline constexpr Grid kGrid<Format::IQ4_XS>{32, -127, 113, true, false, -32, 31, 0, 84.0f, 4.0f, 16, 1};
template <>
inline constexpr Grid kGrid<Format::Q2_K>{16, 0, 3, false, true, 0, 15, 15, 2.2f, 0.15f, 18, 3};
template <>
inline constexpr Grid kGrid<Format::Q3_K>{16, -4, 3, false, false, -32, 31, 0, 2.0f, 0.25f, 13, 2};
template <>
inline constexpr Grid kGrid<Format::Q4_K>{32, 0, 15, false, true, 0, 63, 63, 13.6f, 0.4f, 18, 1};
template <>
inline constexpr Grid kGrid<Format::Q5_K>{32, 0, 31, false, true, 0, 63, 63, 29.0f, 0.5f, 18, 1};
template <>
inline constexpr Grid kGrid<Format::Q6_K>{16, -32, 31, false, false, -128, 127, 0, 28.0f, 0.5f, 13, 1};

// Calls `work` with the format as a template argument if kGrid has an entry for the format. Returns whether kGrid has such an entry.
template <class Work>
bool with_grid(Format format, const Work& work) {
  const auto one = [&]<Format f>() {
    if constexpr (kGrid<f>.sub > 0) work.template operator()<f>();
    return kGrid<f>.sub > 0;
  };
  switch (format) {
#define PUMICE_FORMAT(name, gguf_id, block, bytes, int8) \
  case Format::name:                                     \
    return one.template operator()<Format::name>();
#include "core/formats.def"
#undef PUMICE_FORMAT
  }
  return false;
}

template <Format f>
inline constexpr int kBlock = static_cast<int>(info(f).block);
template <Format f>
inline constexpr int kSubs = kBlock<f> / kGrid<f>.sub;
template <Format f>
inline constexpr bool kOneSub = kGrid<f>.scale_high == 0;

// The scale and min of a sub-block as real numbers: d * scale and dmin * min.
struct Fit {
  Lanes scale, min;
};

// The scales and mins of four blocks.
template <Format f>
struct Scales {
  Lanes d{}, dmin{};
  Lanes scale[kSubs<f>]{}, min[kSubs<f>]{};  // integers
  Fit of(int sub) const { return {d * scale[sub], dmin * min[sub]}; }
};

// Returns the level that is nearest to a weight, for the scale and min in `fit`.
template <Format f>
Lanes level(Lanes x, const Fit& fit, Lanes inverse_scale) {
  constexpr Grid g = kGrid<f>;
  if constexpr (g.table) {
    const Lanes v = x * inverse_scale;
    Lanes value = Lanes{} + float{kIq4Values[0]};
    for (int k = 0; k + 1 < 16; ++k) {
      const float low = kIq4Values[k], high = kIq4Values[k + 1];
      value += v > Lanes{} + 0.5f * (low + high) ? Lanes{} + (high - low) : Lanes{};
    }
    return value;
  } else if constexpr (g.affine) {
    return whole((x + fit.min) * inverse_scale, g.low, g.high);
  } else {
    return whole(x * inverse_scale, g.low, g.high);
  }
}
template <Format f>
Lanes value(Lanes level, const Fit& fit) {
  return kGrid<f>.affine ? fit.scale * level - fit.min : fit.scale * level;
}

// Returns the weighted squared error of a sub-block.
template <Format f>
Lanes error_of(const Lanes* x, const Lanes* w, const Fit& fit) {
  const Lanes scaled = inverse(fit.scale);
  Lanes error{};
  for (int i = 0; i < kGrid<f>.sub; ++i) {
    const Lanes rest = x[i] - value<f>(level<f>(x[i], fit, scaled), fit);
    error += w[i] * (rest * rest);
  }
  return error;
}

// Sums over the weights of a sub-block. In the sums, x is a weight, q is the level that a fit chooses for x, and w is the factor of the
// squared error of x. `one` is the sum of w, `q` of w q, `qq` of w q q, `xq` of w x q, and `x` of w x. Formats without a min need only `qq`
// and `xq`.
struct Sums {
  Lanes one{}, q{}, qq{}, xq{}, x{};
};
template <Format f>
Sums sums_of(const Lanes* x, const Lanes* w, const Fit& fit, Lanes inverse_scale) {
  Sums s;
  for (int i = 0; i < kGrid<f>.sub; ++i) {
    const Lanes q = level<f>(x[i], fit, inverse_scale), wq = w[i] * q;
    s.qq += wq * q;
    s.xq += wq * x[i];
    if constexpr (kGrid<f>.affine) {
      s.one += w[i];
      s.q += wq;
      s.x += w[i] * x[i];
    }
  }
  return s;
}

// Returns the scale and min that fit the summed weights and levels best by least squares. If the min must not be negative but the least
// squares give a negative min, the min is 0 and only the scale is fitted.
template <Format f>
Fit fit_to(const Sums& s) {
  if constexpr (!kGrid<f>.affine) {
    return {s.xq * inverse(s.qq), Lanes{}};
  } else {
    const Lanes det = inverse(s.one * s.qq - s.q * s.q);
    const Lanes scale = (s.one * s.xq - s.x * s.q) * det, min = (s.q * s.xq - s.qq * s.x) * det;
    if constexpr (kOneSub<f>) {
      return {scale, min};
    } else {
      const Mask free = min > 0.0f;
      return {free ? scale : s.xq * inverse(s.qq), free ? min : Lanes{}};
    }
  }
}

// Returns the best scale and min of a sub-block, as half floats if the block has only one sub-block, and otherwise as real numbers. Tries
// Grid::steps scales. For each of them, chooses a level for every weight, and then fits a scale and a min to these levels. Without a min,
// the error of such a fit is sum(wxx) - sum(wxq)^2 / sum(wqq), so the fit with the largest second term is the best. The best fit is then
// fitted twice more to its own levels.
template <Format f>
Fit find(const Lanes* x, const Lanes* w) {
  constexpr Grid g = kGrid<f>;
  Lanes low = kOneSub<f> && g.affine ? x[0] : Lanes{}, high = x[0], largest{};
  for (int i = 0; i < g.sub; ++i) low = smaller(low, x[i]), high = larger(high, x[i]), largest = larger(largest, magnitude(x[i]));

  Fit best{};
  if constexpr (g.affine) {
    best = {(high - low) / static_cast<float>(g.high), -low};
  } else {
    best.scale = largest / static_cast<float>(g.high);
  }
  if constexpr (kOneSub<f>) best = {half(best.scale), half(best.min)};
  Lanes best_error = error_of<f>(x, w, best);
  const auto consider = [&](Fit fit) {
    if constexpr (kOneSub<f>) fit = {half(fit.scale), half(fit.min)};
    const Lanes error = error_of<f>(x, w, fit);
    const Mask better = error < best_error;
    best = {better ? fit.scale : best.scale, better ? fit.min : best.min};
    best_error = better ? error : best_error;
  };

  if constexpr (g.affine) {
    const Lanes range = inverse(high - low);
    for (int k = 0; k < g.steps; ++k) {
      const Fit start{Lanes{}, -low};
      consider(fit_to<f>(sums_of<f>(x, w, start, (g.first + g.step * static_cast<float>(k)) * range)));
    }
  } else {
    const Lanes reach = inverse(largest);
    Lanes gained{}, scale{};
    for (const float sign : {1.0f, -1.0f}) {
      if (sign < 0 && g.low == -g.high) break;  // with symmetric levels the sign makes no difference
      for (int k = 0; k < g.steps; ++k) {
        const Sums s = sums_of<f>(x, w, Fit{}, sign * (g.first + g.step * static_cast<float>(k)) * reach);
        const Lanes fitted = s.xq * inverse(s.qq), gain = s.xq * fitted;
        const Mask better = gain > gained;
        scale = better ? fitted : scale;
        gained = better ? gain : gained;
      }
    }
    consider({scale, Lanes{}});
  }
  for (int again = 0; again < 2; ++again) consider(fit_to<f>(sums_of<f>(x, w, best, inverse(best.scale))));
  return best;
}

// Chooses the integer scale and min of sub-block `sub`, for the d and dmin in `s`. The candidates are the integers nearest to near_scale
// and near_min, and their neighbours. Returns the error of the sub-block.
template <Format f>
Lanes settle(const Lanes* x, const Lanes* w, const Lanes& near_scale, const Lanes& near_min, Scales<f>& s, int sub) {
  constexpr Grid g = kGrid<f>;
  Lanes best_error{};
  bool first = true;
  for (const int ds : {0, -1, 1}) {
    for (const int dm : {0, -1, 1}) {
      if (!g.affine && dm != 0) continue;
      const Lanes scale = whole(near_scale + static_cast<float>(ds), g.scale_low, g.scale_high);
      const Lanes min = g.affine ? whole(near_min + static_cast<float>(dm), 0, g.min_high) : Lanes{};
      const Lanes error = error_of<f>(x, w, {s.d * scale, s.dmin * min});
      const Mask better = first ? error == error : error < best_error;
      s.scale[sub] = better ? scale : s.scale[sub];
      s.min[sub] = better ? min : s.min[sub];
      best_error = better ? error : best_error;
      first = false;
    }
  }
  return best_error;
}

// Calls settle() for all sub-blocks, with the scales and mins in `s` as near_scale and near_min. Returns the errors of the blocks.
template <Format f>
Lanes settle_all(const Lanes* x, const Lanes* w, Scales<f>& s) {
  Lanes error{};
  for (int sub = 0; sub < kSubs<f>; ++sub) {
    const Lanes scale = s.scale[sub], min = s.min[sub];
    error += settle<f>(x + kGrid<f>.sub * sub, w + kGrid<f>.sub * sub, scale, min, s, sub);
  }
  return error;
}

// Fits d and dmin by least squares to the weights of whole blocks, for the present scales, mins and levels. A lane keeps its old d and dmin
// if the least squares have no unique solution, if the new dmin is negative, or if the format has a min and the new d is not positive.
template <Format f>
void refit(const Lanes* x, const Lanes* w, Scales<f>& s) {
  Lanes ss{}, sm{}, mm{}, xs{}, xm{};
  for (int sub = 0; sub < kSubs<f>; ++sub) {
    const Fit fit = s.of(sub);
    const Sums sums = sums_of<f>(x + kGrid<f>.sub * sub, w + kGrid<f>.sub * sub, fit, inverse(fit.scale));
    const Lanes scale = s.scale[sub], min = s.min[sub];
    ss += scale * scale * sums.qq;
    xs += scale * sums.xq;
    sm += scale * min * sums.q;
    mm += min * min * sums.one;
    xm += min * sums.x;
  }
  if constexpr (kGrid<f>.affine) {
    const Lanes det = ss * mm - sm * sm;
    const Lanes d = half((xs * mm - sm * xm) * inverse(det)), dmin = half((xs * sm - ss * xm) * inverse(det));
    const Mask use = (det > 0.0f) & (d > 0.0f) & (dmin >= 0.0f);
    s.d = use ? d : s.d;
    s.dmin = use ? dmin : s.dmin;
  } else {
    s.d = ss > 0.0f ? half(xs * inverse(ss)) : s.d;
  }
}

template <Format f>
void keep_better(Scales<f>& best, Lanes& best_error, const Scales<f>& other, Lanes error) {
  const Mask better = error < best_error;
  best.d = better ? other.d : best.d;
  best.dmin = better ? other.dmin : best.dmin;
  for (int sub = 0; sub < kSubs<f>; ++sub) {
    best.scale[sub] = better ? other.scale[sub] : best.scale[sub];
    best.min[sub] = better ? other.min[sub] : best.min[sub];
  }
  best_error = better ? error : best_error;
}

// Returns the best scales of four blocks. In lane b, x[i] is weight i of block b, and w[i] is the factor of that weight's squared error.
template <Format f>
Scales<f> choose(const Lanes* x, const Lanes* w) {
  constexpr Grid g = kGrid<f>;
  Scales<f> best;
  if constexpr (kOneSub<f>) {
    const Fit fit = find<f>(x, w);
    best.d = fit.scale;
    best.dmin = fit.min;
    best.scale[0] = best.min[0] = Lanes{} + 1.0f;
  } else {
    Fit found[kSubs<f>];
    Lanes scale{}, min{};  // the scale with the largest magnitude, with its sign, and the largest min
    for (int sub = 0; sub < kSubs<f>; ++sub) {
      found[sub] = find<f>(x + g.sub * sub, w + g.sub * sub);
      scale = magnitude(found[sub].scale) > magnitude(scale) ? found[sub].scale : scale;
      min = larger(min, found[sub].min);
    }
    Lanes best_error{};
    for (int a = 0; a < g.starts; ++a) {
      for (int b = 0; b < (g.affine ? g.starts : 1); ++b) {
        Scales<f> trial;
        // Chooses d so that `scale` becomes scale_high - a, or scale_low + a if integer scales may be negative, because scale_low then has
        // the largest magnitude.
        trial.d = half(scale / static_cast<float>(g.scale_low < 0 ? g.scale_low + a : g.scale_high - a));
        if (g.affine) trial.dmin = half(min / static_cast<float>(g.min_high - b));
        for (int sub = 0; sub < kSubs<f>; ++sub) {
          trial.scale[sub] = found[sub].scale * inverse(trial.d);
          trial.min[sub] = found[sub].min * inverse(trial.dmin);
        }
        for (int again = 0; again < 3; ++again) {
          if (again > 0) refit<f>(x, w, trial);
          const Lanes error = settle_all<f>(x, w, trial);
          if (a == 0 && b == 0 && again == 0) best = trial, best_error = error;
          keep_better<f>(best, best_error, trial, error);
        }
      }
    }
  }
  return best;
}

// Writes the block of lane `lane`. levels[i] has, in each lane, the level of weight i of the lane's block.
template <Format f>
void store(const Scales<f>& s, const Lanes* levels, int lane, std::uint8_t* packed) {
  blocks::Numbers numbers;
  numbers.d = f32_to_f16(s.d[lane]);
  numbers.dmin = f32_to_f16(s.dmin[lane]);
  for (int sub = 0; sub < kSubs<f>; ++sub) {
    numbers.scale[sub] = static_cast<int>(s.scale[sub][lane]);
    numbers.min[sub] = static_cast<int>(s.min[sub][lane]);
  }
  for (int i = 0; i < kBlock<f>; ++i) {
    const float level = levels[i][lane];
    if constexpr (kGrid<f>.table) {
      int code = 0;
      while (kIq4Values[code] < level) ++code;
      numbers.code[i] = code;
    } else {
      numbers.code[i] = static_cast<int>(level) - kGrid<f>.low;
    }
  }
  blocks::store(f, numbers, packed);
}

}  // namespace pumice::search
