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

// Of a matrix that is packed to Q8_0 while it is read (load(quantize="q8_0")): what a backend with products of its own may do instead.
struct Narrow {
  std::function<void(std::int64_t first, std::int64_t count, float* out)> floats;  // its rows as they were; as Matrix::read
  bool in_bytes = false;  // weights and what they multiply bear codes of 8 bits; otherwise 13 and 14, as of float matrices
  // Of the norm whose output it multiplies, if any: x = normed * weight + bias. The weight may be folded into the matrix.
  VectorId norm_weight = VectorId::none, norm_bias = VectorId::none;
  explicit operator bool() const { return static_cast<bool>(floats); }
};

// A weight matrix as the file has it: `rows` output features of `cols` input features each, row-major, in `format`.
struct Matrix {
  std::string name;
  Format format = Format::F32;
  std::int64_t rows = 0, cols = 0;
  // Copies packed rows [first, first + count) to `out` (count * row_bytes(format, cols) bytes). Thread-safe; throws Error.
  std::function<void(std::int64_t first, std::int64_t count, std::uint8_t* out)> read;
  // An encoder's, with compute "auto", in Linear and GatedLinear only: products may round it, where it is float, and what they multiply,
  // where it is float or Q8_0, to 13 bits and more of each block, and no further (the vectors keep a cosine of 0.999998). A backend need
  // not.
  bool may_round = false;
  Narrow narrow = {};  // with may_round only
};

// May products with such a matrix round their activations to 8 bits?
constexpr bool takes_int8(Format format, bool may_round) { return info(format).quantized && !(may_round && format == Format::Q8_0); }

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
