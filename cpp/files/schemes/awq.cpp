// AWQ, as AutoAWQ writes it in its version "gemm". A matrix of R rows and C columns, in groups of columns, consists of these tensors:
//   qweight I32 [C, R / 8]: line c has the codes of column c; nibble k of word j is the code of row 8 j + (0, 2, 4, 6, 1, 3, 5, 7)[k]
//   qzeros  I32 [groups, R / 8]: line g has the zeros of group g, with the rows in the same order
//   scales  F16 [groups, R]
// Source: awq/modules/linear/gemm.py and awq/utils/packing_utils.py of AutoAWQ 0.2.9.
#include <algorithm>
#include <array>
#include <utility>

#include "files/schemes/folder.h"

namespace pumice::files::schemes {
namespace {

constexpr std::int64_t kInWord = 8;
constexpr std::array<int, kInWord> kShift = {0, 16, 4, 20, 8, 24, 12, 28};  // entry i is the shift of the code of row 8 j + i in word j

// Writes the code that each word has at bit `shift`. This is a function of its own, because the compiler then vectorizes the loop.
template <class Code>
void unpack_at(const std::uint32_t* words, std::int64_t count, int shift, Code* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<Code>(words[i] >> shift & 15);
}

}  // namespace

void add_awq(PackedFolder& folder) {
  const Metadata& config = folder.config();
  const std::int64_t bits = config.integer(folder.key("bits")).value_or(config.integer(folder.key("w_bit")).value_or(4));
  if (bits != 4) folder.unsupported("bits", "is ", bits, "; AWQ is read with 4");
  const std::string version = config.string(folder.key("version")).value_or("gemm");
  if (version != "gemm" && version != "GEMM") folder.unsupported("version", "is ", quote(version), "; gemm is read");
  if (!config.boolean(folder.key("zero_point")).value_or(true)) folder.unsupported("zero_point", "is false; AWQ is read with zero points");

  for (const std::string& module : folder.modules({"qweight", "qzeros"})) {
    const TensorInfo &words = folder.need(module, "qweight", {"I32"}), &zeros = folder.need(module, "qzeros", {"I32"}),
                     &scales = folder.need(module, "scales", {"F16", "BF16", "F32"});
    folder.need_shape(words, {-1, -1});
    const std::int64_t cols = words.shape[0], across = words.shape[1], rows = across * kInWord;
    folder.need_shape(scales, {-1, rows});
    const std::int64_t groups = scales.shape[0];
    folder.need_shape(zeros, {groups, across});

    Codes codes{.module = module, .library = "AWQ", .rows = rows, .cols = cols, .groups = groups, .bits = 4, .scales = scales};
    codes.group = folder.group_size(config.has(folder.key("q_group_size")) ? "q_group_size" : "group_size", scales, cols, groups);
    codes.offsets = Offsets::zeros;
    codes.read = [columns = folder.columns({{words, 4}, {zeros, 4}, {scales}}, rows), scale = *scales.format, cols, groups](
                     std::span<const File> files, std::int64_t first, std::int64_t count) {
      CodeRows out(count, cols, groups, true);
      for (std::int64_t row = first; row < first + count;) {
        const Columns::Slab slab = columns->with(files, row);
        const std::int64_t end = std::min(first + count, slab.end());
        const Columns::Turned code_words = slab.turned(0, row, end), zero_words = slab.turned(1, row, end),
                              scale_rows = slab.turned(2, row, end);
        for (; row < end; ++row) {
          const int shift = kShift[static_cast<std::size_t>(row % kInWord)];
          const auto *code = code_words.column<std::uint32_t>(row), *zero = zero_words.column<std::uint32_t>(row);
          const auto at = static_cast<std::size_t>(row - first);
          std::uint8_t* to = out.codes.data() + at * static_cast<std::size_t>(cols);
          float* offsets = out.offsets.data() + at * static_cast<std::size_t>(groups);
          unpack_at(code, cols, shift, to);
          unpack_at(zero, groups, shift, offsets);
          unpack(scale, scale_rows.column<std::uint8_t>(row), groups, out.scales.data() + at * static_cast<std::size_t>(groups));
        }
      }
      return out;
    };
    folder.add(std::move(codes), {&words, &zeros, &scales});
  }
}

}  // namespace pumice::files::schemes
