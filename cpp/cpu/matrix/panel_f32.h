// Products of float panels with float activations. A panel is a range of columns of one group, stored in the order [column][16 rows]. Every
// output is computed by one chain of fused multiply-adds over the columns.
#pragma once

#include <cstdint>

namespace pumice::cpu::matrix {

using Tile = void (*)(const std::uint8_t* const* panels, std::int64_t count, const float* x, std::int64_t x_stride, float* sums,
                      std::int64_t group_stride);

// Returns columns [first, first + count) of a group as floats, in the order [column][16]. If the group already stores floats in this
// layout, the result points into the group. Otherwise the floats are written to `buffer`.
using PanelF32 = const float* (*)(const std::uint8_t* group, std::int64_t first, std::int64_t count, float* buffer);

// Computes a product like ProductF32 (kernels.h) for weights of any format. `panel` converts the weights to floats, and a group has
// `group_bytes` bytes.
void product_panels_avx2(PanelF32 panel, std::int64_t group_bytes, const std::uint8_t* groups, std::int64_t rows, std::int64_t cols,
                         const float* x, std::int64_t x_stride, std::int64_t count, float* out, std::int64_t out_stride);

}  // namespace pumice::cpu::matrix
