// The CPU's kernels. Each instruction set has two tables of function pointers, MatrixKernels and RowKernels. The program chooses one
// instruction set, once, at run time.
// Rules for every kernel:
// - Integer sums are exact.
// - Float sums use 16 virtual lanes, in one fixed order that depends only on the shape of the weight. Fused multiply-adds are written
//   explicitly. The bits of a row therefore do not depend on the number of rows in a call, on the thread, or on the instruction set.
#pragma once

#include <cstdint>
#include <span>

#include "core/formats.h"
#include "core/kinds.h"
#include "core/kv_format.h"

namespace pumice::cpu {

// ---------------------------------------------------------------- matrix products
// Weights are stored in groups of 16 rows (R16). The kernel that computes the 16 outputs of a group reads the group's memory in order, from
// the first column to the last. If the last group has fewer than 16 rows, rows of zeros fill it. Group g starts at g * group_bytes(cols).
inline constexpr int kGroupRows = 16;
inline constexpr int kQuantBlock = 32;  // number of activations that share one int8 scale

// Activations as int8 codes. x is about scale * code with codes in [-127, 127], and there is one scale for each row and block of 32
// columns. This is the quantization of Q8_0 (Dettmers et al. 2022 call it absmax). The arrays are block-major, so that a tile of tokens
// reads memory in order:
//   codes[block][row][32], scales[block][row], sums[block][row][2] and scaled_sums[block][row].
// The two numbers of `sums` are the sum of the first 16 codes and the sum of the last 16 codes of the block. `scaled_sums` has the scale
// times the sum of all 32 codes, for formats that have minima. Computing this number again for each group of rows took a tenth of the time
// of products with few tokens.
struct QuantRows {
  std::int8_t* codes = nullptr;
  float* scales = nullptr;
  std::int32_t* sums = nullptr;
  float* scaled_sums = nullptr;
  std::int64_t rows = 0, cols = 0;  // rows: number of rows in each block of the arrays
};

// Computes out[t * out_stride + r] = sum over k of W[r][k] * x[first + t][k] for r in [0, rows) and t in [0, count). ProductF32 has no
// argument `first`; its x points to the first row. `groups` points to the first group. `rows` need not be a multiple of 16, and nothing is
// written outside `out`. Every x_stride gives correct results; activation_stride() in lowering.h returns a fast one.
using ProductInt8 = void (*)(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const QuantRows& x, std::int64_t first,
                             std::int64_t count, float* out, std::int64_t out_stride);
using ProductF32 = void (*)(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const float* x, std::int64_t x_stride,
                            std::int64_t count, float* out, std::int64_t out_stride);

// Products in fixed point are for float weights that may be rounded (Rounding::floats). There is one scale for each row and 64 columns.
// Weights are about scale * code with |code| <= 4095, and activations are about scale * code with |code| <= 8191. The sum of the 64
// products of a block then fits in 32 bits. On AVX2, fixed point is 1.5 times as fast as float32, because the instruction vpmaddwd adds 16
// products and a float32 multiply-add only 8. The weights take 0.53 times the bytes of float32. The rounding errors are 1/20 of those of
// int8.
inline constexpr int kFixedBlock = 64;
inline constexpr std::int64_t kFixedWeight = 4095, kFixedActivation = 8191;
static_assert(kFixedBlock * kFixedWeight * kFixedActivation <= INT32_MAX);
// The sum of a weight's code and an activation's code fits in 16 bits, and an element of FixedRows::starts fits in 32 bits.
static_assert(kFixedWeight + kFixedActivation <= INT16_MAX && kFixedBlock / 2 * kFixedActivation * kFixedActivation <= INT32_MAX);

// Activations in fixed point, block-major like QuantRows: codes[block][row][64], scales[block][row] and starts[block][row]. Codes in
// columns past `cols` are zeros. A start is minus the sum of c0 c2 + c1 c3 over all sets (c0, c1, c2, c3) of four neighbouring codes of a
// block. matrix/fixed.h explains what starts are for.
struct FixedRows {
  std::int16_t* codes = nullptr;
  float* scales = nullptr;
  std::int32_t* starts = nullptr;
  std::int64_t rows = 0, cols = 0;  // rows: number of rows in each block of the arrays
};

using ProductFixed = void (*)(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                              std::int64_t count, float* out, std::int64_t out_stride);  // has the same arguments as ProductInt8

struct FixedKernels {
  std::int64_t (*group_bytes)(std::int64_t cols);  // returns a multiple of 64
  // Packs `rows` rows (at most 16) of `cols` floats into one group. The rows are contiguous. Missing rows become zeros.
  void (*pack_group)(const float* source, std::int64_t rows, std::int64_t cols, std::uint8_t* group);
  ProductFixed product;
};

// Number of columns that share a scale in products with 8-bit codes, which encoders with quantize="q8_0" use (Rounding::bytes). Weights are
// about scale * code with |code| <= 127. Activations are about scale * code, where the codes of a block are within a range of 256
// consecutive integers that includes 0. The range need not be symmetric about 0, so that no codes are wasted if a block's activations are
// not symmetric.
// Kernels of instruction sets that can multiply bytes and add the products in 32 bits take activations as bytes that count from the lowest
// code (ByteRows). The other kernels take 16-bit words (FixedRows, with one scale and one start for each row and kByteBlock columns). Both
// kinds of kernels compute the same integers.
inline constexpr int kByteBlock = 64;
// Distance between the codes of the largest and the smallest value of a block, before rounding. 0 counts as a value of every block. The
// block's scale is chosen for this distance. The distance is less than 255, because rounding may move both codes outwards.
inline constexpr std::int32_t kByteSteps = 254;

// Activations as bytes: codes[block][row][kByteBlock], scales[block][row] and zeros[block][row]. An element of `zeros` is the code of the
// value 0.
struct ByteRows {
  std::uint8_t* codes = nullptr;
  float* scales = nullptr;
  std::int32_t* zeros = nullptr;
  std::int64_t rows = 0, cols = 0;  // rows: number of rows in each block of the arrays
};

// Has the same arguments as ProductInt8, except that `cols` must be a multiple of 64.
using ProductBytes = void (*)(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const ByteRows& x, std::int64_t first,
                              std::int64_t count, float* out, std::int64_t out_stride);

struct ByteKernels {
  std::int64_t (*group_bytes)(std::int64_t cols);                                                      // returns a multiple of 64
  void (*pack_group)(const float* source, std::int64_t rows, std::int64_t cols, std::uint8_t* group);  // like FixedKernels::pack_group
  ProductFixed of_words;  // exactly one of of_words and of_bytes is null
  ProductBytes of_bytes;
};

struct FormatKernels {
  std::int64_t (*group_bytes)(std::int64_t cols);  // returns a multiple of 64
  // Packs `rows` rows (at most 16) of the file into one group. The rows begin row_stride bytes apart. Missing rows become zeros.
  void (*pack_group)(const std::uint8_t* source, std::int64_t row_stride, std::int64_t rows, std::int64_t cols, std::uint8_t* group);
  // Converts row `lane` of a group to floats, with the same bits as unpack() in core/formats.h.
  void (*unpack_row)(const std::uint8_t* group, int lane, std::int64_t cols, float* out);
  ProductF32 product_f32;  // does not round activations; used for compute="float32" and for float weights
  // Like product_f32, but may round activations to bfloat16. Only the kernel for BF16 weights on avx512_bf16 does so, and its results
  // therefore differ from those of other instruction sets (docs/numerics.md). In all other cases product_bf16 is the same function as
  // product_f32. In both cases the bits of a row do not depend on the other rows.
  ProductF32 product_bf16;
  ProductInt8 product_int8;  // null if the format is not quantized (info(format).quantized)
  // Multiplies the weights, without rounding them, by activations in fixed point (FixedRows). Null except for Q8_0, where product_fixed is
  // as fast as product_int8.
  ProductFixed product_fixed;
};

// How kernels for few tokens prefetch weights.
struct Fetch {
  std::int32_t ahead;  // distance in bytes between the address that the kernel reads and the address that it prefetches
  bool to_l2;          // true: prefetch into L2; false: prefetch into L1
};
struct Fetches {
  Fetch two;   // used for 1 and 2 tokens
  Fetch more;  // used for more tokens
};
const Fetches& fetches();  // returns the settings for this processor; processor_FAMILY.cpp has the distances and the reasons

struct MatrixKernels {
  FormatKernels formats[kFormatCount];
  FixedKernels fixed;
  ByteKernels bytes;
  const FormatKernels& operator[](Format format) const { return formats[static_cast<std::size_t>(format)]; }
};

// ---------------------------------------------------------------- rows
// The page of one kv head holds the keys and values of kPageTokens (32) positions. Keys are stored as [key_dim][32], so that one pass over
// the keys computes 32 scores without horizontal sums. Values are stored as [32][value_dim]. With q8_0, there are also two float scales per
// position, one for the key and one for the value. A page then has, in this order, the codes of the keys, the scales of the keys, the codes
// of the values and the scales of the values.

// One query, the range of keys that it attends to, and the terms that are added to its scores.
struct Query {
  const float* q;                    // key_dim values, already rotated by rope
  std::int64_t first_key, last_key;  // the query attends to keys [first_key, last_key)
  // Two terms that depend on the distance d = key - position are added to the score of a key: bias[clamp(d, -reach, reach) + reach], if
  // `bias` is not null, and -slope * |d|.
  std::int64_t position = 0;
  const float* bias = nullptr;
  float slope = 0.0f;
  // If AttendCall::places is not null, two more terms are added to the product of the query and key j: by_query[p] and by_key[j *
  // by_key_stride + p], with p = places[clamp(d, -reach, reach) + reach]. A term is left out if its pointer, by_query or by_key, is null.
  const float *by_query = nullptr, *by_key = nullptr;
};

// Number of keys in a chunk. Attention processes keys chunk by chunk, and chunk c always consists of positions [256 c, 256 c + 256). For
// each query, a chunk has a partial result of value_dim + 2 floats: the maximum score, the sum of exp(score - maximum), and the sum of the
// values weighted with exp(score - maximum). merge() combines the partial results in the order of the chunks.
inline constexpr int kChunkKeys = 256;
inline constexpr int kMaxQueries = 16;  // maximum number of queries in one call of attend()

struct AttendCall {
  KvFormat format;
  int key_dim, value_dim;
  float scale, softcap;
  const std::uint8_t* const* pages;  // addresses of the kv head's pages; pages[i] holds positions [32 i, 32 i + 32)
  std::int64_t chunk;                // index of the chunk
  std::int64_t reach = 0;            // `bias` and `places` clamp distances to [-reach, reach]
  // The index p of the terms by_query[p] and by_key[p] (Query) for each of the 2 reach + 1 distances. Null if there are no such terms.
  const float* places = nullptr;
  std::int64_t by_key_stride = 0;
};

// The operations on the result of a product, which becomes softcap(activation(scale * product + bias)) + residual. If the scale is 1, there
// is no multiplication, and if the softcap is 0, there is no soft cap.
struct Epilogue {
  const float* bias = nullptr;
  Activation activation = Activation::none;
  const float* residual = nullptr;
  std::int64_t residual_stride = 0;
  float scale = 1.0f, softcap = 0.0f;
  float alpha_p = 0.0f, alpha_n = 0.0f;  // parameters of the activation xielu
};

// The operations that combine the products `gate` and `up` into one result (RowKernels::gate).
struct Gating {
  const float *gate_bias = nullptr, *up_bias = nullptr;  // may be null
  Activation activation = Activation::none;
  float limit = 0.0f, shift = 0.0f;  // limit 0 means no limit
};

// The parameters of Route (core/ops.h). bias and scales may be null.
struct RouteCall {
  std::int32_t experts, chosen, groups, kept;
  RouteScore score;
  const float *bias, *scales;
  bool normalised;
  float floor, scale;
};

// The arguments of RowKernels::scan_gates(), for one head of Scan (core/ops.h).
struct ScanGates {
  const float *step, *beta;               // values of the first row; beta is null for ScanRule::ssd
  std::int64_t step_stride, beta_stride;  // in floats, between rows
  float step_bias, rate, floor, strength;
};

// The arguments of RowKernels::scan(), which computes rows of Scan for one head and for 16 columns of the head's state. These columns are
// called a strip. A strip has 16 numbers for each of key_dim rows.
struct ScanCall {
  const float *q, *k, *v;                     // values of the first row; v points to the strip's first column
  std::int64_t q_stride, k_stride, v_stride;  // in floats, between rows
  const float *decay, *gain;                  // results of scan_gates() for these rows
  int key_dim;
  ScanRule rule;
  float skip;
  float* out;  // points to the strip's first column in the first row
  std::int64_t out_stride;
};

// Factors and offsets, one per column, that are applied to activations before they are quantized. They are needed if the weight and bias of
// a norm are folded into the matrix that multiplies the activations (Folded in packed_matrix.h). Both pointers are null if no norm is
// folded.
struct Turn {
  const float *scale = nullptr, *shift = nullptr;
};

inline constexpr std::int64_t kSkip = 16;

struct RowKernels {
  // quantize() and quantize_fixed() quantize rows [0, count) of x to rows [first, first + count) of `out`.
  void (*quantize)(const float* x, std::int64_t x_stride, std::int64_t count, std::int64_t first, const QuantRows& out);
  void (*quantize_fixed)(const float* x, std::int64_t x_stride, std::int64_t count, std::int64_t first, const FixedRows& out);
  // quantize_words() and quantize_bytes() quantize x * turn.scale + turn.shift, or x if turn.scale is null, to 8-bit codes (ByteKernels).
  // quantize_words() stores the codes as words, with one scale and one start for each row and kByteBlock columns. quantize_bytes() stores
  // the codes as bytes.
  void (*quantize_words)(const float* x, std::int64_t x_stride, std::int64_t count, std::int64_t first, const Turn& turn,
                         const FixedRows& out);
  void (*quantize_bytes)(const float* x, std::int64_t x_stride, std::int64_t count, std::int64_t first, const Turn& turn,
                         const ByteRows& out);
  // rms_norm() and layer_norm() normalize one row of n values. If `add` is not null, its values are added to the result. `out` may be the
  // same array as x or `add`.
  void (*rms_norm)(const float* x, const float* weight, const float* add, float eps, std::int64_t n, float* out);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, const float* add, float eps, std::int64_t n, float* out);
  // Applies the operations in `how` to a tile of a product, in place.
  void (*epilogue)(float* out, std::int64_t out_stride, std::int64_t count, std::int64_t cols, const Epilogue& how);
  // Computes gate = activation(min(gate + gate_bias, limit)) * (clamp(up + up_bias, -limit, limit) + shift) for n values.
  void (*gate)(float* gate, const float* up, const Gating& how, std::int64_t n);
  // Computes out = a * activation(b) * scale. b has n values, and each value multiplies `repeat` neighbouring values of a. `out` may be the
  // same array as a.
  void (*multiply)(const float* a, const float* b, Activation activation, float scale, std::int64_t n, std::int64_t repeat, float* out);
  // Computes out = scale * x + a + b. The terms a and b are left out if their pointers are null.
  void (*scale_add)(const float* x, float scale, const float* a, const float* b, std::int64_t n, float* out);
  // Rotates one head in place; cos and sin have dims / 2 values.
  void (*rope)(float* head, const float* cos, const float* sin, int dims, bool interleaved);
  // Stores `count` rows of k and v of one kv head at positions [slot, slot + count) of a page. Strides are in floats.
  void (*kv_store)(KvFormat format, int key_dim, int value_dim, const float* k, const float* v, std::int64_t k_stride,
                   std::int64_t v_stride, int slot, int count, std::uint8_t* page);
  // Computes the partial results of one chunk for queries[0, count), with value_dim + 2 floats per query. `count` is at most kMaxQueries.
  // If a query attends to no key of the chunk, its maximum is -infinity and its sum is 0.
  void (*attend)(const AttendCall& call, const Query* queries, int count, float* partial);
  // Merges the partial results of `chunks` chunks, which are `stride` floats apart, into value_dim normalised values. `sink` is one more
  // score, which adds no value; -infinity means that there is no sink.
  void (*merge)(const float* partials, std::int64_t chunks, std::int64_t stride, int value_dim, float sink, float* out);
  // Computes one row of Route.
  void (*route)(const RouteCall& call, const float* logits, float* out);
  // Computes out = residual + scale * sum over j of weights[j] * (rows[j] + biases[j]) for n columns. `biases`, `weights` and `residual`
  // may be null.
  void (*fold_choices)(const float* const* rows, const float* const* biases, const float* weights, int count, float scale,
                       const float* residual, std::int64_t n, float* out);
  // Computes one row of Conv with n columns. rows[j] is multiplied by tap j; a null row counts as zeros.
  void (*conv)(const float* const* rows, const float* taps, const float* bias, int width, Activation activation, std::int64_t n,
               float* out);
  // Computes decay = exp(rate * dt) and gain for each row, with dt = max(softplus(step + step_bias), floor). gain is strength *
  // sigmoid(beta), or dt if beta is null.
  void (*scan_gates)(const ScanGates& call, std::int64_t rows, float* decay, float* gain);
  // Computes `rows` rows (at least one) of Scan for one strip of the state. `from` has the strip's numbers before the first row, and `to`
  // gets its numbers after the last row. `from` and `to` may be the same memory. v and out have `count` columns (1 to 16); the strip's
  // other columns stay zero.
  void (*scan)(const ScanCall& call, std::int64_t rows, int count, const float* from, float* to);
  // Pools the rows of one segment into one row. The first `prompt` rows are left out.
  void (*pool)(const float* x, std::int64_t x_stride, std::int64_t prompt, std::int64_t rows, std::int64_t n, PoolKind kind, float* out);
  // Returns log(sum of exp(x[i])) for n values.
  double (*log_sum_exp)(const float* x, std::int64_t n);
  // Returns the length of the longest prefix of x, in whole blocks of kSkip values, in which every value is finite and at most `bound`. The
  // search for the largest logits skips this prefix.
  std::int64_t (*skip)(const float* x, std::int64_t n, float bound);
};

std::int64_t kv_page_bytes(KvFormat format, int key_dim, int value_dim);  // bytes of one kv head's page; a multiple of 64

struct Kernels {
  const char* isa;
  MatrixKernels matrix;
  RowKernels rows;
};

#define PUMICE_ISA(name, matrix, rows, options) \
  extern const MatrixKernels matrix;            \
  extern const RowKernels rows;
#include "cpu/isa/sets.def"
#undef PUMICE_ISA

// Returns the kernels of the best instruction set that the processor and the operating system support. If the environment variable
// PUMICE_ISA names an instruction set, returns the kernels of that set. Throws invalid_argument if the name is unknown or if this machine
// cannot run the instruction set. The choice is made only once.
const Kernels& kernels();
// Returns the names of all instruction sets of this processor family, "scalar" first. All other lists of instruction sets are made from
// this list.
std::span<const char* const> known_isas();
// Returns the kernels of an instruction set. Returns null if the name is unknown or if this machine cannot run the instruction set. Used by
// tests and doctor().
const Kernels* kernels_for(const char* isa);

}  // namespace pumice::cpu
