// Checks that weights are finite while a device packs them, so that a damaged file raises an error.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/program.h"

namespace pumice {

// Throws ErrorKind::numeric if one of the packed rows [first, first + rows) has a NaN or an infinity among its floats or block scales. The
// message names the tensor and the row.
void check_finite(const Matrix& matrix, std::int64_t first, std::int64_t rows, const std::uint8_t* packed);
void check_finite(const Vector& vector);

// Returns "NaN", "infinity" or "-infinity" for a value that is not finite. Used in messages.
std::string_view name_not_finite(float value);
// The end of a message that reports a result which is not finite.
inline constexpr std::string_view kWhyNotFinite =
    ": the model's numbers overflowed or its weights are damaged; compute=\"float32\" tells which";

}  // namespace pumice
