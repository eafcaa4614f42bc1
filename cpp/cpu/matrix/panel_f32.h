// Products of float panels, [k][16] of one group, with rows of floats. Every output is one chain of fused multiply-adds over k.
#pragma once

#include <cstdint>

namespace pumice::cpu::matrix {

using Tile = void (*)(const std::uint8_t* const* panels, std::int64_t count, const float* x, std::int64_t x_stride, float* sums,
                      std::int64_t group_stride);

// Gives columns [first, first + count) of a group as [k][16]: written to `buffer`, or in place where the stream has that layout.
using PanelF32 = const float* (*)(const std::uint8_t* group, std::int64_t first, std::int64_t count, float* buffer);

// Rows x cols of weights in groups of `group_bytes`; see ProductF32.
void product_panels_avx2(PanelF32 panel, std::int64_t group_bytes, const std::uint8_t* groups, std::int64_t rows, std::int64_t cols,
                         const float* x, std::int64_t x_stride, std::int64_t count, float* out, std::int64_t out_stride);

}  // namespace pumice::cpu::matrix
