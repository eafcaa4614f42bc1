// Converts weights to the layout that they have on a device: rows of 32-bit words in planes, see shaders/layout.h. Pure functions.
#pragma once

#include <cstdint>

#include "core/formats.h"

namespace pumice::vulkan {

// Returns the words in a row of `cols` weights, a multiple of 4. Throws invalid_argument unless cols is whole blocks and at most 2^30.
std::int64_t device_row_words(Format format, std::int64_t cols);

// Converts `count` rows of the file, row_bytes(format, cols) bytes each, to rows of device_row_words(format, cols) words each. Only moves
// bits, so that scale * code + minimum in a shader is the weight that unpack() of core/formats.h returns. Thread-safe.
void pack_rows(Format format, const std::uint8_t* packed_rows, std::int64_t count, std::int64_t cols, std::uint32_t* out);

}  // namespace pumice::vulkan
