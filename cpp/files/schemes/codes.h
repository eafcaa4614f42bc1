// Matrices that are packed as small integers, called codes. Each weight is scale * (code - zero), or scale * code + bias. In each row, a
// group of neighbouring columns has one scale, and one zero or bias.
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

// Some rows of a matrix of codes, one after another.
struct CodeRows {
  CodeRows(std::int64_t rows, std::int64_t cols, std::int64_t groups, bool has_offsets)
      : codes(static_cast<std::size_t>(rows * cols)),
        scales(static_cast<std::size_t>(rows * groups)),
        offsets(has_offsets ? scales.size() : 0) {}

  std::vector<std::uint8_t> codes;  // [rows, columns]
  std::vector<float> scales;        // [rows, groups]
  std::vector<float> offsets;       // [rows, groups]: zeros (integers in the range of the codes) or biases; empty for Offsets::middle
};

// What the tensors of a matrix hold in addition to codes and scales: `zeros` or `biases`. `middle` stands for neither; each zero is then
// 2^(bits - 1), in the middle of all codes.
enum class Offsets : std::uint8_t { middle, zeros, biases };

struct Codes {
  std::string module;                  // the made tensor is MODULE.weight
  std::string library;                 // the library that packed the matrix, for messages
  std::int64_t rows = 0, cols = 0;     // numbers of rows and columns of the matrix; each is below 2^31
  std::int64_t groups = 0, group = 0;  // number of groups in a row; number of columns in a group; the last group may have fewer columns
  int bits = 0;                        // number of bits in a code: 2 to 8
  Offsets offsets = Offsets::middle;
  TensorInfo scales;                   // the tensor of the scales, for messages; if its dtype is F32, F16 blocks cannot hold the scales
  TensorInfo biases;                   // the tensor of the biases, if `offsets` is Offsets::biases
  std::vector<std::int32_t> group_of;  // the group of each column, if the columns of a group are not neighbours; else empty
  // Reads rows [first, first + count).
  std::function<CodeRows(std::span<const File> files, std::int64_t first, std::int64_t count)> read;
};

// Returns the tensor that is made from these codes. Its format holds every weight exactly: each block of 32 weights (A4: 128) gets the
// scale that these weights have in the file, as a half float. If no format can do this, the tensor is F32, and MadeTensor::not_exact says
// why.
TensorInfo made_of(Codes codes);

// Returns a tensor called MODULE.weight with the shape [rows, cols], whose rows `made` makes. Its file and offset are those of the packed
// tensor `from`.
TensorInfo made_matrix(const std::string& module, std::int64_t rows, std::int64_t cols, Format format, const TensorInfo& from,
                       std::shared_ptr<const MadeTensor> made);

// Reads `count` bytes of a tensor, beginning with byte `offset`.
void read_bytes(std::span<const File> files, const TensorInfo& tensor, std::uint64_t offset, std::uint64_t count, void* out);
// Reads `count` values of a tensor of F32, F16 or BF16 as floats, beginning with value `first`.
void read_numbers(std::span<const File> files, const TensorInfo& tensor, std::int64_t first, std::int64_t count, float* out);
// Unpacks `count` values of `bits` bits, 2 to 8, from words. If `crosses` is true, the words are a stream of bits, in which a value may
// begin in one word and end in the next. Else each word has 32 / bits values, and the remaining bits of the word are not used.
void unpack_words(const std::uint32_t* words, std::int64_t count, int bits, bool crosses, std::uint8_t* out);

}  // namespace pumice::files::schemes
