// Weights must be numbers: checked while a device packs them, so that a damaged file is said to be one.
#pragma once

#include <cstdint>

#include "core/program.h"

namespace pumice {

// Throws numeric, naming tensor and row, when one of the packed rows [first, first + rows) holds a NaN or an infinity (in its floats, or in
// the scales of its blocks).
void check_finite(const Matrix& matrix, std::int64_t first, std::int64_t rows, const std::uint8_t* packed);
void check_finite(const Vector& vector);

}  // namespace pumice
