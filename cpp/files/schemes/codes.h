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
#include "files/made_tensor.h"
#include "files/slices.h"
#include "files/tensor_info.h"

namespace pumice::files::schemes {

// Some rows of such a matrix, row after row.
struct CodeRows {
  CodeRows(std::int64_t rows, std::int64_t cols, std::int64_t groups, bool has_offsets)
      : codes(static_cast<std::size_t>(rows * cols)),
        scales(static_cast<std::size_t>(rows * groups)),
        offsets(has_offsets ? scales.size() : 0) {}

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
};

// Returns the tensor that is made from these codes. Its format holds every weight exactly: the file's scale becomes the scale of each block
// of 32 (A4: 128), which is a half float. If there is no such format, it is F32, and MadeTensor::not_exact says why.
TensorInfo made_of(Codes codes);

// Returns the tensor MODULE.weight [rows, cols] whose rows `made` makes. It has the place in the files that the packed tensor `from` has.
TensorInfo made_matrix(const std::string& module, std::int64_t rows, std::int64_t cols, Format format, const TensorInfo& from,
                       std::shared_ptr<const MadeTensor> made);

// Reads `count` bytes of a tensor.
void read_bytes(std::span<const File> files, const TensorInfo& tensor, std::uint64_t offset, std::uint64_t count, void* out);
// Reads `count` values of a tensor of F32, F16 or BF16 as floats, beginning with value `first`.
void read_numbers(std::span<const File> files, const TensorInfo& tensor, std::int64_t first, std::int64_t count, float* out);
// Unpacks `count` values of `bits` bits, 2 to 8, from words. If `crosses`, they are a stream: a value may begin in one word and end in the
// next. Else a word has 32 / bits values, and its last bits are not used.
void unpack_words(const std::uint32_t* words, std::int64_t count, int bits, bool crosses, std::uint8_t* out);

}  // namespace pumice::files::schemes
