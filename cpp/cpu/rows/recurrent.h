// Kernels of Conv and Scan (core/ops.h) with sixteen lanes.
#pragma once

#include "cpu/kernels.h"
#include "cpu/rows/math.h"
#include "cpu/rows/sixteens.h"

namespace pumice::cpu {
namespace {

template <Lanes16 Lanes>
void conv(const float* const* rows, const float* taps, const float* bias, int width, Activation activation, Int n, float* out) {
  chunks(n, [&](Int first, Int values) __attribute__((always_inline)) {
    sixteens(values, [&](Int at, int count) __attribute__((always_inline)) {
      const Int i = first + at;
      Lanes y = bias ? load<Lanes>(bias + i, count) : Lanes::set(0.0f);
      for (int j = 0; j < width; ++j)
        if (rows[j]) y = fma(load<Lanes>(taps + j * n + i, count), load<Lanes>(rows[j] + i, count), y);
      store(out + i, y, count);
    });
    if (activation != Activation::none) activate<Lanes>(out + first, values, activation, {});
  });
}

template <Lanes16 Lanes>
void scan_gates(const ScanGates& call, Int rows, float* decay, float* gain) {
  sixteens(rows, [&](Int first, int count) __attribute__((always_inline)) {
    float step[kLanes] = {}, beta[kLanes] = {};
    for (int i = 0; i < count; ++i) {
      step[i] = call.step[(first + i) * call.step_stride];
      if (call.beta) beta[i] = call.beta[(first + i) * call.beta_stride];
    }
    // If the second argument of max() is NaN, max() returns NaN. A NaN in `step` is therefore not replaced by `floor`.
    const Lanes dt = max(Lanes::set(call.floor), softplus(Lanes::load(step) + Lanes::set(call.step_bias)));
    store(decay + first, exp(Lanes::set(call.rate) * dt), count);
    store(gain + first, call.beta ? sigmoid(Lanes::load(beta)) * Lanes::set(call.strength) : dt, count);
  });
}

// Number of partial sums in a sum over the rows of a state. Partial sum j adds the rows whose index modulo 4 is j, so that additions do not
// wait for each other. folded() adds up the partial sums.
inline constexpr int kSums = 4;
template <Lanes16 Lanes>
PUMICE_INLINE Lanes folded(const Lanes (&sums)[kSums]) {
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

// Applies one row of Scan to a strip, which is 16 columns of a head's state. Reads the strip S from `from`, multiplies S by `decay`, adds
// the outer product of k and `added`, and writes the new S to `to`, which may be the same memory. Returns S^T q for the new S.
template <Lanes16 Lanes>
PUMICE_INLINE Lanes scan_row(const float* from, float* to, const float* q, const float* k, int key_dim, const Lanes& decay,
                             const Lanes& added) {
  Lanes sums[kSums] = {Lanes::set(0.0f), Lanes::set(0.0f), Lanes::set(0.0f), Lanes::set(0.0f)};
  const auto row = [&](int i, Lanes& sum) __attribute__((always_inline)) {
    const Lanes s = fma(Lanes::set(k[i]), added, Lanes::load(from + i * kLanes) * decay);
    store(to + i * kLanes, s);
    sum = fma(s, Lanes::set(q[i]), sum);
  };
  int i = 0;
  for (; i + kSums <= key_dim; i += kSums)
    for (int j = 0; j < kSums; ++j) row(i + j, sums[j]);
  for (int j = 0; i + j < key_dim; ++j) row(i + j, sums[j]);
  return folded(sums);
}

// Returns S^T k for the strip S at `from`.
template <Lanes16 Lanes>
PUMICE_INLINE Lanes scan_read(const float* from, const float* k, int key_dim) {
  Lanes sums[kSums] = {Lanes::set(0.0f), Lanes::set(0.0f), Lanes::set(0.0f), Lanes::set(0.0f)};
  int i = 0;
  for (; i + kSums <= key_dim; i += kSums)
    for (int j = 0; j < kSums; ++j) sums[j] = fma(Lanes::load(from + (i + j) * kLanes), Lanes::set(k[i + j]), sums[j]);
  for (int j = 0; i + j < key_dim; ++j) sums[j] = fma(Lanes::load(from + (i + j) * kLanes), Lanes::set(k[i + j]), sums[j]);
  return folded(sums);
}

template <Lanes16 Lanes>
void scan(const ScanCall& call, Int rows, int count, const float* from, float* to) {
  for (Int r = 0; r < rows; ++r, from = to) {
    const float *q = call.q + r * call.q_stride, *k = call.k + r * call.k_stride;
    const Lanes v = load<Lanes>(call.v + r * call.v_stride, count);
    const Lanes decay = Lanes::set(call.decay[r]), gain = Lanes::set(call.gain[r]);
    Lanes out;
    if (call.rule == ScanRule::delta) {
      const Lanes added = fnma(decay, scan_read<Lanes>(from, k, call.key_dim), v) * gain;
      out = scan_row(from, to, q, k, call.key_dim, decay, added);
    } else {
      out = fma(Lanes::set(call.skip), v, scan_row(from, to, q, k, call.key_dim, decay, gain * v));
    }
    store(call.out + r * call.out_stride, out, count);
  }
}

}  // namespace
}  // namespace pumice::cpu
