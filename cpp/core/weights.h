// Weights in the form that the file has. Matrices are read on demand; vectors are in memory as float32.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/cancel.h"
#include "core/formats.h"

namespace pumice {

enum class MatrixId : std::int32_t { none = -1 };
enum class VectorId : std::int32_t { none = -1 };

// The rounding that a backend may apply to a matrix and to the activations that the matrix is multiplied by, in Linear and GatedLinear. A
// backend may also round less or not at all. Only matrices of encoders get a value other than `none`, and only with compute="auto".
enum class Rounding : std::uint8_t {
  // The matrix must not be rounded. If the matrix is quantized, activations may be rounded to 8-bit codes. If the matrix holds floats,
  // activations must not be rounded.
  none,
  // Float and Q8_0 matrices, and the activations, may be rounded to 13 bits or more within each block. The cosine of an embedding with the
  // exact embedding is then 0.999998. For other formats `floats` is the same as `none`.
  floats,
  // Set with load(quantize="q8_0"). The matrix and the activations may be rounded to 8-bit codes.
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
  // Reads float rows. Set only if load(quantize="q8_0") packs a float matrix that may be rounded. `read` then returns packed Q8_0 rows, and
  // read_floats returns the rows that they are packed from, for a backend that does its own rounding.
  std::function<void(std::int64_t first, std::int64_t count, float* out)> read_floats = {};
  // Number of matrices of equal shape in this matrix, stored one after another: one per expert (Experts) or per head (HeadLinear).
  std::int32_t experts = 1;
  // Does work that `read` needs only once. Empty unless the rows that `read` returns depend on all rows of the file's matrix. Call
  // `prepare` before the first `read`. Otherwise the first `read` does the work, and cannot be cancelled meanwhile. Throws
  // ErrorKind::cancelled.
  std::function<void(const Cancel& cancel)> prepare = {};
};

// Returns whether products with a matrix of this format and rounding may round their activations to 8 bits.
constexpr bool takes_int8(Format format, Rounding rounding) {
  return info(format).quantized && !(rounding != Rounding::none && format == Format::Q8_0);
}

// A vector of weights (for example the weight of a norm, or a bias), converted to float32 when the file is read.
struct Vector {
  std::string name;
  std::vector<float> values;
};

struct Weights {
  std::vector<Matrix> matrices;
  std::vector<Vector> vectors;
  // Throws an Error if one of the files that the matrices are read from has changed since it was opened. A backend that reads matrices
  // after pack() calls this function after each reading. May be empty.
  std::function<void()> require_unchanged = {};
};

}  // namespace pumice
