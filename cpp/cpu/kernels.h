// The CPU's kernels. Each instruction set has two tables of function pointers; the program picks one instruction set once, at run time.
// Rules for every kernel:
// - Integer sums are exact.
// - Float sums run over 16 virtual lanes, in one fixed order that depends only on the shape of the weight. Fused multiply-adds are written
// out. So a row's bits do not depend on the number of rows in a call, on the thread, or on the instruction set.
#pragma once

#include <cstdint>
#include <span>

#include "core/formats.h"
#include "core/kinds.h"
#include "core/kv_format.h"

namespace pumice::cpu {

// ---------------------------------------------------------------- matrix products
// Weights lie in groups of 16 rows (R16). One group is one sequential stream over k: a kernel that computes 16 outputs reads memory in
// order. Rows are padded to 16 with zeros; group g starts at g * group_bytes(cols).
inline constexpr int kGroupRows = 16;
inline constexpr int kQuantBlock = 32;  // activations per int8 scale

// Activations as int8: x ~ scale * code, codes in [-127, 127], per row and 32 columns (as Q8_0, Dettmers et al. 2022 call absmax).
// Block-major, so that a tile of tokens reads one stream: codes[block][row][32], scales[block][row], sums[block][row][2]
// where `sums` has the sums of the first and second 16 codes, and scaled_sums[block][row] = scale * (both). Formats with minima multiply
// by scaled_sums; computing it again for each group of rows took a tenth of the time of products with few tokens.
struct QuantRows {
  std::int8_t* codes = nullptr;
  float* scales = nullptr;
  std::int32_t* sums = nullptr;
  float* scaled_sums = nullptr;
  std::int64_t rows = 0, cols = 0;  // rows: stride of a block
};

// out[t * out_stride + r] = sum over k of W[r][k] * x[first + t][k], r in [0, rows), t in [0, count).
// `groups` is the first group. `rows` may end inside the last group: nothing is written outside `out`. Any x_stride gives right results;
// activation_stride() of lowering.h gives a fast one.
using ProductInt8 = void (*)(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const QuantRows& x, std::int64_t first,
                             std::int64_t count, float* out, std::int64_t out_stride);
using ProductF32 = void (*)(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const float* x, std::int64_t x_stride,
                            std::int64_t count, float* out, std::int64_t out_stride);

// Fixed point, for float weights that may be rounded (Rounding::floats): per row and 64 columns w ~ scale * code with |code| <= 4095, and
// x ~ scale * code with |code| <= 8191, so that the sum of a block's 64 products fits 32 bits. vpmaddwd adds 16 products an instruction
// where float32 multiply-add does 8: 1.5 times the speed on AVX2, and 0.53 of float32's bytes. The rounding is 1/20 of int8's.
inline constexpr int kFixedBlock = 64;
inline constexpr std::int64_t kFixedWeight = 4095, kFixedActivation = 8191;
static_assert(kFixedBlock * kFixedWeight * kFixedActivation <= INT32_MAX);
static_assert(kFixedWeight + kFixedActivation <= INT16_MAX &&
              kFixedBlock / 2 * kFixedActivation * kFixedActivation <= INT32_MAX);  // FixedRows::starts fit 32 bits

// Block-major as QuantRows: codes[block][row][64], scales[block][row], starts[block][row]. Columns past `cols` are zeros. A start is
// minus the sum of c0 c2 + c1 c3 over a block's fours of codes; matrix/fixed.h says what for.
struct FixedRows {
  std::int16_t* codes = nullptr;
  float* scales = nullptr;
  std::int32_t* starts = nullptr;
  std::int64_t rows = 0, cols = 0;  // rows: stride of a block
};

using ProductFixed = void (*)(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                              std::int64_t count, float* out, std::int64_t out_stride);  // as ProductInt8

struct FixedKernels {
  std::int64_t (*group_bytes)(std::int64_t cols);  // a multiple of 64
  // `rows` <= 16 rows of `cols` floats, one after another, to one group; missing rows become zero weights.
  void (*pack_group)(const float* source, std::int64_t rows, std::int64_t cols, std::uint8_t* group);
  ProductFixed product;
};

// 8-bit codes for weights and activations, for encoders with quantize="q8_0" (Rounding::bytes). Per row and kByteBlock columns: w ~ scale *
// code with |code| <= 127, and x ~ scale * code with 256 consecutive codes that include 0, so that a range of activations which is not
// symmetric loses no codes. An instruction set with a product of unsigned and signed bytes that adds in 32 bits takes the activations'
// codes as bytes counted from the lowest code (ByteRows); another one takes words (FixedRows with scales and starts by kByteBlock columns).
// The integers are the same.
inline constexpr int kByteBlock = 64;
inline constexpr std::int32_t kByteSteps =
    254;  // codes between the smallest value (or 0) and the largest (or 0): below 255, since both ends may round outwards

struct ByteRows {  // codes[block][row][kByteBlock], scales[block][row], zeros[block][row]: the code that stands for 0
  std::uint8_t* codes = nullptr;
  float* scales = nullptr;
  std::int32_t* zeros = nullptr;
  std::int64_t rows = 0, cols = 0;  // rows: stride of a block
};

using ProductBytes = void (*)(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const ByteRows& x, std::int64_t first,
                              std::int64_t count, float* out, std::int64_t out_stride);  // as ProductInt8; cols: whole blocks of 64

struct ByteKernels {
  std::int64_t (*group_bytes)(std::int64_t cols);                                                      // a multiple of 64
  void (*pack_group)(const float* source, std::int64_t rows, std::int64_t cols, std::uint8_t* group);  // as FixedKernels'
  ProductFixed of_words;  // exactly one of of_words and of_bytes is null
  ProductBytes of_bytes;
};

struct FormatKernels {
  std::int64_t (*group_bytes)(std::int64_t cols);  // a multiple of 64
  // `rows` <= 16 packed rows of the file, row_stride bytes apart, to one group; missing rows become zero weights.
  void (*pack_group)(const std::uint8_t* source, std::int64_t row_stride, std::int64_t rows, std::int64_t cols, std::uint8_t* group);
  // Row `lane` of a group as floats: bit-equal to unpack() of core/formats.h.
  void (*unpack_row)(const std::uint8_t* group, int lane, std::int64_t cols, float* out);
  ProductF32 product_f32;  // activations as they are (compute="float32", and float weights)
  // May round activations to bfloat16. Equals product_f32, except for BF16 weights on avx512_bf16: the only kernel whose bits differ from
  // those of other instruction sets (docs/numerics.md). A row's bits still do not depend on the other rows.
  ProductF32 product_bf16;
  ProductInt8 product_int8;    // null for formats that are not quantized (info(format).quantized)
  ProductFixed product_fixed;  // exact weights, activations in 16 bits; null but for Q8_0, where it costs no more than int8 ones
};

// How kernels for few tokens prefetch weights.
struct Fetch {
  std::int32_t ahead;  // bytes ahead of what is read
  bool to_l2;          // into L2; otherwise into L1
};
struct Fetches {
  Fetch two;   // for 1 and 2 tokens
  Fetch more;  // for more tokens
};
const Fetches& fetches();  // for this processor; kernels.cpp has the table and its reasons

struct MatrixKernels {
  FormatKernels formats[kFormatCount];
  FixedKernels fixed;
  ByteKernels bytes;
  const FormatKernels& operator[](Format format) const { return formats[static_cast<std::size_t>(format)]; }
};

// ---------------------------------------------------------------- rows
// Keys and values of one kv head on one page of kPageTokens positions:
//   keys as [key_dim][32] (32 scores come from one pass without horizontal sums), values as [32][value_dim];
//   q8_0 adds one float scale per position for keys and one for values: page = codes of K, scales of K, codes of V, scales of V.
struct Query {
  const float* q;                    // key_dim values, already rotated by rope
  std::int64_t first_key, last_key;  // keys [first_key, last_key) are seen
  // Terms of the scores by distance d = key - position: + bias[clamp(d, -reach, reach) + reach], when `bias` is given, and - slope * |d|.
  std::int64_t position = 0;
  const float* bias = nullptr;
  float slope = 0.0f;
  // When the call has places: the score of key j gets + by_query[p] and + by_key[j * by_key_stride + p], where these are given, with
  // p = places[clamp(d, -reach, reach) + reach].
  const float *by_query = nullptr, *by_key = nullptr;
};

// Attention runs in chunks of 256 keys at fixed positions [256 c, 256 c + 256); each gives, per query, value_dim + 2 floats: the
// maximum score, the sum of exp(score - max), and the unnormalised weighted values. merge() folds chunks in order.
inline constexpr int kChunkKeys = 256;
inline constexpr int kMaxQueries = 16;  // queries of one call

struct AttendCall {
  KvFormat format;
  int key_dim, value_dim;
  float scale, softcap;
  const std::uint8_t* const* pages;  // pages of this kv head; pages[i] holds positions [32 i, 32 i + 32)
  std::int64_t chunk;                // number of the chunk
  std::int64_t reach = 0;            // the largest distance that biases and places tell apart
  const float* places = nullptr;     // 2 reach + 1 indices, by distance
  std::int64_t by_key_stride = 0;
};

// The end of a product: softcap(activation(scale * product + bias)) + residual. A scale of 1 and a cap of 0 cost nothing.
struct Epilogue {
  const float* bias = nullptr;
  Activation activation = Activation::none;
  const float* residual = nullptr;
  std::int64_t residual_stride = 0;
  float scale = 1.0f, softcap = 0.0f;
  float alpha_p = 0.0f, alpha_n = 0.0f;  // parameters of the activation xielu
};

// The factors and offsets, by column, that activations still need when a norm's weight is folded into a matrix.
struct Turn {
  const float *scale = nullptr, *shift = nullptr;
};

inline constexpr std::int64_t kSkip = 16;

struct RowKernels {
  // Rows [0, count) of x go to rows [first, first + count) of out.
  void (*quantize)(const float* x, std::int64_t x_stride, std::int64_t count, std::int64_t first, const QuantRows& out);
  void (*quantize_fixed)(const float* x, std::int64_t x_stride, std::int64_t count, std::int64_t first, const FixedRows& out);
  // Quantize x * turn.scale + turn.shift (by column, where given) to words, with scales and starts by kByteBlock columns, and to bytes.
  void (*quantize_words)(const float* x, std::int64_t x_stride, std::int64_t count, std::int64_t first, const Turn& turn,
                         const FixedRows& out);
  void (*quantize_bytes)(const float* x, std::int64_t x_stride, std::int64_t count, std::int64_t first, const Turn& turn,
                         const ByteRows& out);
  // These two normalize one row of n values. `add` may be null; out may alias x or add.
  void (*rms_norm)(const float* x, const float* weight, const float* add, float eps, std::int64_t n, float* out);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, const float* add, float eps, std::int64_t n, float* out);
  // Applies `how` to a tile of a product in place.
  void (*epilogue)(float* out, std::int64_t out_stride, std::int64_t count, std::int64_t cols, const Epilogue& how);
  // gate = activation(gate + gate_bias) * (up + up_bias), n values; biases may be null.
  void (*gate)(float* gate, const float* up, const float* gate_bias, const float* up_bias, Activation activation, std::int64_t n);
  // out = a * activation(b) * scale. b has n values; each serves `repeat` neighbouring values of a and out. out may be a.
  void (*multiply)(const float* a, const float* b, Activation activation, float scale, std::int64_t n, std::int64_t repeat, float* out);
  // out = scale * x (+ a) (+ b); a and b may be null.
  void (*scale_add)(const float* x, float scale, const float* a, const float* b, std::int64_t n, float* out);
  // Rotates one head in place; cos and sin hold dims / 2 values.
  void (*rope)(float* head, const float* cos, const float* sin, int dims, bool interleaved);
  // Stores `count` positions (rows of k and v, strides in floats) of one kv head at positions [slot, slot + count) of a page.
  void (*kv_store)(KvFormat format, int key_dim, int value_dim, const float* k, const float* v, std::int64_t k_stride,
                   std::int64_t v_stride, int slot, int count, std::uint8_t* page);
  // Computes partial[i] (value_dim + 2 floats each) for queries[i], i < count <= kMaxQueries. A query that sees no key of the chunk gets
  // max = -inf and sum 0.
  void (*attend)(const AttendCall& call, const Query* queries, int count, float* partial);
  // Merges `chunks` partials, which lie `stride` floats apart, into value_dim normalised values. `sink` is one more score, without a value;
  // -infinity: none.
  void (*merge)(const float* partials, std::int64_t chunks, std::int64_t stride, int value_dim, float sink, float* out);
  // Pools rows [prompt, rows) of one segment to one row.
  void (*pool)(const float* x, std::int64_t x_stride, std::int64_t prompt, std::int64_t rows, std::int64_t n, PoolKind kind, float* out);
  double (*log_sum_exp)(const float* x, std::int64_t n);
  // Returns the length of the longest prefix of x, in whole blocks of kSkip values, in which every value is finite and at most `bound`.
  // Ranking skips this prefix.
  std::int64_t (*skip)(const float* x, std::int64_t n, float bound);
};

std::int64_t kv_page_bytes(KvFormat format, int key_dim, int value_dim);  // bytes of one kv head's page; a multiple of 64

struct Kernels {
  const char* isa;
  MatrixKernels matrix;
  RowKernels rows;
};

extern const MatrixKernels kMatrixScalar, kMatrixAvx2, kMatrixAvx512, kMatrixAvx512Bf16;  // cpu/isa/matrix_*.cpp
extern const RowKernels kRowsScalar, kRowsAvx2, kRowsAvx512;                              // cpu/isa/rows_*.cpp

// The best instruction set that cpuid and the operating system (XGETBV) allow, or the one that PUMICE_ISA names; throws invalid_argument
// for a name that is unknown or that this machine cannot run. Chosen once.
const Kernels& kernels();
std::span<const char* const> known_isas();    // all names, scalar first; every list of instruction sets is made from these
const Kernels* kernels_for(const char* isa);  // null when unknown or not runnable on this machine; for tests and doctor()

}  // namespace pumice::cpu
