// Weights as a file has them: matrices that are read on demand, and vectors that are float32 from the start.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/formats.h"

namespace pumice {

enum class MatrixId : std::int32_t { none = -1 };
enum class VectorId : std::int32_t { none = -1 };

// How far a backend may round a matrix in Linear and GatedLinear, and what it is multiplied by. It need not. Encoders with compute "auto"
// let their layers be rounded.
enum class Rounding : std::uint8_t {
  none,    // a quantized matrix multiplies activations in codes of 8 bits, a float one floats
  floats,  // float and Q8_0 matrices: to 13 bits and more of each block, no further (the vectors keep a cosine of 0.999998)
  bytes,   // load(quantize="q8_0"): to codes of 8 bits
};

// A weight matrix as the file has it: `rows` output features of `cols` input features each, row-major, in `format`.
struct Matrix {
  std::string name;
  Format format = Format::F32;
  std::int64_t rows = 0, cols = 0;
  // Copies packed rows [first, first + count) to `out` (count * row_bytes(format, cols) bytes). Thread-safe; throws Error.
  std::function<void(std::int64_t first, std::int64_t count, std::uint8_t* out)> read;
  Rounding rounding = Rounding::none;
  // Where load(quantize="q8_0") packs a matrix that may be rounded: its rows before that, as `read` gives them after it. A backend that
  // rounds takes these.
  std::function<void(std::int64_t first, std::int64_t count, float* out)> read_floats = {};
};

// May products with such a matrix round their activations to 8 bits?
constexpr bool takes_int8(Format format, Rounding rounding) {
  return info(format).quantized && !(rounding != Rounding::none && format == Format::Q8_0);
}

// Norm weights and biases: float32 from the start.
struct Vector {
  std::string name;
  std::vector<float> values;
};

struct Weights {
  std::vector<Matrix> matrices;
  std::vector<Vector> vectors;
};

}  // namespace pumice
