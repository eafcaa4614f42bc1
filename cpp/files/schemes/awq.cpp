// AWQ, as AutoAWQ writes it in its version "gemm". A matrix of R rows and C columns, in groups of columns, consists of
//   qweight I32 [C, R / 8]: nibble k of word j of a row is the code of the matrix's row 8 j + kOrder[k]
//   qzeros  I32 [groups, R / 8]: zeros, in the same order
//   scales  F16 [groups, R]
// Source: awq/modules/linear/gemm.py and awq/utils/packing_utils.py of AutoAWQ 0.2.9.
#include <algorithm>
#include <array>
#include <utility>

#include "files/schemes/folder.h"

namespace pumice::files::schemes {
namespace {

constexpr std::array<std::size_t, 8> kOrder = {0, 2, 4, 6, 1, 3, 5, 7};
constexpr std::int64_t kInWord = 8;

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
    codes.rows_at_once = rows_in_slice(rows, cols);  // a multiple of 8: a slice has whole words
    codes.read = [words, zeros, scales, rows, cols, groups, across](std::span<const File> files, std::int64_t first, std::int64_t count) {
      const auto n = static_cast<std::size_t>(count), width = static_cast<std::size_t>(cols), high = static_cast<std::size_t>(groups);
      const auto from = static_cast<std::uint64_t>(first / kInWord), some = static_cast<std::uint64_t>(count / kInWord);
      CodeRows out{.codes = std::vector<std::uint8_t>(n * width), .scales = std::vector<float>(n * high), .offsets = {}};
      out.offsets.resize(n * high);
      std::vector<std::uint32_t> read(width * some);  // [columns, words]
      if (count == rows) {
        read_bytes(files, words, 0, words.bytes, read.data());
      } else {
        for (std::size_t col = 0; col < width; ++col)
          read_bytes(files, words, (col * static_cast<std::uint64_t>(across) + from) * 4, some * 4, read.data() + col * some);
      }
      constexpr std::size_t kTile = 16;  // words of a column that lie in the cache together
      for (std::size_t begin = 0; begin < some; begin += kTile) {
        for (std::size_t col = 0; col < width; ++col) {
          for (std::size_t j = begin; j < std::min<std::size_t>(some, begin + kTile); ++j) {
            const std::uint32_t word = read[col * some + j];
            for (std::size_t k = 0; k < kOrder.size(); ++k)
              out.codes[(8 * j + kOrder[k]) * width + col] = static_cast<std::uint8_t>(word >> (4 * k) & 15);
          }
        }
      }
      std::vector<float> scale(n);
      std::vector<std::uint32_t> zero(some);
      for (std::size_t g = 0; g < high; ++g) {
        read_numbers(files, scales, static_cast<std::int64_t>(g) * rows + first, count, scale.data());
        read_bytes(files, zeros, (g * static_cast<std::uint64_t>(across) + from) * 4, some * 4, zero.data());
        for (std::size_t row = 0; row < n; ++row) out.scales[row * high + g] = scale[row];
        for (std::size_t j = 0; j < some; ++j) {
          for (std::size_t k = 0; k < kOrder.size(); ++k)
            out.offsets[(8 * j + kOrder[k]) * high + g] = static_cast<float>(zero[j] >> (4 * k) & 15);
        }
      }
      return out;
    };
    folder.add(std::move(codes), {&words, &zeros, &scales});
  }
}

}  // namespace pumice::files::schemes
