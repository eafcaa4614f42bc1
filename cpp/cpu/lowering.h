// Translates a program into a plan that the CPU executes. A plan has steps, and the areas of scratch memory that the steps use. The program
// is checked first. The plan depends neither on a batch nor on the values of weights.
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "core/backend.h"
#include "core/program_check.h"

namespace pumice::cpu {

struct Folded;

// ---------------------------------------------------------------- steps
struct InputStep {
  std::int32_t slot;
};
struct EmbedStep {
  Embed op;
};
struct NormStep {
  Norm op;
  std::vector<std::int32_t> quantized = {};  // indices in CpuPlan::quantized; the step also quantizes `out` to these codes
};
struct QuantizeStep {
  View in;
  std::int32_t quantized;
};
struct ProductPart {
  MatrixId weight;
  VectorId bias;
  std::int64_t rows, cols;
  std::int32_t col;  // first column of `out` that the part writes
  // Index in CpuPlan::quantized of the codes that the part multiplies; -1 if the part multiplies floats.
  std::int32_t quantized;
  // Index in Constants::folded_biases of the bias that replaces `bias`; -1 if no norm is folded into the matrix. The replacement includes
  // the product of the matrix and the norm's bias.
  std::int32_t folded_bias = -1;
  bool bf16 = false;  // true if the floats may be rounded to bfloat16 where that is faster (FormatKernels::product_bf16)
};
struct LinearStep {
  Linear op;
  std::vector<ProductPart> parts;
};
struct GatedStep {
  View in, out;
  Activation activation;
  ProductPart gate, up;
};
struct HeadLinearStep {
  HeadLinear op;
  ProductPart part;  // rows and cols of the part are those of one head
};
struct RouteStep {
  Route op;
};
// The steps of Experts. A pair is a row and one of its experts. SortStep sorts the pairs by expert (ExpertPairs). The steps from GatherStep
// to ExpertsDownStep work on pairs in this order. FoldStep adds up the results of each row.
struct SortStep {
  View route;
  std::int32_t experts;
};
// If the matrices are in an ExpertCache, reads those experts that rows have chosen and that are not in the cache.
struct ReadExpertsStep {
  MatrixId up;
};
// Copies the row of `in` that belongs to each pair. Writes codes, or writes floats if `quantized` is -1.
struct GatherStep {
  Experts op;
  std::int32_t quantized, floats;
};
struct ExpertsUpStep {
  Experts op;
  ProductPart gate, up;  // their `rows` are those of one expert; gate.weight is `none` if there is no gate
  std::int32_t gathered, hidden;
};
// Quantizes the hidden values of all pairs.
struct PairCodesStep {
  std::int32_t hidden, quantized;
};
struct ExpertsDownStep {
  ProductPart down;
  std::int32_t hidden, results;
};
struct FoldStep {
  Experts op;
  std::int32_t experts, results;
};
struct MultiplyStep {
  Multiply op;
};
// Computes the cosines and sines of every row for one table of CpuPlan::turns.
struct TurnsStep {
  std::int32_t turns;
};
// One Rope operation. `turns` is the index of the operation's table in CpuPlan::turns, or -1 if the table has no frequencies.
struct Turned {
  View x;
  std::int32_t head_dim, turns;
  float temperature;
  std::int32_t temperature_length, temperature_offset;
};
// Consecutive Rope operations and the Store that follows them. They share one phase, because no row needs another row's result.
struct RopeStoreStep {
  std::vector<Turned> ropes;
  Store store;
  CacheShape shape;  // shape of the cache; if it has 0 heads, the step has no Store
};
// For Attend without a cache (in encoders), stores keys and values in pages of scratch memory.
struct KeepStep {
  Attend op;
  std::int32_t shape;
};
struct AttendStep {
  Attend op;
  std::int32_t shape;
};
// Merges the partial results of AttendStep for the chunks of keys, if different tasks computed the chunks.
struct MergeStep {
  Attend op;
  std::int32_t shape;
};
struct ConvStep {
  Conv op;
};
struct ScanStep {
  Scan op;
};
struct SelectStep {
  View in, out;
};
struct PoolStep {
  View in, out;
  PoolKind kind;
};
struct LogProbStep {
  View logits, out;
};
struct TopStep {
  Top op;
};
// The data of each of the next four steps. Together, these steps compute a Linear that is followed by Top and whose matrix can have a
// sketch (steps/sketch.cpp). If a run does not use the sketch, RestStep does the work of LinearStep, and the other three steps do nothing.
struct Sketching {
  View in;
  ProductPart part;
  float scale;  // Linear::scale
  Top top;
  std::int32_t place;  // index in CpuPlan::sketches
};
struct SketchActivationsStep {
  Sketching sketching;
};
struct BoundsStep {
  Sketching sketching;
};
struct SeedsStep {
  Sketching sketching;
};
struct RestStep {
  Sketching sketching;
  LinearStep whole;
};
using Step = std::variant<InputStep, EmbedStep, NormStep, QuantizeStep, LinearStep, GatedStep, HeadLinearStep, RouteStep, SortStep,
                          ReadExpertsStep, GatherStep, ExpertsUpStep, PairCodesStep, ExpertsDownStep, FoldStep, MultiplyStep, TurnsStep,
                          RopeStoreStep, KeepStep, AttendStep, MergeStep, ConvStep, ScanStep, SelectStep, PoolStep, LogProbStep, TopStep,
                          SketchActivationsStep, BoundsStep, SeedsStep, RestStep>;

// ---------------------------------------------------------------- memory
// A part of scratch memory with one row for each token, segment or selected row. Slots or quantized activations that are not in use at the
// same time share an area.
struct Area {
  Rows rows = Rows::tokens;
  bool in_blocks = false;  // true if the area holds only the rows of one block of the tail
  std::int64_t row_bytes = 0;
};
struct SlotPlace {
  Rows rows = Rows::tokens;
  std::int32_t width = 0;
  std::int64_t stride = 0;  // number of floats from one row to the next
  // Index in CpuPlan::areas. -1 for the output slot, which is in the caller's memory, and for a slot that nothing uses.
  std::int32_t area = -1;
};
// The place in scratch memory of one row of floats for each pair. A pair is a token's row and one of the experts that this row has chosen.
struct PairPlace {
  std::int32_t chosen = 0;  // number of pairs per row
  std::int64_t stride = 0;  // number of floats from one pair to the next
  std::int32_t area = -1;   // index in CpuPlan::areas
};
// Returns the stride in floats between rows of activations of this width. The stride is never close to a multiple of 2 KiB. Otherwise the
// six rows of a tile would use only few sets of the L1 cache and evict each other and the weights. (At a width of 2,048, this reduced the
// speed from 14.5 to 6 multiply-adds per cycle.)
std::int64_t activation_stride(std::int64_t width);

// The kinds of codes to which the activations of a product may be quantized. With two_int8, each row is quantized to two rows of codes, and
// the second row holds the rounding errors of the first.
enum class Codes : std::uint8_t { int8, two_int8, fixed, bytes };
struct QuantizedPlace {
  Rows rows = Rows::tokens;
  std::int64_t cols = 0;
  std::int32_t area = -1;
  Codes codes = Codes::int8;
  // With Codes::bytes, a matrix that multiplies these codes; otherwise `none`. The matrix is needed because the codes depend on the norm
  // that is folded into it.
  MatrixId folded = MatrixId::none;
  std::int32_t pairs = 1;  // number of pairs per row if these are codes of Experts; otherwise 1
  std::int64_t terms() const { return codes == Codes::two_int8 ? 2 : 1; }
  std::int64_t row_bytes() const;
};

// The area of scratch memory for a product with a sketch. It has the codes of each row and the results of the steps that use the sketch
// (Sketching).
struct SketchPlace {
  std::int64_t cols = 0;   // number of columns of the sketch
  std::int32_t area = -1;  // index in CpuPlan::areas
};
inline constexpr std::int64_t kSketchSlices = 512;  // the largest number of slices of a sketched matrix; each slice is one task
inline constexpr std::int64_t kSketchedRows = 8;    // the largest number of rows of a run that uses the sketch
std::int64_t sketch_row_bytes(std::int64_t cols);   // returns the bytes of scratch memory per row for a product with a sketch

// The properties of an Attend, apart from the batch, that determine how its work is divided into tasks. Layers with equal properties share
// one AttendShape.
struct AttendShape {
  std::int32_t group = 1, kv_heads = 1, key_dim = 0, value_dim = 0;  // group: number of query heads per kv head
  std::int32_t window = 0, chunk = 0;                                // Attend::window and Attend::chunk
  bool causal = false, cached = false;
  bool operator==(const AttendShape&) const = default;
};

// Number of rows in one block of a program's tail. The tail is all steps after the last step that combines several rows. In programs with
// LogProb or Top, the tail runs block by block, so that the logits of all rows are never in memory at the same time. (With a vocabulary of
// 262,144, the logits of a block of 32 rows take 32 MiB.)
inline constexpr std::int64_t kTailRows = 32;

struct CpuPlan {
  ProgramFacts facts;
  std::vector<Step> steps;
  std::size_t tail = 0;  // index of the first step of the tail; steps.size() if there is no tail
  std::vector<SlotPlace> slots;
  std::vector<QuantizedPlace> quantized;
  std::vector<PairPlace> pairs;
  std::vector<SketchPlace> sketches;
  // The largest number of chosen experts per row, and the largest number of experts, of all Experts operations; 0 if there are none.
  std::int32_t most_chosen = 0, most_experts = 0;
  std::vector<Area> areas;
  std::vector<RopeTable> turns;  // the tables of all Rope operations; equal tables are stored once
  std::vector<AttendShape> attends;
  std::int64_t widest_embedding = 0;
  std::int32_t widest_key = 0;  // largest key_dim of any Scan; 0 if there is none
  bool gated = false;
};

// Lowers a program. folded[m] is the norm that is folded into matrix m, or null if there is none (folded_of() in cpu/packed_weights.h). If
// `folded` is empty, no norm is folded into any matrix. Throws the errors of check_program().
CpuPlan lower(const Program& program, const WeightShapes& weights, Compute compute, const std::vector<const Folded*>& folded = {});

}  // namespace pumice::cpu
