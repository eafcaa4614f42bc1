// Matrices that are packed as small integers: each weight is scale * (code - zero), or scale * code + bias. A group of neighbouring columns
// has one scale, and one zero or bias.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "files/file.h"
#include "files/slices.h"
#include "files/tensor_info.h"

namespace pumice::files::schemes {

// Some rows of such a matrix, row after row.
struct CodeRows {
  std::vector<std::uint8_t> codes;  // [rows, columns]
  std::vector<float> scales;        // [rows, groups]
  std::vector<float> offsets;       // [rows, groups]: zeros, which are codes, or biases; empty if each zero is in the middle of all codes
};

enum class Offsets : std::uint8_t { middle, zeros, biases };

struct Codes {
  std::string module;                  // the made tensor is MODULE.weight
  std::string library;                 // that packed it, for messages
  std::int64_t rows = 0, cols = 0;     // of the matrix; each is below 2^31
  std::int64_t groups = 0, group = 0;  // groups of a row, and the columns of a group; the last group may have fewer
  int bits = 0;                        // of a code: 2 to 8
  Offsets offsets = Offsets::middle;
  TensorInfo scales;                   // for messages; its dtype says whether half floats hold the scales
  TensorInfo biases;                   // the same for Offsets::biases
  std::vector<std::int32_t> group_of;  // the group of each column, if columns of a group are not neighbours; else empty
  // Reads rows [first, first + count).
  std::function<CodeRows(std::span<const File> files, std::int64_t first, std::int64_t count)> read;
  // Not 0: reading a few rows reads so many, so that they are kept in memory for the next call. `first` is then a multiple of it.
  std::int64_t rows_at_once = 0;
};

// Returns the tensor that is made from these codes. Its format is the smallest one that holds every weight exactly: the file's scale
// becomes the scale of each block of 32, which is a half float. If there is no such format, it is F32, and MadeTensor::not_exact says why.
TensorInfo made_of(Codes codes, std::shared_ptr<Slices> slices);

// Returns how many rows of `cols` codes should be read at once from a tensor whose rows are spread over all of its bytes.
std::int64_t rows_in_slice(std::int64_t rows, std::int64_t cols);

// Reads `count` bytes of a tensor.
void read_bytes(std::span<const File> files, const TensorInfo& tensor, std::uint64_t offset, std::uint64_t count, void* out);
// Reads `count` values of a tensor of F32, F16 or BF16 as floats, beginning with value `first`.
void read_numbers(std::span<const File> files, const TensorInfo& tensor, std::int64_t first, std::int64_t count, float* out);
// Returns value `i` of `bits` bits in a stream of words. A value may begin in one word and end in the next; word(i) returns word i.
template <class Word>
std::uint8_t in_stream(std::int64_t i, int bits, Word&& word) {
  const std::int64_t at = i * bits / 32;
  const int shift = static_cast<int>(i * bits % 32);
  std::uint64_t both = word(at);
  if (shift + bits > 32) both |= static_cast<std::uint64_t>(word(at + 1)) << 32;
  return static_cast<std::uint8_t>(both >> shift & ((1u << bits) - 1));
}

}  // namespace pumice::files::schemes
