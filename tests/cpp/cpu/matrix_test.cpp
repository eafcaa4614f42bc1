// Tests of the matrix kernels of every instruction set and format. Packed groups must hold the weights that unpack() returns. Products must
// be near double precision. A row's bits must depend neither on the instruction set nor on the number of rows in the batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpu/all_kernels.h"
#include "cpu/lowering.h"

namespace pumice::cpu::matrix_test {
namespace {

using Bytes = std::vector<std::uint8_t>;

enum class Fill { random, lowest, highest };

// Returns the byte offsets of the f16 scales in a block.
std::vector<int> half_offsets(Format format) {
  switch (format) {
    case Format::A4:
    case Format::Q4_0:
    case Format::Q5_0:
    case Format::Q8_0:
    case Format::IQ4_NL:
    case Format::IQ4_XS:
    case Format::IQ1_E:
    case Format::IQ2_E:
    case Format::IQ3_XXS_E:
    case Format::IQ3_S_E:
      return {0};
    case Format::Q4_1:
    case Format::Q5_1:
    case Format::Q4_K:
    case Format::Q5_K:
      return {0, 2};
    case Format::Q2_K:
      return {80, 82};
    case Format::Q3_K:
      return {108};
    case Format::Q6_K:
      return {208};
    default:
      return {};
  }
}

// Returns rows of weights as a file holds them. Codes and integer scales are random bits, or the lowest or highest values, as `fill` says.
// Floating-point scales have ordinary values.
Bytes file_rows(Format format, std::int64_t rows, std::int64_t cols, Fill fill, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> value(-0.1f, 0.1f);
  const FormatInfo& f = info(format);
  Bytes out(static_cast<std::size_t>(rows * row_bytes(format, cols)));
  for (auto& byte : out) byte = fill == Fill::random ? static_cast<std::uint8_t>(random()) : fill == Fill::lowest ? 0 : 0xff;
  for (std::size_t at = 0; at < out.size(); at += static_cast<std::size_t>(f.block_bytes)) {
    if (f.block == 1) {
      const float v = value(random);
      const std::uint16_t half = format == Format::F16 ? f32_to_f16(v) : f32_to_bf16(v);
      std::memcpy(&out[at], format == Format::F32 ? static_cast<const void*>(&v) : &half, static_cast<std::size_t>(f.block_bytes));
    }
    for (int offset : half_offsets(format)) {
      const std::uint16_t half = f32_to_f16(value(random));
      std::memcpy(&out[at + static_cast<std::size_t>(offset)], &half, 2);
    }
    if (format == Format::F8_E4M3) {
      const float scale = value(random);
      std::memcpy(&out[at], &scale, 4);
    }
    for (std::size_t sub = 0; sub < 2 && format == Format::NVFP4_E; ++sub) {
      const float scale = value(random);
      std::memcpy(&out[at + 4 * sub], &scale, 4);
    }
    if (format == Format::MXFP4) out[at] = static_cast<std::uint8_t>(fill == Fill::random ? 118 + random() % 12 : random() % 4);
    if (format == Format::A4 && fill != Fill::random) out[at + 2] = fill == Fill::lowest ? 15 : 0;  // the zero point
    if (format == Format::Q8_0 && fill == Fill::lowest) std::memset(&out[at + 2], 0x80, 32);
    if (format == Format::Q8_0 && fill == Fill::highest) std::memset(&out[at + 2], 0x7f, 32);
    if (format == Format::Q6_K && fill == Fill::lowest) std::memset(&out[at + 192], 0x80, 16);
    if (format == Format::Q6_K && fill == Fill::highest) std::memset(&out[at + 192], 0x7f, 16);
  }
  return out;
}

std::vector<float> unpacked(Format format, const Bytes& rows, std::int64_t cols) {
  std::vector<float> out(rows.size() / static_cast<std::size_t>(info(format).block_bytes) * static_cast<std::size_t>(info(format).block));
  const std::int64_t bytes = row_bytes(format, cols);
  for (std::size_t r = 0; r * static_cast<std::size_t>(bytes) < rows.size(); ++r)
    unpack(format, rows.data() + r * static_cast<std::size_t>(bytes), cols, out.data() + r * static_cast<std::size_t>(cols));
  return out;
}

// Packs the rows into groups and returns these, followed by 64 guard bytes. Checks that packing did not change the guard bytes.
Bytes pack_all(const FormatKernels& kernels, Format format, const Bytes& rows, std::int64_t n, std::int64_t cols) {
  const std::int64_t group = kernels.group_bytes(cols), stride = row_bytes(format, cols);
  Bytes out(static_cast<std::size_t>((n + 15) / 16 * group) + 64, 0xcd);
  for (std::int64_t row = 0; row < n; row += 16)
    kernels.pack_group(rows.data() + row * stride, stride, std::min<std::int64_t>(16, n - row), cols, out.data() + row / 16 * group);
  for (std::size_t i = out.size() - 64; i < out.size(); ++i) EXPECT_EQ(out[i], 0xcd);
  return out;
}

struct Activations {
  std::int64_t rows, cols;
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
  std::vector<std::int32_t> sums;
  std::vector<float> scaled_sums;
  QuantRows view() { return {codes.data(), scales.data(), sums.data(), scaled_sums.data(), rows, cols}; }
  double value(std::int64_t t, std::int64_t k) const {
    const auto at = static_cast<std::size_t>(k / 32 * rows + t);
    return static_cast<double>(scales[at]) * codes[at * 32 + static_cast<std::size_t>(k % 32)];
  }
};

Activations activations(std::int64_t rows, std::int64_t cols, Fill fill, std::uint32_t seed) {
  std::mt19937 random(seed);
  Activations a{rows, cols, {}, {}, {}, {}};
  const auto blocks = static_cast<std::size_t>(rows * cols / 32);
  for (std::size_t b = 0; b < blocks; ++b) {
    std::int32_t sums[2] = {0, 0};
    for (int i = 0; i < 32; ++i) {
      const int code = fill == Fill::random ? static_cast<int>(random() % 255) - 127 : fill == Fill::lowest ? -127 : 127;
      a.codes.push_back(static_cast<std::int8_t>(code));
      sums[i / 16] += code;
    }
    a.sums.insert(a.sums.end(), sums, sums + 2);
    a.scales.push_back(std::uniform_real_distribution<float>(0.001f, 0.02f)(random));
    a.scaled_sums.push_back(a.scales.back() * static_cast<float>(sums[0] + sums[1]));
  }
  return a;
}

constexpr float kUntouched = -12345.0f;

std::vector<float> run_int8(const FormatKernels& kernels, const Bytes& groups, std::int64_t rows, std::int64_t cols, Activations& x,
                            std::int64_t first, std::int64_t count) {
  const std::int64_t stride = rows + 5;
  std::vector<float> out(static_cast<std::size_t>(count * stride + 8), kUntouched), dense;
  kernels.product_int8(groups.data(), rows, cols, x.view(), first, count, out.data(), stride);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto column = static_cast<std::int64_t>(i) % stride;
    if (column < rows && static_cast<std::int64_t>(i) < count * stride)
      dense.push_back(out[i]);
    else
      EXPECT_EQ(out[i], kUntouched) << "wrote outside at " << i;
  }
  return dense;
}

std::vector<float> run_f32(const FormatKernels& kernels, const Bytes& groups, std::int64_t rows, std::int64_t cols,
                           const std::vector<float>& x, std::int64_t first, std::int64_t count) {
  const std::int64_t stride = rows + 5;
  std::vector<float> out(static_cast<std::size_t>(count * stride + 8), kUntouched), dense;
  kernels.product_f32(groups.data(), rows, cols, x.data() + first * cols, cols, count, out.data(), stride);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto column = static_cast<std::int64_t>(i) % stride;
    if (column < rows && static_cast<std::int64_t>(i) < count * stride)
      dense.push_back(out[i]);
    else
      EXPECT_EQ(out[i], kUntouched) << "wrote outside at " << i;
  }
  return dense;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class Matrix : public ::testing::TestWithParam<Format> {
 protected:
  std::vector<std::int64_t> float_widths() const {
    if (info(format).block == 1) return {1, 37, 300};
    return info(format).block == 128 ? std::vector<std::int64_t>{128, 640}
                                     : std::vector<std::int64_t>{info(format).block == 256 ? 768 : 352};
  }
  Format format = GetParam();
  bool quantized = info(format).quantized;
  std::int64_t whole_blocks(std::int64_t cols) const { return (cols + info(format).block - 1) / info(format).block * info(format).block; }
  std::vector<std::int64_t> widths() const {
    if (info(format).block == 1) return {1, 7, 64, 300};
    if (info(format).block == 128) return {128, 256, 640};
    return info(format).block == 256 ? std::vector<std::int64_t>{256, 768} : std::vector<std::int64_t>{32, 96, 256, 576};
  }
};

TEST_P(Matrix, GroupsHoldTheFilesWeights) {
  for (const std::int64_t cols : widths()) {
    for (const std::int64_t rows : {1, 15, 16, 33}) {
      for (const Fill fill : {Fill::random, Fill::lowest, Fill::highest}) {
        const Bytes file = file_rows(format, rows, cols, fill, static_cast<std::uint32_t>(rows + cols));
        const std::vector<float> truth = unpacked(format, file, cols);
        Bytes first;
        for (const Kernels* kernels : all_kernels()) {
          const FormatKernels& k = kernels->matrix[format];
          ASSERT_EQ(k.group_bytes(cols) % 64, 0);
          ASSERT_LE(k.group_bytes(cols), static_cast<double>(16 * row_bytes(format, cols)) * 1.076 + 64);
          const Bytes groups = pack_all(k, format, file, rows, cols);
          if (first.empty()) first = groups;
          ASSERT_EQ(groups, first) << "instruction sets pack differently";
          for (std::int64_t r = 0; r < (rows + 15) / 16 * 16; ++r) {
            std::vector<float> row(static_cast<std::size_t>(cols) + 1, kUntouched);
            k.unpack_row(groups.data() + r / 16 * k.group_bytes(cols), static_cast<int>(r % 16), cols, row.data());
            ASSERT_EQ(row.back(), kUntouched);
            row.pop_back();
            if (r < rows)
              ASSERT_EQ(std::memcmp(row.data(), truth.data() + r * cols, row.size() * sizeof(float)), 0) << "row " << r << " of " << rows;
            else
              for (const float w : row) ASSERT_EQ(w, 0.0f) << "missing row " << r;
          }
        }
      }
    }
  }
}

// The product of a row of weights with x, in double precision (`sum`), and the largest |w| of the row times the sum of |x| (`scale`).
// Rounding errors are measured relative to `scale`.
struct Reference {
  double sum = 0, scale = 0;
};
template <class X>
Reference reference(const float* w, std::int64_t cols, X x) {
  Reference r;
  double most = 0, total = 0;
  for (std::int64_t k = 0; k < cols; ++k) {
    const double xk = x(k);
    r.sum += static_cast<double>(w[k]) * xk;
    most = std::max(most, std::abs(static_cast<double>(w[k])));
    total += std::abs(xk);
  }
  r.scale = most * total;
  return r;
}

constexpr std::int64_t kCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 64, 65, 73, 128, 129};

TEST_P(Matrix, Int8ProductsMatchDoublePrecision) {
  for (const Kernels* kernels : all_kernels()) ASSERT_EQ(kernels->matrix[format].product_int8 != nullptr, quantized);
  if (!quantized) return;
  const std::int64_t cols = whole_blocks(288);
  for (std::int64_t rows = 1; rows <= 33; rows += rows < 15 ? 7 : 1) {
    const Bytes file = file_rows(format, rows, cols, Fill::random, static_cast<std::uint32_t>(rows));
    const std::vector<float> w = unpacked(format, file, cols);
    Activations x = activations(9, cols, Fill::random, 5);
    for (const Kernels* kernels : all_kernels()) {
      const FormatKernels& k = kernels->matrix[format];
      const std::vector<float> out = run_int8(k, pack_all(k, format, file, rows, cols), rows, cols, x, 2, 7);
      for (std::int64_t t = 0; t < 7; ++t) {
        for (std::int64_t r = 0; r < rows; ++r) {
          const Reference truth = reference(w.data() + r * cols, cols, [&](std::int64_t i) { return x.value(2 + t, i); });
          ASSERT_NEAR(out[static_cast<std::size_t>(t * rows + r)], truth.sum, 1e-6 * truth.scale) << "row " << r << " token " << t;
        }
      }
    }
  }
}

TEST_P(Matrix, Int8SurvivesExtremeCodes) {
  if (!quantized) return;
  const std::int64_t cols = whole_blocks(288), rows = 17;
  for (const Fill weights : {Fill::lowest, Fill::highest, Fill::random}) {
    for (const Fill values : {Fill::lowest, Fill::highest}) {
      const Bytes file = file_rows(format, rows, cols, weights, 3);
      const std::vector<float> w = unpacked(format, file, cols);
      Activations x = activations(8, cols, values, 7);
      for (const Kernels* kernels : all_kernels()) {
        const FormatKernels& k = kernels->matrix[format];
        const Bytes groups = pack_all(k, format, file, rows, cols);
        for (const std::int64_t count : {1, 4, 8}) {
          const std::vector<float> out = run_int8(k, groups, rows, cols, x, 0, count);
          for (std::int64_t t = 0; t < count; ++t) {
            for (std::int64_t r = 0; r < rows; ++r) {
              const Reference truth = reference(w.data() + r * cols, cols, [&](std::int64_t i) { return x.value(t, i); });
              ASSERT_NEAR(out[static_cast<std::size_t>(t * rows + r)], truth.sum, 2e-6 * truth.scale) << "row " << r << " token " << t;
            }
          }
        }
      }
    }
  }
}

TEST_P(Matrix, Int8BitsDependOnNothingElse) {
  if (!quantized) return;
  const std::int64_t most = 129;
  for (const std::int64_t rows : {1, 16, 33, 70, 100}) {
    const std::int64_t cols = whole_blocks(rows == 33 ? 352 : 576);
    const Bytes file = file_rows(format, rows, cols, Fill::random, static_cast<std::uint32_t>(rows));
    Activations x = activations(most + 2, cols, Fill::random, 11);
    const FormatKernels& scalar = kMatrixScalar[format];
    const Bytes groups = pack_all(scalar, format, file, rows, cols);
    const std::vector<float> truth = run_int8(scalar, groups, rows, cols, x, 1, most);
    for (const Kernels* kernels : all_kernels()) {
      const FormatKernels& k = kernels->matrix[format];
      for (const std::int64_t count : kCounts) {
        if (kernels == all_kernels().front() && count > 8) continue;
        const std::int64_t skip = std::min<std::int64_t>(3, most - count);
        const std::vector<float> some(truth.begin() + skip * rows, truth.begin() + (skip + count) * rows);
        ASSERT_TRUE(same_bits(run_int8(k, groups, rows, cols, x, 1 + skip, count), some))
            << kernels->isa << ", " << rows << " rows, " << count << " tokens";
      }
      run_int8(k, groups, rows, cols, x, 0, 0);
    }
  }
}

TEST_P(Matrix, FloatProductsMatchDoublePrecisionAndEachOther) {
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  const std::int64_t most = 129;
  for (const std::int64_t rows : {1, 15, 16, 33, 70}) {
    for (const std::int64_t cols : float_widths()) {
      const Bytes file = file_rows(format, rows, cols, Fill::random, static_cast<std::uint32_t>(rows));
      const std::vector<float> w = unpacked(format, file, cols);
      std::vector<float> x(static_cast<std::size_t>(most * cols));
      for (float& v : x) v = normal(random);
      const FormatKernels& scalar = kMatrixScalar[format];
      const Bytes groups = pack_all(scalar, format, file, rows, cols);
      const std::vector<float> all = run_f32(scalar, groups, rows, cols, x, 0, most);
      for (std::int64_t t = 0; t < most; t += 16) {
        for (std::int64_t r = 0; r < rows; ++r) {
          const Reference truth =
              reference(w.data() + r * cols, cols, [&](std::int64_t i) { return x[static_cast<std::size_t>(t * cols + i)]; });
          ASSERT_NEAR(all[static_cast<std::size_t>(t * rows + r)], truth.sum, 2e-6 * truth.scale);
        }
      }
      for (const Kernels* kernels : all_kernels()) {
        for (const std::int64_t count : kCounts) {
          if (kernels == all_kernels().front() && count > 4) continue;
          const std::int64_t skip = std::min<std::int64_t>(3, most - count);
          const std::vector<float> some(all.begin() + skip * rows, all.begin() + (skip + count) * rows);
          ASSERT_TRUE(same_bits(run_f32(kernels->matrix[format], groups, rows, cols, x, skip, count), some))
              << kernels->isa << ", " << rows << " x " << cols << ", " << count << " tokens";
        }
        run_f32(kernels->matrix[format], groups, rows, cols, x, 0, 0);
      }
    }
  }
}

// Returns the same weights in Q5_0, whose code of a weight is that of A4 plus 16 minus the zero point.
Bytes as_q5_0(const Bytes& a4) {
  Bytes out;
  for (std::size_t at = 0; at < a4.size(); at += static_cast<std::size_t>(info(Format::A4).block_bytes)) {
    for (std::size_t run = 0; run < 4; ++run) {
      std::uint8_t block[22] = {a4[at], a4[at + 1]};
      for (std::size_t i = 0; i < 32; ++i) {
        const int code = (a4[at + 3 + 16 * run + i % 16] >> (i / 16 * 4) & 15) + 16 - (a4[at + 2] & 15);
        block[2 + i / 8] = static_cast<std::uint8_t>(block[2 + i / 8] | code >> 4 << i % 8);
        block[6 + i % 16] = static_cast<std::uint8_t>(block[6 + i % 16] | (code & 15) << (i / 16 * 4));
      }
      out.insert(out.end(), std::begin(block), std::end(block));
    }
  }
  return out;
}

// Both formats have the same sums, so that a folder whose matrices became A4 gives the bits that it gave in Q5_0.
TEST(A4, ProductsHaveTheBitsOfTheSameWeightsInQ5_0) {
  std::mt19937 random(23);
  std::normal_distribution<float> normal;
  const std::int64_t most = 100;
  for (const std::int64_t rows : {1, 33, 100}) {
    for (const std::int64_t cols : {128, 256, 640}) {
      const Bytes file = file_rows(Format::A4, rows, cols, Fill::random, static_cast<std::uint32_t>(rows + cols)), other = as_q5_0(file);
      ASSERT_TRUE(same_bits(unpacked(Format::A4, file, cols), unpacked(Format::Q5_0, other, cols)));
      Activations codes = activations(most, cols, Fill::random, 29);
      std::vector<float> x(static_cast<std::size_t>(most * cols));
      for (float& v : x) v = normal(random);
      for (const Kernels* kernels : all_kernels()) {
        const FormatKernels &a4 = kernels->matrix[Format::A4], &q5_0 = kernels->matrix[Format::Q5_0];
        const Bytes groups = pack_all(a4, Format::A4, file, rows, cols), others = pack_all(q5_0, Format::Q5_0, other, rows, cols);
        for (const std::int64_t count : {1, 2, 5, 8, 9, 30, 100}) {
          if (kernels == all_kernels().front() && count > 8) continue;
          ASSERT_TRUE(same_bits(run_int8(a4, groups, rows, cols, codes, 0, count), run_int8(q5_0, others, rows, cols, codes, 0, count)))
              << kernels->isa << ", " << rows << " x " << cols << ", " << count << " tokens";
          ASSERT_TRUE(same_bits(run_f32(a4, groups, rows, cols, x, 0, count), run_f32(q5_0, others, rows, cols, x, 0, count)))
              << kernels->isa << ", " << rows << " x " << cols << ", " << count << " tokens";
        }
      }
    }
  }
}

TEST(ActivationStride, KeepsATilesRowsInSetsOfTheirOwn) {
  for (std::int64_t width = 1, before = 0; width < 70'000; ++width) {
    const std::int64_t stride = activation_stride(width), beyond = stride % 512;
    ASSERT_EQ(stride % 16, 0) << width;
    ASSERT_GE(stride, std::max(width, before)) << width;
    ASSERT_LT(stride, width + 16 + 128) << width;
    ASSERT_TRUE(stride < 512 - 64 || (beyond >= 64 && beyond <= 512 - 64)) << width << ": " << stride;
    before = stride;
  }
}

// Some instruction sets multiply BF16 weights with activations that they round to BF16. Their products must be near those of the rounded
// activations in double precision, and a row's bits must depend on this row alone.
TEST_P(Matrix, ProductsMayRoundToBf16) {
  std::mt19937 random(19);
  std::normal_distribution<float> normal;
  const std::int64_t most = 50;
  std::size_t rounding = 0;
  for (const Kernels* kernels : all_kernels()) {
    const FormatKernels& k = kernels->matrix[format];
    ASSERT_NE(k.product_bf16, nullptr);
    if (k.product_bf16 == k.product_f32) continue;
    ASSERT_EQ(format, Format::BF16) << kernels->isa;
    ++rounding;
    FormatKernels rounded = k;
    rounded.product_f32 = k.product_bf16;
    for (const std::int64_t rows : {1, 16, 33, 64, 100}) {
      for (const std::int64_t cols : {1, 2, 15, 37, 192, 193, 400}) {
        const Bytes file = file_rows(format, rows, cols, Fill::random, static_cast<std::uint32_t>(rows));
        const std::vector<float> w = unpacked(format, file, cols);
        std::vector<float> x(static_cast<std::size_t>(most * cols));
        for (float& v : x) v = normal(random);
        x.front() = 1.00390625f;  // halfway between two BF16 numbers, so it rounds to the even one, 1
        x.back() = 1e-39f;        // subnormal, so it counts as zero
        const Bytes groups = pack_all(k, format, file, rows, cols);
        const std::vector<float> all = run_f32(rounded, groups, rows, cols, x, 0, most);
        for (std::int64_t t = 0; t < most; t += 7) {
          for (std::int64_t r = 0; r < rows; ++r) {
            const Reference truth = reference(w.data() + r * cols, cols, [&](std::int64_t i) {
              return bf16_to_f32(f32_to_bf16(x[static_cast<std::size_t>(t * cols + i)]));
            });
            ASSERT_NEAR(all[static_cast<std::size_t>(t * rows + r)], truth.sum, 2e-6 * truth.scale + 1e-38)
                << kernels->isa << ' ' << rows << 'x' << cols;
          }
        }
        for (const std::int64_t count : {1, 2, 3, 4, 5, 11, 12, 13, 23, 24, 25, 37}) {
          const std::int64_t skip = std::min<std::int64_t>(3, most - count);
          const std::vector<float> some(all.begin() + skip * rows, all.begin() + (skip + count) * rows);
          ASSERT_TRUE(same_bits(run_f32(rounded, groups, rows, cols, x, skip, count), some))
              << kernels->isa << ' ' << rows << 'x' << cols << ' ' << count;
        }
        run_f32(rounded, groups, rows, cols, x, 0, 0);
      }
    }
  }
  EXPECT_EQ(rounding > 0, format == Format::BF16);
}

std::vector<Format> all_formats() {
  std::vector<Format> all;
  for (const FormatInfo& f : kFormats) all.push_back(f.format);
  return all;
}

INSTANTIATE_TEST_SUITE_P(AllFormats, Matrix, ::testing::ValuesIn(all_formats()),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace pumice::cpu::matrix_test
