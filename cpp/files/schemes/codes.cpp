#include "files/schemes/codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/checked.h"
#include "core/formats.h"
#include "files/made_tensor.h"
#include "files/text.h"

namespace pumice::files::schemes {
namespace {

constexpr std::size_t kBlock = 32;  // number of weights in a block of each format in kTargets except A4, whose blocks have 128

// A format to which packed matrices are converted. It holds scale * (code - zero), or scale * code + bias, exactly if the codes have at
// most `most_bits` bits. `low` is the integer that code 0 of the format stands for. A4 does not use `low`, because its blocks have zeros of
// their own.
struct Target {
  Format format;
  int most_bits;
  Offsets offsets;
  int low;
};
constexpr Target kTargets[] = {
    {Format::Q4_0, 4, Offsets::middle, -8}, {Format::Q5_0, 5, Offsets::middle, -16}, {Format::Q8_0, 8, Offsets::middle, 0},
    {Format::Q4_0, 3, Offsets::zeros, -8},  {Format::A4, 4, Offsets::zeros, 0},      {Format::Q5_0, 4, Offsets::zeros, -16},
    {Format::Q4_1, 4, Offsets::biases, 0},  {Format::Q5_1, 5, Offsets::biases, 0},
};

// Returns whether rows divide into blocks of `block` columns, and no block has columns of two groups.
bool divides(const Codes& codes, std::int64_t block) { return codes.cols % block == 0 && (codes.groups == 1 || codes.group % block == 0); }

// Returns the first format in kTargets that can hold the codes and in which no block would need two scales. If there is no such format,
// returns the last format that can hold the codes, or null if none can.
const Target* target_of(const Codes& codes) {
  const Target* found = nullptr;
  for (const Target& target : kTargets) {
    if (target.offsets != codes.offsets || codes.bits > target.most_bits) continue;
    found = &target;
    if (divides(codes, info(target.format).block)) break;
  }
  return found;
}

std::string packing_of(const Codes& codes) {
  const std::string groups = codes.groups == 1 ? std::string("one group a row") : str("groups of ", codes.group);
  return str(codes.library, ", ", codes.bits, " bits, ", groups, codes.group_of.empty() ? "" : ", act-order");
}

// Returns why no format holds the weights exactly, or "" if a format does.
std::string why_not_exact(const Codes& codes) {
  if (!target_of(codes))
    return str("no format has codes of ", codes.bits, " bits with ", codes.offsets == Offsets::zeros ? "zero points" : "biases");
  if (!codes.group_of.empty()) return "the columns of a group are not neighbours";
  if (codes.cols % std::int64_t{kBlock} != 0) return str("rows of ", codes.cols, " do not divide into blocks of ", kBlock);
  if (codes.groups > 1 && codes.group % std::int64_t{kBlock} != 0)
    return str("groups of ", codes.group, " do not divide into blocks of ", kBlock);
  if (codes.scales.format == Format::F32 || codes.biases.format == Format::F32) return "its scales are F32, and those of blocks are F16";
  return "";
}

// Returns the fifth bits of eight codes. Bit i is the fifth bit of code i. The multiplication moves the bits into the product's top byte.
std::uint8_t fifth_bits(const std::uint8_t* codes) {
  std::uint64_t all;
  std::memcpy(&all, codes, sizeof all);
  return static_cast<std::uint8_t>((all >> 4 & 0x0101010101010101u) * 0x0102040810204080u >> 56);
}

// Unpacks words of 32 / bits values each.
template <int bits>
void unpack_each(const std::uint32_t* words, std::int64_t count, std::uint8_t* out) {
  constexpr int kInWord = 32 / bits;
  constexpr std::uint32_t kMask = (1u << bits) - 1;
  const std::int64_t whole = count / kInWord;
  for (std::int64_t i = 0; i < whole; ++i) {
    for (int k = 0; k < kInWord; ++k) out[i * kInWord + k] = static_cast<std::uint8_t>(words[i] >> (k * bits) & kMask);
  }
  for (std::int64_t i = whole * kInWord; i < count; ++i)
    out[i] = static_cast<std::uint8_t>(words[whole] >> ((i - whole * kInWord) * bits) & kMask);
}
// For 4 bits: moves the two halves of each byte to bytes of their own, eight values at a time.
template <>
void unpack_each<4>(const std::uint32_t* words, std::int64_t count, std::uint8_t* out) {
  const auto spread = [](std::uint32_t word) {
    std::uint64_t all = word;
    all = (all | all << 16) & 0x0000FFFF0000FFFFu;
    all = (all | all << 8) & 0x00FF00FF00FF00FFu;
    return (all | all << 4) & 0x0F0F0F0F0F0F0F0Fu;
  };
  for (; count >= 8; count -= 8, out += 8) {
    const std::uint64_t eight = spread(*words++);
    std::memcpy(out, &eight, sizeof eight);
  }
  if (count == 0) return;
  const std::uint64_t eight = spread(*words);
  std::memcpy(out, &eight, static_cast<std::size_t>(count));
}

// For 8 bits: copies the words, because their bytes are the values.
template <>
void unpack_each<8>(const std::uint32_t* words, std::int64_t count, std::uint8_t* out) {
  std::memcpy(out, words, static_cast<std::size_t>(count));
}

// Unpacks a stream of values of `bits` bits. A value may begin in one word and end in the next.
template <int bits>
void unpack_stream(const std::uint32_t* words, std::int64_t count, std::uint8_t* out) {
  std::uint64_t held = 0;  // bits that were read from `words` and are not yet written
  int holds = 0;           // number of these bits
  for (std::int64_t i = 0; i < count; ++i) {
    if (holds < bits) {
      held |= static_cast<std::uint64_t>(*words++) << holds;
      holds += 32;
    }
    out[i] = static_cast<std::uint8_t>(held & ((1u << bits) - 1));
    held >>= bits;
    holds -= bits;
  }
}

using Unpack = void (*)(const std::uint32_t* words, std::int64_t count, std::uint8_t* out);
constexpr Unpack kUnpackEach[] = {unpack_each<2>, unpack_each<3>, unpack_each<4>, unpack_each<5>,
                                  unpack_each<6>, unpack_each<7>, unpack_each<8>};
constexpr Unpack kUnpackStream[] = {unpack_each<2>,   unpack_stream<3>, unpack_each<4>, unpack_stream<5>,
                                    unpack_stream<6>, unpack_stream<7>, unpack_each<8>};

class MadeOfCodes final : public MadeTensor {
 public:
  explicit MadeOfCodes(Codes codes) : codes_(std::move(codes)) {
    packing = packing_of(codes_);
    not_exact = why_not_exact(codes_);
    if (not_exact.empty()) target_ = target_of(codes_);
  }

  Format format() const { return target_ ? target_->format : Format::F32; }
  const Codes& codes() const { return codes_; }

  void read(std::span<const File> files, std::int64_t first, std::int64_t count, std::uint8_t* out) const override {
    constexpr std::int64_t kRows = 16;  // number of rows that are unpacked at a time, so that their codes stay in the cache
    const std::int64_t bytes = row_bytes(format(), codes_.cols);
    for (std::int64_t done = 0; done < count; done += kRows) {
      const std::int64_t now = std::min(kRows, count - done);
      write(files, codes_.read(files, first + done, now), first + done, now, out + done * bytes);
    }
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail_row(std::span<const File> files, const TensorInfo& tensor, std::int64_t row, const Parts&... parts) const {
    fail_at(ErrorKind::model_format, files[tensor.file].path(), "tensor " + tensor.name, std::nullopt, "row ", row,
            " of the matrix: ", parts...);
  }

  bool biased() const { return codes_.offsets == Offsets::biases; }

  void write(std::span<const File> files, const CodeRows& rows, std::int64_t first, std::int64_t count, std::uint8_t* out) const {
    const auto cols = static_cast<std::size_t>(codes_.cols), groups = static_cast<std::size_t>(codes_.groups);
    const auto group = static_cast<std::size_t>(codes_.group);
    const std::vector<float> middles(groups, static_cast<float>(1 << (codes_.bits - 1)));
    for (std::size_t row = 0; row < static_cast<std::size_t>(count); ++row) {
      const std::int64_t number = first + static_cast<std::int64_t>(row);
      const std::uint8_t* code = rows.codes.data() + row * cols;
      const float* scale = rows.scales.data() + row * groups;
      const float* offset = rows.offsets.empty() ? middles.data() : rows.offsets.data() + row * groups;
      for (std::size_t g = 0; g < groups; ++g) {
        if (!std::isfinite(scale[g])) fail_row(files, codes_.scales, number, "group ", g, " has the scale ", scale[g]);
        if (!std::isfinite(offset[g])) fail_row(files, codes_.biases, number, "group ", g, " has the bias ", offset[g]);
      }
      if (target_) {
        for (std::size_t g = 0; g < groups; ++g)
          out = write_group(files, number, {code + g * group, std::min(group, cols - g * group)}, scale[g], offset[g], out);
        continue;
      }
      for (std::size_t begin = 0; begin < cols;) {  // each pass writes columns of one group
        const std::size_t g = codes_.group_of.empty() ? begin / group : static_cast<std::size_t>(codes_.group_of[begin]);
        const std::size_t end = codes_.group_of.empty() ? std::min(cols, begin + group) : begin + 1;
        for (; begin < end; ++begin, out += sizeof(float)) {
          const float at = static_cast<float>(code[begin]);
          const float value = biased() ? scale[g] * at + offset[g] : scale[g] * (at - offset[g]);
          std::memcpy(out, &value, sizeof value);
        }
      }
    }
  }

  // Returns the half float that equals `value`, a number of the tensor. Throws if there is none.
  std::uint16_t half_of(std::span<const File> files, const TensorInfo& tensor, std::int64_t row, float value) const {
    const std::uint16_t half = f32_to_f16(value);
    if (f16_to_f32(half) != value)
      fail_row(files, tensor, row, value, " equals no half float, so that ", name(target_->format), " cannot hold these weights exactly");
    return half;
  }

  // Writes the blocks of a group in the layout of core/formats.cpp. Returns the end of the blocks.
  std::uint8_t* write_group(std::span<const File> files, std::int64_t row, std::span<const std::uint8_t> codes, float scale, float offset,
                            std::uint8_t* out) const {
    const bool zeros = target_->format == Format::A4;
    const auto zero = biased() ? 0 : static_cast<int>(offset);  // exact, because zeros are integers from 0 to 2^bits - 1
    const int less = biased() || zeros ? 0 : zero + target_->low;
    const std::uint16_t halves[] = {half_of(files, codes_.scales, row, scale),
                                    biased() ? half_of(files, codes_.biases, row, offset) : std::uint16_t{0}};
    const std::size_t head = biased() ? sizeof halves : sizeof halves[0];
    const bool bytes = target_->format == Format::Q8_0, fifths = target_->format == Format::Q5_0 || target_->format == Format::Q5_1;
    for (std::size_t begin = 0; begin < codes.size(); begin += kBlock) {
      if (begin % static_cast<std::size_t>(info(target_->format).block) == 0) {
        std::memcpy(out, halves, head);
        out += head;
        if (zeros) *out++ = static_cast<std::uint8_t>(zero);
      }
      std::uint8_t stored[kBlock];
      for (std::size_t i = 0; i < kBlock; ++i) stored[i] = static_cast<std::uint8_t>(codes[begin + i] - less);
      if (bytes) {
        std::memcpy(out, stored, sizeof stored);
        out += sizeof stored;
        continue;
      }
      if (fifths) {  // the fifth bits of all codes come first
        for (std::size_t i = 0; i < kBlock; i += 8) *out++ = fifth_bits(stored + i);
      }
      for (std::size_t i = 0; i < kBlock / 2; ++i) out[i] = static_cast<std::uint8_t>((stored[i] & 15) | stored[i + kBlock / 2] << 4);
      out += kBlock / 2;
    }
    return out;
  }

  Codes codes_;
  const Target* target_ = nullptr;  // the format of the made rows; null stands for F32
};

}  // namespace

TensorInfo made_of(Codes codes) {
  const auto made = std::make_shared<const MadeOfCodes>(std::move(codes));
  const Codes& of = made->codes();
  return made_matrix(of.module, of.rows, of.cols, made->format(), of.scales, made);
}

TensorInfo made_matrix(const std::string& module, std::int64_t rows, std::int64_t cols, Format format, const TensorInfo& from,
                       std::shared_ptr<const MadeTensor> made) {
  TensorInfo tensor;
  tensor.name = module + ".weight";
  tensor.format = format;
  tensor.format_name = name(format);
  tensor.shape = {rows, cols};
  tensor.bytes = static_cast<std::uint64_t>(mul_or_fail(rows, row_bytes(format, cols), tensor.name.c_str()));
  tensor.file = from.file;
  tensor.offset = from.offset;
  tensor.made = std::move(made);
  return tensor;
}

void read_bytes(std::span<const File> files, const TensorInfo& tensor, std::uint64_t offset, std::uint64_t count, void* out) {
  files[tensor.file].read(tensor.offset + offset, static_cast<std::size_t>(count), out);
}

void read_numbers(std::span<const File> files, const TensorInfo& tensor, std::int64_t first, std::int64_t count, float* out) {
  const std::int64_t bytes = row_bytes(*tensor.format, 1);
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(count * bytes));
  read_bytes(files, tensor, static_cast<std::uint64_t>(first * bytes), packed.size(), packed.data());
  unpack(*tensor.format, packed.data(), count, out);
}

void unpack_words(const std::uint32_t* words, std::int64_t count, int bits, bool crosses, std::uint8_t* out) {
  (crosses ? kUnpackStream : kUnpackEach)[bits - 2](words, count, out);
}

}  // namespace pumice::files::schemes
