// Converts blocks of GGUF formats to formats of core/formats.def that hold the same weights exactly.
//
// The IQ formats store, for each 4 or 8 weights, the index of a vector in a table of small integers (a grid of iq_grids.h). Signs and
// scales multiply these integers, so each weight is a scale times one of at most 16 small integers. The formats IQ1_E, IQ2_E, IQ3_XXS_E and
// IQ3_S_E of core/formats.def store, for each weight, a code: the index of this integer in a table.
//
// Sources of ids, names, sizes and layouts: ggml-common.h and ggml-quants.c of ggml-org/llama.cpp; gguf-py constants.py and quants.py. The
// wide Q2_0: ggml-common.h of PrismML's fork, which wrote the Bonsai files.
#include "files/gguf_formats.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/checked.h"
#include "core/error.h"
#include "core/formats_blocks.h"
#include "files/iq_grids.h"
#include "files/schemes/floats.h"
#include "files/text.h"

namespace pumice::files {
namespace {

using BlockBytes = const std::uint8_t*;
using blocks::load;
constexpr int kSuper = blocks::kSuper;
using BlockCodes = std::array<std::uint8_t, kSuper>;

// ---------------------------------------------------------------- functions that write blocks
// Writes a block of IQ1_E or IQ2_E. `scales` has the 4-bit scales of 16 sub-blocks in 8 bytes.
void write_three_bits(std::uint16_t d, BlockBytes scales, const BlockCodes& codes, std::uint8_t* out) {
  blocks::store_u16(out, d);
  std::memcpy(out + 2, scales, 8);
  std::memset(out + 10, 0, 96);
  for (int i = 0; i < kSuper; ++i) {
    std::uint8_t &low = out[10 + i / 128 * 32 + i % 32], &high = out[74 + i % 32];
    low = static_cast<std::uint8_t>(low | (codes[i] & 3) << (i % 128 / 32 * 2));
    high = static_cast<std::uint8_t>(high | codes[i] >> 2 << (i / 32));
  }
}

// Writes a block of IQ3_XXS_E or IQ3_S_E. `scales` has the 4-bit scales of 8 sub-blocks in 4 bytes.
void write_four_bits(std::uint16_t d, BlockBytes scales, const BlockCodes& codes, std::uint8_t* out) {
  blocks::store_u16(out, d);
  std::memcpy(out + 2, scales, 4);
  for (int i = 0; i < kSuper / 2; ++i) {
    const int low = i / 16 * 32 + i % 16;
    out[6 + i] = static_cast<std::uint8_t>(codes[low] | codes[low + 16] << 4);
  }
}

// Writes a block of Q2_K with the weights d * (code - 1). `pairs` has the codes, four 2-bit codes in each byte.
void write_ternary(std::uint16_t d, BlockBytes pairs, std::uint8_t* out) {
  std::memset(out, 0x11, 16);  // scale 1 and minimum 1 of each sub-block
  std::memcpy(out + 16, pairs, 64);
  blocks::store_u16(out + 80, d);
  blocks::store_u16(out + 82, d);
}

// Writes blocks of Q4_0 with n weights d * value(i), where value(i) is from -8 to 7.
template <class Value>
void write_q4_0(BlockBytes d, int n, const Value& value, std::uint8_t* out) {
  for (int at = 0; at < n; at += 32, out += 18) {
    std::memcpy(out, d, 2);
    for (int i = 0; i < 16; ++i) out[2 + i] = static_cast<std::uint8_t>((value(at + i) + 8) | (value(at + 16 + i) + 8) << 4);
  }
}

// ---------------------------------------------------------------- vectors
// Writes the codes of a vector of eight values. `vector` is an entry of an IQ2 grid. Value i is negative if bit i of `signs` is set.
void put_eight(int vector, int signs, std::uint8_t* codes) {
  for (int i = 0; i < 8; ++i) codes[i] = static_cast<std::uint8_t>((vector >> (2 * i) & 3) | (signs >> i & 1) << 2);
}
// Writes the codes of two vectors of four values, which are entries of an IQ3 grid. Value i of the eight is negative if bit i of `signs` is
// set.
void put_four_twice(int first, int second, int signs, std::uint8_t* codes) {
  for (int i = 0; i < 8; ++i) {
    const int vector = i < 4 ? first : second;
    codes[i] = static_cast<std::uint8_t>((vector >> (3 * (i % 4)) & 7) | (signs >> i & 1) << 3);
  }
}
// Returns eight signs as bits, in which a set bit is a minus sign. Files store seven of the bits. The eighth makes the number of minus
// signs even.
int eight_signs(std::uint32_t seven) {
  seven &= 127;
  return static_cast<int>(seven | static_cast<std::uint32_t>(__builtin_popcount(seven) & 1) << 7);
}
// Sets entry i of the list of 4-bit numbers at `scales`. The entry must be 0 before.
void put_scale(std::uint8_t* scales, int i, std::uint32_t scale) {
  scales[i / 2] = static_cast<std::uint8_t>(scales[i / 2] | scale << (i % 2 * 4));
}

// ---------------------------------------------------------------- IQ2 and IQ3
// Converts a block of IQ2_XXS. The block has an f16 d and, for each 32 weights, four grid indices of one byte and a word of 32 bits. The
// word has seven signs for each index, and a 4-bit scale s. A weight is d * (0.5 + s) / 4 * signed grid value.
void expand_iq2_xxs(BlockBytes block, std::uint8_t* out) {
  BlockCodes codes;
  std::uint8_t scales[8] = {};
  for (int sub = 0; sub < 8; ++sub) {
    const BlockBytes at = block + 2 + 8 * sub;
    const auto word = load<std::uint32_t>(at + 4);
    for (int v = 0; v < 4; ++v) put_eight(kGridIq2Xxs[at[v]], eight_signs(word >> (7 * v)), &codes[32 * sub + 8 * v]);
    for (int half = 0; half < 2; ++half) put_scale(scales, 2 * sub + half, word >> 28);
  }
  write_three_bits(load<std::uint16_t>(block), scales, codes, out);
}

// Converts a block of IQ2_XS. The block has an f16 d, then 16 bits for each 8 weights (a 9-bit grid index and seven signs), and then a
// 4-bit scale s for each 16 weights. A weight is d * (0.5 + s) / 4 * signed grid value.
void expand_iq2_xs(BlockBytes block, std::uint8_t* out) {
  BlockCodes codes;
  for (int v = 0; v < 32; ++v) {
    const auto word = load<std::uint16_t>(block + 2 + 2 * v);
    put_eight(kGridIq2Xs[word & 511], eight_signs(word >> 9), &codes[8 * v]);
  }
  write_three_bits(load<std::uint16_t>(block), block + 66, codes, out);
}

// Converts a block of IQ2_S. The block has an f16 d, the low eight bits of 32 grid indices, 32 bytes of signs, the top two bits of the 32
// indices, and a 4-bit scale s for each 16 weights. A weight is d * (0.5 + s) / 4 * signed grid value.
void expand_iq2_s(BlockBytes block, std::uint8_t* out) {
  BlockCodes codes;
  for (int v = 0; v < 32; ++v) {
    const int index = block[2 + v] | (block[66 + v / 4] >> (v % 4 * 2) & 3) << 8;
    put_eight(kGridIq2S[index], block[34 + v], &codes[8 * v]);
  }
  write_three_bits(load<std::uint16_t>(block), block + 74, codes, out);
}

// Converts a block of IQ3_XXS. The block has an f16 d, 64 grid indices of one byte, and a word of 32 bits for each 32 weights. The word has
// four times seven signs, each time for 8 weights, and a 4-bit scale s. A weight is d * (0.5 + s) / 2 * signed grid value.
void expand_iq3_xxs(BlockBytes block, std::uint8_t* out) {
  BlockCodes codes;
  std::uint8_t scales[4] = {};
  for (int sub = 0; sub < 8; ++sub) {
    const BlockBytes at = block + 2 + 8 * sub;
    const auto word = load<std::uint32_t>(block + 66 + 4 * sub);
    for (int v = 0; v < 4; ++v)
      put_four_twice(kGridIq3Xxs[at[2 * v]], kGridIq3Xxs[at[2 * v + 1]], eight_signs(word >> (7 * v)), &codes[32 * sub + 8 * v]);
    put_scale(scales, sub, word >> 28);
  }
  write_four_bits(load<std::uint16_t>(block), scales, codes, out);
}

// Converts a block of IQ3_S. The block has an f16 d, the low eight bits of 64 grid indices, the ninth bits of the 64 indices, 32 bytes of
// signs, and a 4-bit scale s for each 32 weights. A weight is d * (1 + 2 s) * signed grid value.
void expand_iq3_s(BlockBytes block, std::uint8_t* out) {
  BlockCodes codes;
  for (int v = 0; v < 32; ++v) {
    const int high = block[66 + v / 4] >> (v % 4 * 2);
    const int first = block[2 + 2 * v] | (high & 1) << 8, second = block[3 + 2 * v] | (high >> 1 & 1) << 8;
    put_four_twice(kGridIq3S[first], kGridIq3S[second], block[74 + v], &codes[8 * v]);
  }
  write_four_bits(load<std::uint16_t>(block), block + 106, codes, out);
}

// ---------------------------------------------------------------- IQ1
// Writes the codes of entry `index` of the IQ1 grid. The codes say that 1/8 is subtracted from each value (if `minus`) or added to it.
void put_delta(int index, bool minus, std::uint8_t* codes) { put_eight(kGridIq1[index], minus ? 255 : 0, codes); }

// Converts a block of IQ1_S. The block has an f16 d, the low eight bits of 32 grid indices, and 16 bits for each 32 weights: the top three
// bits of four indices, a 3-bit scale s, and a bit m. A weight is d * (2 s + 1) * (grid value - 1/8) if m is set, else d * (2 s + 1) *
// (grid value + 1/8).
void expand_iq1_s(BlockBytes block, std::uint8_t* out) {
  BlockCodes codes;
  std::uint8_t scales[8] = {};
  for (int sub = 0; sub < 8; ++sub) {
    const auto word = load<std::uint16_t>(block + 34 + 2 * sub);
    for (int v = 0; v < 4; ++v)
      put_delta(block[2 + 4 * sub + v] | (word >> (3 * v) & 7) << 8, (word & 0x8000) != 0, &codes[32 * sub + 8 * v]);
    for (int half = 0; half < 2; ++half) put_scale(scales, 2 * sub + half, word >> 12 & 7);
  }
  write_three_bits(load<std::uint16_t>(block), scales, codes, out);
}

// Converts a block of IQ1_M. The block has the low eight bits of 32 grid indices, 4 bits for each index (its top three bits and the bit m
// of IQ1_S), and four words of 16 bits. A word has the 3-bit scales of four sub-blocks of 16 weights, and 4 of the 16 bits of d. Weights
// are as in IQ1_S.
void expand_iq1_m(BlockBytes block, std::uint8_t* out) {
  BlockCodes codes;
  std::uint8_t scales[8] = {};
  int d = 0;
  for (int i = 0; i < 4; ++i) {
    const auto word = load<std::uint16_t>(block + 48 + 2 * i);
    d |= word >> 12 << (4 * i);
    for (int j = 0; j < 4; ++j) put_scale(scales, 4 * i + j, word >> (3 * j) & 7);
  }
  for (int v = 0; v < 32; ++v) {
    const int high = block[32 + v / 2] >> (v % 2 * 4);
    put_delta(block[v] | (high & 7) << 8, (high & 8) != 0, &codes[8 * v]);
  }
  write_three_bits(static_cast<std::uint16_t>(d), scales, codes, out);
}

// ---------------------------------------------------------------- values of one or two bits
// Converts a block of TQ1_0. The block has 48 bytes with five codes from 0 to 2 each, 4 bytes with four codes each, and an f16 d. Code n of
// a byte b is digit n of b / 256 in base 3: the integer part of 3 * fraction(b * 3^n / 256). A weight is d * (code - 1).
void expand_tq1_0(BlockBytes block, std::uint8_t* out) {
  std::uint8_t pairs[64] = {};
  int weight = 0;
  const auto put = [&](BlockBytes bytes, int count, int digits) {
    for (int digit = 0, power = 1; digit < digits; ++digit, power *= 3) {
      for (int i = 0; i < count; ++i, ++weight) {
        const int code = (bytes[i] * power & 255) * 3 >> 8;
        std::uint8_t& to = pairs[weight / 128 * 32 + weight % 32];
        to = static_cast<std::uint8_t>(to | code << (weight % 128 / 32 * 2));
      }
    }
  };
  put(block, 32, 5);
  put(block + 32, 16, 5);
  put(block + 48, 4, 4);
  write_ternary(load<std::uint16_t>(block + 52), pairs, out);
}

// Converts a block of TQ2_0. The block has codes of 2 bits in the order of Q2_K, and an f16 d. A weight is d * (code - 1).
void expand_tq2_0(BlockBytes block, std::uint8_t* out) { write_ternary(load<std::uint16_t>(block + 64), block, out); }

// Converts a block of Q1_0. The block has an f16 d, and one bit for each weight. A weight is d if its bit is set, else -d.
void expand_q1_0(BlockBytes block, std::uint8_t* out) {
  write_q4_0(block, 128, [&](int i) { return 2 * (block[2 + i / 8] >> (i % 8) & 1) - 1; }, out);
}

// Converts a block of n weights of Q2_0. The block has an f16 d, and codes of 2 bits. A weight is d * (code - 1).
template <int n>
void expand_q2_0(BlockBytes block, std::uint8_t* out) {
  write_q4_0(block, n, [&](int i) { return (block[2 + i / 4] >> (i % 4 * 2) & 3) - 1; }, out);
}

// ---------------------------------------------------------------- NVFP4
// Converts a block of NVFP4. The block has an E4M3 scale for each 16 weights, and then 8 bytes for each 16 weights. Byte j has the codes of
// weights j and 8 + j. A weight is scale * value of its E2M1 code. The sign bit of a scale is not used. The scales are halved, because
// kE2m1Values are doubled.
void expand_nvfp4(BlockBytes block, std::uint8_t* out) {
  for (int pair = 0; pair < 2; ++pair, out += 24) {
    for (int sub = 0; sub < 2; ++sub) {
      const float scale = 0.5f * schemes::e4m3_values()[block[2 * pair + sub] & 127];
      std::memcpy(out + 4 * sub, &scale, sizeof scale);
    }
    const BlockBytes first = block + 4 + 16 * pair, second = first + 8;
    for (int i = 0; i < 16; ++i) {
      const int shift = i / 8 * 4;
      out[8 + i] = static_cast<std::uint8_t>((first[i % 8] >> shift & 15) | (second[i % 8] >> shift & 15) << 4);
    }
  }
}

// The GGUF formats that are not in core/formats.def. The formats 31 to 33 and 36 to 38 are repacked forms of other formats and occur in
// older files. ggml removed the formats 4 and 5 in 2023.
constexpr GgufFormat kGgufFormats[] = {
    {4, "Q4_2", 16, 10, {}},
    {5, "Q4_3", 16, 12, {}},
    {9, "Q8_1", 32, 36, {}},
    {15, "Q8_K", 256, 292, {}},
    {16, "IQ2_XXS", 256, 66, Format::IQ2_E, expand_iq2_xxs},
    {17, "IQ2_XS", 256, 74, Format::IQ2_E, expand_iq2_xs},
    {18, "IQ3_XXS", 256, 98, Format::IQ3_XXS_E, expand_iq3_xxs},
    {19, "IQ1_S", 256, 50, Format::IQ1_E, expand_iq1_s},
    {21, "IQ3_S", 256, 110, Format::IQ3_S_E, expand_iq3_s},
    {22, "IQ2_S", 256, 82, Format::IQ2_E, expand_iq2_s},
    {24, "I8", 1, 1, {}},
    {25, "I16", 1, 2, {}},
    {26, "I32", 1, 4, {}},
    {27, "I64", 1, 8, {}},
    {28, "F64", 1, 8, {}},
    {29, "IQ1_M", 256, 56, Format::IQ1_E, expand_iq1_m},
    {31, "Q4_0_4_4", 32, 18, {}},
    {32, "Q4_0_4_8", 32, 18, {}},
    {33, "Q4_0_8_8", 32, 18, {}},
    {34, "TQ1_0", 256, 54, Format::Q2_K, expand_tq1_0},
    {35, "TQ2_0", 256, 66, Format::Q2_K, expand_tq2_0},
    {36, "IQ4_NL_4_4", 32, 18, {}},
    {37, "IQ4_NL_4_8", 32, 18, {}},
    {38, "IQ4_NL_8_8", 32, 18, {}},
    {40, "NVFP4", 64, 36, Format::NVFP4_E, expand_nvfp4},
    {41, "Q1_0", 128, 18, Format::Q4_0, expand_q1_0},
    {42, "Q2_0", 64, 18, Format::Q4_0, expand_q2_0<64>},
};
constexpr GgufFormat kWideQ2_0 = {42, "Q2_0", 128, 34, Format::Q4_0, expand_q2_0<128>};

// Says where the factors of a tensor's rows are in the files. The factors are floats. Row r is multiplied by factor number r / `rows`.
struct Factors {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::int64_t rows = 0;  // number of successive rows with the same factor; 0 if there are no factors
};

// Reads the rows of a tensor of a GGUF file, and writes them in another format.
class ExpandedRows final : public MadeTensor {
 public:
  ExpandedRows(const GgufFormat& format, std::uint32_t file, std::uint64_t offset, std::int64_t cols, Factors factors = {})
      : format_(format), file_(file), offset_(offset), cols_(cols), factors_(factors) {
    packing = format.name;
  }

  const GgufFormat& format() const { return format_; }
  std::shared_ptr<const MadeTensor> times(Factors factors) const {
    return std::make_shared<const ExpandedRows>(format_, file_, offset_, cols_, factors);
  }

  // The blocks of successive rows follow each other in the file and in `out`, so they are read as one stream.
  void read(std::span<const File> files, std::int64_t first, std::int64_t count, std::uint8_t* out) const override {
    constexpr std::int64_t kBlocksAtOnce = 4096;
    const std::int64_t blocks = cols_ / format_.block;  // number of blocks in a row
    const auto bytes = static_cast<std::size_t>(format_.block_bytes);
    const auto made = static_cast<std::size_t>(row_bytes(*format_.as, format_.block));
    std::vector<std::uint8_t> packed(static_cast<std::size_t>(std::min(kBlocksAtOnce, count * blocks)) * bytes);
    std::uint8_t* to = out;
    for (std::int64_t at = first * blocks, end = at + count * blocks; at < end;) {
      const auto now = static_cast<std::size_t>(std::min(kBlocksAtOnce, end - at));
      files[file_].read(offset_ + static_cast<std::uint64_t>(at) * bytes, now * bytes, packed.data());
      for (std::size_t b = 0; b < now; ++b, to += made) format_.expand(packed.data() + b * bytes, to);
      at += static_cast<std::int64_t>(now);
    }
    if (factors_.rows > 0) multiply(files, first, count, out);
  }

 private:
  // Multiplies the scales in rows of NVFP4_E by the rows' factors. No other format has factors.
  void multiply(std::span<const File> files, std::int64_t first, std::int64_t count, std::uint8_t* rows) const {
    constexpr std::int64_t kBlock = 32, kBytes = 24;
    float factor = 0;
    for (std::int64_t row = first, known = -1; row < first + count; ++row) {
      if (const std::int64_t number = row / factors_.rows; number != known) {
        files[factors_.file].read(factors_.offset + static_cast<std::uint64_t>(number) * sizeof factor, sizeof factor, &factor);
        known = number;
      }
      for (std::int64_t b = 0; b < cols_ / kBlock; ++b, rows += kBytes) {
        float scales[2];
        std::memcpy(scales, rows, sizeof scales);
        for (float& scale : scales) scale *= factor;
        std::memcpy(rows, scales, sizeof scales);
      }
    }
  }

  const GgufFormat& format_;
  std::uint32_t file_;
  std::uint64_t offset_;
  std::int64_t cols_;
  Factors factors_;
};

}  // namespace

const GgufFormat* gguf_format(std::uint32_t id) {
  const auto found = std::ranges::find(kGgufFormats, id, &GgufFormat::id);
  return found == std::end(kGgufFormats) ? nullptr : &*found;
}

const GgufFormat& wide_q2_0() { return kWideQ2_0; }

TensorInfo expanded(TensorInfo tensor, const GgufFormat& format) {
  require(format.as.has_value(), "expanded: ", format.name, " is read as no other format");
  tensor.made = std::make_shared<const ExpandedRows>(format, tensor.file, tensor.offset, tensor.shape.back());
  tensor.format = format.as;
  const std::int64_t values = static_cast<std::int64_t>(tensor.bytes) / format.block_bytes * format.block;
  tensor.bytes =
      static_cast<std::uint64_t>(mul_or_fail(values / info(*format.as).block, info(*format.as).block_bytes, tensor.name.c_str()));
  return tensor;
}

void apply_factors(const std::vector<File>& files, std::vector<TensorInfo>& tensors) {
  constexpr std::string_view kWeight = ".weight";
  std::map<std::string, std::size_t, std::less<>> factors;  // maps the name of each tensor "*.scale" to its index in `tensors`
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].name.ends_with(".scale")) factors.emplace(tensors[i].name, i);
  std::set<std::string> unused;
  for (TensorInfo& tensor : tensors) {
    const auto* rows = dynamic_cast<const ExpandedRows*>(tensor.made.get());
    if (!rows || rows->format().as != Format::NVFP4_E || !tensor.name.ends_with(kWeight)) continue;
    const std::string module = tensor.name.substr(0, tensor.name.size() - kWeight.size());
    unused.insert(module + ".input_scale");
    const auto found = factors.find(module + ".scale");
    if (found == factors.end()) continue;
    const TensorInfo& factor = tensors[found->second];
    const std::int64_t experts = tensor.shape.size() > 2 ? tensor.shape.front() : 1;
    const std::int64_t numbers = static_cast<std::int64_t>(factor.bytes / sizeof(float));
    if (factor.format != Format::F32 || (numbers != 1 && numbers != experts)) {
      fail_at(ErrorKind::model_format, files[factor.file].path(), "tensor " + factor.name, std::nullopt, "holds ", factor.bytes,
              " bytes of ", factor.format_name, "; the factor of ", tensor.name, " is ",
              experts == 1 ? "one number" : str("one number, or ", experts, ","), " of F32");
    }
    std::int64_t all = 1;
    for (std::size_t d = 0; d + 1 < tensor.shape.size(); ++d) all *= tensor.shape[d];
    tensor.made = rows->times({.file = factor.file, .offset = factor.offset, .rows = all / numbers});
    unused.insert(factor.name);
  }
  if (!unused.empty()) std::erase_if(tensors, [&](const TensorInfo& tensor) { return unused.contains(tensor.name); });
}

}  // namespace pumice::files
