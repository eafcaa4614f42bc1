// Converts weights to the layout that they have on a device: rows that consist of planes of 32-bit words. shaders/layout.h describes this
// layout.
#pragma once

#include <cstdint>

#include "core/formats.h"

namespace pumice::vulkan {

// Returns the number of words in a row of `cols` weights, which is a multiple of 4. Throws invalid_argument if `cols` is not a whole number
// of blocks or is more than 2^30.
std::int64_t device_row_words(Format format, std::int64_t cols);

// Converts `count` rows in the layout of files, of row_bytes(format, cols) bytes each, to rows of device_row_words(format, cols) words
// each. This only moves bits and rounds nothing, so scale * code + minimum in a shader equals the weight that unpack() of core/formats.h
// returns. Thread-safe.
void pack_rows(Format format, const std::uint8_t* packed_rows, std::int64_t count, std::int64_t cols, std::uint32_t* out);

}  // namespace pumice::vulkan
