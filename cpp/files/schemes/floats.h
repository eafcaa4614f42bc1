// Matrices whose packed weights are floats that no format of small integers can hold. Their rows are made as floats.
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
  Format format = Format::F32;     // the format to which the rows are rounded: F32, F16 or BF16
  std::string packing, not_exact;  // the values of MadeTensor::packing and MadeTensor::not_exact
  TensorInfo from;                 // the packed tensor; the made tensor has its file and offset
  // Reads rows [first, first + count). Throws if a number is not finite.
  std::function<void(std::span<const File> files, std::int64_t first, std::int64_t count, float* out)> read;
};

// Returns a tensor whose rows come from floats.read().
TensorInfo made_of(Floats floats);

// Returns the values of the 256 codes of F8_E4M3, a float of 8 bits: a sign, an exponent of 4 bits with the bias 7, and 3 bits of mantissa.
// The format has no infinities. Codes 0x7f and 0xff are NaN. Source: OCP 8-bit Floating Point Specification 1.0.
const std::array<float, 256>& e4m3_values();

}  // namespace pumice::files::schemes
