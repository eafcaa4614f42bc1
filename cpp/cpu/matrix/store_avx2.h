// AVX2 code that stores sums to the output of a product.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace pumice::cpu::matrix {
namespace {

// Stores the first `lanes` of 16 sums to `out`.
inline void store_first(const float* sums, std::int64_t lanes, float* out) {
  if (lanes == 16) {
    _mm256_storeu_ps(out, _mm256_loadu_ps(sums));
    _mm256_storeu_ps(out + 8, _mm256_loadu_ps(sums + 8));
  } else {
    for (std::int64_t lane = 0; lane < lanes; ++lane) out[lane] = sums[lane];
  }
}

}  // namespace
}  // namespace pumice::cpu::matrix
