// Matrices whose packed form stands for floats that no format of small integers holds. Their rows are made as floats.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "core/formats.h"
#include "files/file.h"
#include "files/tensor_info.h"

namespace pumice::files::schemes {

struct Floats {
  std::string module;  // the made tensor is MODULE.weight
  std::int64_t rows = 0, cols = 0;
  Format format = Format::F32;     // F32, F16 or BF16, to which the rows are rounded
  std::string packing, not_exact;  // as in MadeTensor
  TensorInfo from;                 // the packed tensor, whose place in the files the made tensor has
  // Reads rows [first, first + count). Throws if a number is not finite.
  std::function<void(std::span<const File> files, std::int64_t first, std::int64_t count, float* out)> read;
};

// Returns the tensor that has these rows.
TensorInfo made_of(Floats floats);

// The values of the codes of a float of 8 bits, F8_E4M3: a sign, an exponent of 4 bits with the bias 7, and 3 bits of mantissa. It has no
// infinities, and codes 0x7f and 0xff are NaN. Source: OCP 8-bit Floating Point Specification 1.0.
const std::array<float, 256>& e4m3_values();

}  // namespace pumice::files::schemes
