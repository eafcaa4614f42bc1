// Weights as they lie on a device: rows of 32-bit words in planes, see shaders/layout.h. Pure functions.
#pragma once

#include <cstdint>

#include "core/formats.h"

namespace pumice::vulkan {

// Words of a row of `cols` weights, a multiple of 4. cols: whole blocks of the format, at most 2^30; throws invalid_argument otherwise.
std::int64_t device_row_words(Format format, std::int64_t cols);

// `count` rows of the file, row_bytes(format, cols) bytes each, to `count` rows of device_row_words(format, cols) words. Only moves bits:
// scale * code + minimum of the shaders is the weight that unpack() of core/formats.h gives. Thread-safe.
void pack_rows(Format format, const std::uint8_t* packed_rows, std::int64_t count, std::int64_t cols, std::uint32_t* out);

}  // namespace pumice::vulkan
