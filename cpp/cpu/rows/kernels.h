// Kernels for rows, written once as templates over sixteen lanes (lanes.h). Each file in isa/ that includes this header compiles the
// templates for one instruction set. All functions in this header have internal linkage, and none calls an inline function of a header that
// other files also include. The linker keeps only one copy of such an inline function. If the linker kept a copy that was compiled for an
// instruction set, other files would run instructions that the processor might lack.
#pragma once

#include "cpu/kernels.h"
#include "cpu/rows/attend.h"
#include "cpu/rows/experts.h"
#include "cpu/rows/math.h"
#include "cpu/rows/recurrent.h"
#include "cpu/rows/sixteens.h"

namespace pumice::cpu {
namespace {

template <Lanes16 Lanes>
void quantize(const float* x, Int x_stride, Int count, Int first, const QuantRows& out) {
  const Int blocks = (out.cols + kQuantBlock - 1) / kQuantBlock;
  for (Int r = 0; r < count; ++r) {
    for (Int block = 0; block < blocks; ++block) {
      const float* in = x + r * x_stride + block * kQuantBlock;
      const Int left = out.cols - block * kQuantBlock;
      Lanes a, b;
      if (left >= kQuantBlock) {
        a = Lanes::load(in);
        b = Lanes::load(in + kLanes);
      } else {
        a = load<Lanes>(in, left < kLanes ? static_cast<int>(left) : kLanes);
        b = left > kLanes ? load<Lanes>(in + kLanes, static_cast<int>(left - kLanes)) : Lanes::set(0.0f);
      }
      const Scale s = scale_of(max_lane(max(magnitude(a), magnitude(b))), 127.0f);
      const Lanes inverse = Lanes::set(s.inverse);
      const Int at = block * out.rows + first + r;
      store_codes(out.codes + at * kQuantBlock, codes_of(a, inverse, 127.0f), codes_of(b, inverse, 127.0f), out.sums + 2 * at);
      out.scales[at] = s.scale;
      out.scaled_sums[at] = s.scale * static_cast<float>(out.sums[2 * at] + out.sums[2 * at + 1]);
    }
  }
}

template <Lanes16 Lanes>
void quantize_fixed(const float* x, Int x_stride, Int count, Int first, const FixedRows& out) {
  constexpr float kMost = kFixedActivation;
  constexpr int kVectors = kFixedBlock / kLanes;
  const Int blocks = (out.cols + kFixedBlock - 1) / kFixedBlock;
  for (Int r = 0; r < count; ++r) {
    for (Int block = 0; block < blocks; ++block) {
      const float* in = x + r * x_stride + block * kFixedBlock;
      const Int left = out.cols - block * kFixedBlock;
      Lanes values[kVectors];
      BitsOf<Lanes> largest = Lanes::set_bits(0);
      for (int i = 0; i < kVectors; ++i) {
        const Int of_vector = left - i * kLanes;
        values[i] = of_vector >= kLanes ? Lanes::load(in + i * kLanes)
                    : of_vector > 0     ? load<Lanes>(in + i * kLanes, static_cast<int>(of_vector))
                                        : Lanes::set(0.0f);
        largest = max(largest, magnitude(values[i]));
      }
      const Scale s = scale_of(max_lane(largest), kMost);
      const Lanes inverse = Lanes::set(s.inverse);
      const Int at = block * out.rows + first + r;
      std::int32_t start = 0;
      for (int i = 0; i < kVectors; i += 2) {
        start -= store_codes(out.codes + at * kFixedBlock + i * kLanes, codes_of(values[i], inverse, kMost),
                             codes_of(values[i + 1], inverse, kMost));
      }
      out.starts[at] = start;
      out.scales[at] = s.scale;
    }
  }
}

// Quantizes one block of kByteBlock values to 8-bit codes. The codes are in a range of 256 consecutive integers that includes 0
// (ByteKernels in cpu/kernels.h). Calls store(i, a, b, low) for each 32 codes, where a and b have codes [32 i, 32 i + 32) of the block, and
// `low` is the lowest code of the range. If the block contains NaN or infinity, the returned scale is NaN.
template <Lanes16 Lanes, class Store>
PUMICE_INLINE Scale narrow_codes(const float* in, const Turn& turn, Int column, const Store& store) {
  constexpr int kVectors = kByteBlock / kLanes;
  const Lanes zero = Lanes::set(0.0f);
  Lanes values[kVectors], below = zero, above = zero, wrong = zero;  // wrong: NaN if a value of the lane is NaN or infinity, else 0
  for (int i = 0; i < kVectors; ++i) {
    values[i] = Lanes::load(in + i * kLanes);
    if (turn.scale)
      values[i] = fma(values[i], Lanes::load(turn.scale + column + i * kLanes), Lanes::load(turn.shift + column + i * kLanes));
    below = min(values[i], below);
    above = max(values[i], above);
    wrong = fma(values[i], zero, wrong);
  }
  // Floats that are not negative have the same order as their bits, in which infinity and NaN are above all other values. The maximum of
  // the bits therefore shows whether a value is NaN or infinite.
  const std::int32_t above_bits = max_lane(magnitude(above + wrong));
  const float low = max_lane(zero - below), span = __builtin_bit_cast(float, above_bits) + low, steps = kByteSteps;
  Scale s{0.0f, 0.0f};
  if (above_bits >= 0x7f800000)
    s.scale = __builtin_nanf("");
  else if (span >= 1e-30f)
    s = {span / steps, steps / span};
  const Lanes inverse = Lanes::set(s.inverse);
  std::int32_t least = 0;
  if (s.inverse > 0.0f) {
    least =
        static_cast<std::int32_t>(__builtin_bit_cast(std::uint32_t, kMagic - low * s.inverse) - __builtin_bit_cast(std::uint32_t, kMagic));
  }
  for (int i = 0; i < kVectors; i += 2) store(i / 2, codes_of(values[i], inverse, steps), codes_of(values[i + 1], inverse, steps), least);
  return s;
}

template <Lanes16 Lanes>
void quantize_words(const float* x, Int x_stride, Int count, Int first, const Turn& turn, const FixedRows& out) {
  for (Int r = 0; r < count; ++r) {
    for (Int column = 0; column < out.cols; column += kByteBlock) {
      const Int at = column / kByteBlock * out.rows + first + r;
      std::int16_t* codes = out.codes + (column / kFixedBlock * out.rows + first + r) * kFixedBlock + column % kFixedBlock;
      std::int32_t start = 0;
      const auto put = [&](int i, const BitsOf<Lanes>& a, const BitsOf<Lanes>& b, std::int32_t) {
        start -= store_codes(codes + 32 * i, a, b);
      };
      const Scale s = narrow_codes<Lanes>(x + r * x_stride + column, turn, column, put);
      out.starts[at] = start;
      out.scales[at] = s.scale;
    }
  }
}

template <Lanes16 Lanes>
void quantize_bytes(const float* x, Int x_stride, Int count, Int first, const Turn& turn, const ByteRows& out) {
  for (Int r = 0; r < count; ++r) {
    for (Int column = 0; column < out.cols; column += kByteBlock) {
      const Int at = column / kByteBlock * out.rows + first + r;
      std::int32_t zero = 0;
      const auto put = [&](int i, const BitsOf<Lanes>& a, const BitsOf<Lanes>& b, std::int32_t low) {
        const BitsOf<Lanes> from = Lanes::set_bits(static_cast<std::uint32_t>(low));
        store_bytes(out.codes + at * kByteBlock + 32 * i, a - from, b - from);
        zero = -low;
      };
      const Scale s = narrow_codes<Lanes>(x + r * x_stride + column, turn, column, put);
      out.zeros[at] = zero;
      out.scales[at] = s.scale;
    }
  }
}

// ---------------------------------------------------------------- norms and elementwise
template <Lanes16 Lanes>
void rms_norm(const float* x, const float* weight, const float* add, float eps, Int n, float* out) {
  Lanes squares = Lanes::set(0.0f);
  sixteens(n, [&](Int i, int count) __attribute__((always_inline)) {
    const Lanes v = load<Lanes>(x + i, count);
    squares = fma(v, v, squares);
  });
  const Lanes inverse = Lanes::set(1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(n) + eps));
  sixteens(n, [&](Int i, int count) __attribute__((always_inline)) {
    Lanes y = load<Lanes>(x + i, count) * inverse;
    if (weight) y = y * load<Lanes>(weight + i, count);
    if (add) y = load<Lanes>(add + i, count) + y;
    store(out + i, y, count);
  });
}

template <Lanes16 Lanes>
void layer_norm(const float* x, const float* weight, const float* bias, const float* add, float eps, Int n, float* out) {
  Lanes total = Lanes::set(0.0f), squares = Lanes::set(0.0f);
  sixteens(n, [&](Int i, int count) __attribute__((always_inline)) { total = total + load<Lanes>(x + i, count); });
  const Lanes mean = Lanes::set(sum(total) / static_cast<float>(n));
  sixteens(n, [&](Int i, int count) __attribute__((always_inline)) {
    Lanes d = load<Lanes>(x + i, count) - mean;
    if (count < kLanes) d = select(Lanes::between(0, count), d, Lanes::set(0.0f));
    squares = fma(d, d, squares);
  });
  const Lanes inverse = Lanes::set(1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(n) + eps));
  sixteens(n, [&](Int i, int count) __attribute__((always_inline)) {
    Lanes y = (load<Lanes>(x + i, count) - mean) * inverse;
    if (weight) y = y * load<Lanes>(weight + i, count);
    if (bias) y = y + load<Lanes>(bias + i, count);
    if (add) y = load<Lanes>(add + i, count) + y;
    store(out + i, y, count);
  });
}

template <Lanes16 Lanes>
void scale_rows(float* out, Int stride, Int count, Int cols, float scale) {
  for (Int r = 0; r < count; ++r) {
    float* row = out + r * stride;
    sixteens(cols, [&](Int i, int n) __attribute__((always_inline)) { store(row + i, load<Lanes>(row + i, n) * Lanes::set(scale), n); });
  }
}

// Applies an Epilogue to a tile of results, which is in the L1 cache. The scale and the soft cap have loops of their own, so that the loop
// that all products use stays short. Only the products of output heads have a soft cap.
template <Lanes16 Lanes>
void epilogue(float* out, Int out_stride, Int count, Int cols, const Epilogue& how) {
  if (how.scale != 1.0f) scale_rows<Lanes>(out, out_stride, count, cols, how.scale);
  const float cap = how.softcap, inverse = 1.0f / cap;
  const bool caps = cap > 0.0f;
  const float *bias = how.bias, *residual = caps ? nullptr : how.residual;
  const bool activates = how.activation != Activation::none;
  for (Int r = 0; (activates || bias || residual) && r < count; ++r) {
    float* row = out + r * out_stride;
    const float *rest = residual ? residual + r * how.residual_stride : nullptr, *added = activates ? nullptr : rest;
    if (bias || added)
      sixteens(cols, [&](Int i, int n) __attribute__((always_inline)) {
        Lanes y = load<Lanes>(row + i, n);
        if (bias) y = y + load<Lanes>(bias + i, n);
        if (added) y = y + load<Lanes>(added + i, n);
        store(row + i, y, n);
      });
    if (!activates) continue;
    activate<Lanes>(row, cols, how.activation, {how.alpha_p, how.alpha_n});
    if (rest)
      sixteens(cols,
               [&](Int i, int n) __attribute__((always_inline)) { store(row + i, load<Lanes>(row + i, n) + load<Lanes>(rest + i, n), n); });
  }
  for (Int r = 0; caps && r < count; ++r) {
    float* row = out + r * out_stride;
    const float* rest = how.residual ? how.residual + r * how.residual_stride : nullptr;
    sixteens(cols, [&](Int i, int n) __attribute__((always_inline)) {
      Lanes y = capped(load<Lanes>(row + i, n), cap, inverse);
      if (rest) y = y + load<Lanes>(rest + i, n);
      store(row + i, y, n);
    });
  }
}

template <Lanes16 Lanes>
void gate(float* gate, const float* up, const Gating& how, Int n) {
  const bool limits = how.limit > 0;
  const Lanes most = Lanes::set(how.limit), least = Lanes::set(-how.limit), shift = Lanes::set(how.shift);
  chunks(n, [&](Int first, Int values) __attribute__((always_inline)) {
    float* g = gate + first;
    if (how.gate_bias || limits)
      sixteens(values, [&](Int i, int count) __attribute__((always_inline)) {
        Lanes x = load<Lanes>(g + i, count);
        if (how.gate_bias) x = x + load<Lanes>(how.gate_bias + first + i, count);
        if (limits) x = min(most, x);  // min() and max() return the second operand if it is NaN, so NaN stays NaN
        store(g + i, x, count);
      });
    if (how.activation != Activation::none) activate<Lanes>(g, values, how.activation, {});
    sixteens(values, [&](Int i, int count) __attribute__((always_inline)) {
      Lanes u = load<Lanes>(up + first + i, count);
      if (how.up_bias) u = u + load<Lanes>(how.up_bias + first + i, count);
      if (limits) u = max(least, min(most, u));
      if (how.shift != 0.0f) u = u + shift;
      store(g + i, load<Lanes>(g + i, count) * u, count);
    });
  });
}

template <Lanes16 Lanes>
void multiply(const float* a, const float* b, Activation activation, float scale, Int n, Int repeat, float* out) {
  chunks(n, [&](Int first, Int values) __attribute__((always_inline)) {
    float activated[kChunk];
    const float* factors = b + first;
    if (activation != Activation::none) {
      __builtin_memcpy(activated, factors, static_cast<std::size_t>(values) * sizeof(float));
      activate<Lanes>(activated, values, activation, {});
      factors = activated;
    }
    const float* in = a + first * repeat;
    float* to = out + first * repeat;
    if (repeat == 1)
      return sixteens(values, [&](Int i, int count) __attribute__((always_inline)) {
        store(to + i, load<Lanes>(in + i, count) * (load<Lanes>(factors + i, count) * Lanes::set(scale)), count);
      });
    for (Int c = 0; c < values; ++c) {
      const Lanes factor = Lanes::set(factors[c]) * Lanes::set(scale);
      sixteens(repeat, [&](Int i, int count) __attribute__((always_inline)) {
        store(to + c * repeat + i, load<Lanes>(in + c * repeat + i, count) * factor, count);
      });
    }
  });
}

template <Lanes16 Lanes>
void scale_add(const float* x, float scale, const float* a, const float* b, Int n, float* out) {
  sixteens(n, [&](Int i, int count) __attribute__((always_inline)) {
    Lanes y = load<Lanes>(x + i, count) * Lanes::set(scale);
    if (a) y = y + load<Lanes>(a + i, count);
    if (b) y = y + load<Lanes>(b + i, count);
    store(out + i, y, count);
  });
}

// Rotates the pairs (even, odd) by the angles whose cosines and sines are c and s.
template <Lanes16 Lanes>
PUMICE_INLINE void turn(Lanes& even, Lanes& odd, const Lanes& c, const Lanes& s) {
  const Lanes e = fnma(odd, s, even * c);
  odd = fma(odd, c, even * s);
  even = e;
}

template <Lanes16 Lanes>
void rope(float* head, const float* cos, const float* sin, int dims, bool interleaved) {
  const int half = dims / 2;
  sixteens(half, [&](Int i, int count) __attribute__((always_inline)) {
    const Lanes c = load<Lanes>(cos + i, count), s = load<Lanes>(sin + i, count);
    Lanes even, odd;
    if (!interleaved) {
      even = load<Lanes>(head + i, count);
      odd = load<Lanes>(head + half + i, count);
      turn(even, odd, c, s);
      store(head + i, even, count);
      store(head + half + i, odd, count);
    } else if (count == kLanes) {
      load_pairs(head + 2 * i, even, odd);
      turn(even, odd, c, s);
      store_pairs(head + 2 * i, even, odd);
    } else {
      float pairs[2 * kLanes] = {};
      __builtin_memcpy(pairs, head + 2 * i, 2 * sizeof(float) * static_cast<std::size_t>(count));
      load_pairs(pairs, even, odd);
      turn(even, odd, c, s);
      store_pairs(pairs, even, odd);
      __builtin_memcpy(head + 2 * i, pairs, 2 * sizeof(float) * static_cast<std::size_t>(count));
    }
  });
}

template <Lanes16 Lanes>
void pool(const float* x, Int x_stride, Int prompt, Int rows, Int n, PoolKind kind, float* out) {
  if (kind == PoolKind::cls || kind == PoolKind::last) {
    const float* row = x + (kind == PoolKind::last ? rows - 1 : prompt) * x_stride;
    sixteens(n, [&](Int i, int count) __attribute__((always_inline)) { store(out + i, load<Lanes>(row + i, count), count); });
    return;
  }
  // If `weighted` is true, row r of the segment has the weight r + 1, where r = 0 is the first row of the prompt.
  const bool weighted = kind == PoolKind::weighted_mean;
  const float kept = static_cast<float>(rows - prompt);
  const float total = weighted ? kept * static_cast<float>(rows + prompt + 1) / 2.0f : kept;
  const Lanes divisor = Lanes::set(kind == PoolKind::mean_sqrt_len ? __builtin_sqrtf(total) : total);
  sixteens(n, [&](Int i, int count) __attribute__((always_inline)) {
    Lanes y;
    if (kind == PoolKind::max) {
      y = Lanes::set(-kInfinity);
      for (Int r = prompt; r < rows; ++r) {
        const Lanes v = load<Lanes>(x + r * x_stride + i, count);
        y = select(is_nan(y), y, max(y, v));  // once y is NaN, it stays NaN; max() returns v if v is NaN
      }
    } else {
      y = Lanes::set(0.0f);
      for (Int r = prompt; r < rows; ++r)
        y = fma(load<Lanes>(x + r * x_stride + i, count), Lanes::set(weighted ? static_cast<float>(r + 1) : 1.0f), y);
      y = y / divisor;
    }
    store(out + i, y, count);
  });
}

// Returns log(sum of exp(x[i])). Each lane adds at most 64 terms in float, and the sums of these blocks of terms are added in double. The
// result is therefore as precise as the float logits, even for 262,144 logits.
template <Lanes16 Lanes>
double log_sum_exp(const float* x, Int n) {
  Lanes top = Lanes::set(-kInfinity);
  sixteens(n, [&](Int i, int count) __attribute__((always_inline)) {
    const Lanes v = load<Lanes>(x + i, count);
    top = max(count == kLanes ? v : select(Lanes::between(0, count), v, Lanes::set(-kInfinity)), top);
  });
  const Lanes largest = Lanes::set(max_lane(top));
  double total = 0.0;
  constexpr Int kBlock = 64 * kLanes;
  for (Int first = 0; first < n; first += kBlock) {
    Lanes part = Lanes::set(0.0f);
    sixteens(n - first < kBlock ? n - first : kBlock, [&](Int i, int count) __attribute__((always_inline)) {
      const Lanes e = exp_negative(load<Lanes>(x + first + i, count) - largest);
      part = part + (count == kLanes ? e : select(Lanes::between(0, count), e, Lanes::set(0.0f)));
    });
    total += static_cast<double>(sum(part));
  }
  return static_cast<double>(first_lane(largest)) + __builtin_log(total);
}

static_assert(kSkip == kLanes);
template <Lanes16 Lanes>
Int skip(const float* x, Int n, float bound) {
  const Lanes most = Lanes::set(bound);
  for (Int i = 0; i + kSkip <= n; i += kSkip) {
    const Lanes v = Lanes::load(x + i);
    // v - v is NaN if v is not finite.
    if (any(less(most, v)) || any(is_nan(v - v))) return i;
  }
  return n / kSkip * kSkip;
}

template <Lanes16 Lanes>
inline constexpr RowKernels kRows = {quantize<Lanes>,       quantize_fixed<Lanes>,
                                     quantize_words<Lanes>, quantize_bytes<Lanes>,
                                     rms_norm<Lanes>,       layer_norm<Lanes>,
                                     epilogue<Lanes>,       gate<Lanes>,
                                     multiply<Lanes>,       scale_add<Lanes>,
                                     rope<Lanes>,           kv_store<Lanes>,
                                     attend<Lanes>,         merge<Lanes>,
                                     route<Lanes>,          fold_choices<Lanes>,
                                     conv<Lanes>,           scan_gates<Lanes>,
                                     scan<Lanes>,           pool<Lanes>,
                                     log_sum_exp<Lanes>,    skip<Lanes>};

}  // namespace
}  // namespace pumice::cpu
