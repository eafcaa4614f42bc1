// Weights as a file has them. Matrices are read on demand; vectors are in memory as float32.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/formats.h"

namespace pumice {

enum class MatrixId : std::int32_t { none = -1 };
enum class VectorId : std::int32_t { none = -1 };

// How far a backend may round a matrix, and the activations that it multiplies, in Linear and GatedLinear. No backend has to round. In
// encoders with compute "auto" the layers' matrices may be rounded.
enum class Rounding : std::uint8_t {
  // Not at all. A quantized matrix multiplies activations in 8-bit codes, a float matrix multiplies float activations.
  none,
  // Float and Q8_0 matrices: to at least 13 bits within each block (embeddings keep a cosine of 0.999998).
  floats,
  // load(quantize="q8_0"): to 8-bit codes.
  bytes,
};

// A weight matrix as the file has it: `rows` output features of `cols` input features each, row-major, in `format`.
struct Matrix {
  std::string name;
  Format format = Format::F32;
  std::int64_t rows = 0, cols = 0;
  // Copies packed rows [first, first + count) to `out` (count * row_bytes(format, cols) bytes). Thread-safe; throws Error.
  std::function<void(std::int64_t first, std::int64_t count, std::uint8_t* out)> read;
  Rounding rounding = Rounding::none;
  // Set if load(quantize="q8_0") packs a matrix that may be rounded. `read` then returns the packed rows, and read_floats returns the rows
  // as they were before packing. A backend that rounds uses read_floats.
  std::function<void(std::int64_t first, std::int64_t count, float* out)> read_floats = {};
};

// Returns whether products with such a matrix may round their activations to 8 bits.
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
