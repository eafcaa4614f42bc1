// Translates a program into a plan that the CPU executes: steps, and the areas of scratch memory that they use. The program is checked
// first. The plan depends neither on a batch nor on the values of weights.
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
  // Index in CpuPlan::quantized of the codes that the part multiplies; -1 if it multiplies the floats.
  std::int32_t quantized;
  // Index in Constants::folded_biases of the bias that replaces `bias`; -1 if no norm is folded into the matrix. The new bias includes the
  // product of the matrix with the norm's bias.
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
  ProductPart part;  // its rows and cols are those of one head
};
struct RouteStep {
  Route op;
};
// The steps of Experts. SortStep sorts the pairs of a row and one of its experts by expert (ExpertPairs). The steps from GatherStep to
// ExpertsDownStep work on pairs in this order. FoldStep adds up the results of each row.
struct SortStep {
  View route;
  std::int32_t experts;
};
// Reads the experts that rows have chosen, if the matrices are in an ExpertCache and these experts are not.
struct ReadExpertsStep {
  MatrixId up;
};
// Writes the row of `in` that belongs to each pair, as codes, or as floats if `quantized` is -1.
struct GatherStep {
  Experts op;
  std::int32_t quantized, floats;
};
struct ExpertsUpStep {
  Experts op;
  ProductPart gate, up;  // their rows are those of one expert; gate.weight is `none` if there is no gate
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
// Computes the cosines and sines of every row for one table in CpuPlan::turns.
struct TurnsStep {
  std::int32_t turns;
};
// One Rope operation. `turns` is the index of its table in CpuPlan::turns, or -1 if it has none.
struct Turned {
  View x;
  std::int32_t head_dim, turns;
  float temperature;
  std::int32_t temperature_length, temperature_offset;
};
// Consecutive Rope operations, and the Store after them. They share one phase, because no row needs another row's result.
struct RopeStoreStep {
  std::vector<Turned> ropes;
  Store store;
  CacheShape shape;  // shape of the cache; if it has no heads, nothing is stored
};
// Stores the keys and values of Attend without a cache (in encoders) in scratch pages.
struct KeepStep {
  Attend op;
  std::int32_t shape;
};
struct AttendStep {
  Attend op;
  std::int32_t shape;
};
// Merges the partial results of chunks, if the chunks of a unit are done by several tasks.
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
// The steps of a Linear that is followed by Top and whose matrix can have a sketch (steps/sketch.cpp). If a run does not use the sketch,
// RestStep does what LinearStep does, and the others do nothing.
struct Sketching {
  View in;
  ProductPart part;
  float scale;  // of Linear
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
// A part of scratch memory with one row for each token, segment or selected row. Several slots or quantized activations use it one after
// another.
struct Area {
  Rows rows = Rows::tokens;
  bool in_blocks = false;  // true if it holds only the rows of one block of the tail
  std::int64_t row_bytes = 0;
};
struct SlotPlace {
  Rows rows = Rows::tokens;
  std::int32_t width = 0;
  std::int64_t stride = 0;  // floats from one row to the next
  // Index in CpuPlan::areas. -1 for the output slot, which lies in the caller's memory, and for a slot that nothing uses.
  std::int32_t area = -1;
};
// Rows of floats for each pair of a row and one of its experts.
struct PairPlace {
  std::int32_t chosen = 0;  // number of pairs of a row
  std::int64_t stride = 0;  // floats from one pair to the next
  std::int32_t area = -1;   // index in CpuPlan::areas
};
// Returns the stride in floats between rows of activations of this width. The stride is never close to a multiple of 2 KiB. Otherwise the
// six rows of a tile would fall into few sets of L1 and evict each other and the weights (6 multiply-adds per cycle instead of 14.5 at a
// width of 2,048).
std::int64_t activation_stride(std::int64_t width);

// The kinds of codes to which the activations of a product may be quantized. With two_int8, each row is quantized to two rows of codes, and
// the second of these holds the rounding error of the first.
enum class Codes : std::uint8_t { int8, two_int8, fixed, bytes };
struct QuantizedPlace {
  Rows rows = Rows::tokens;
  std::int64_t cols = 0;
  std::int32_t area = -1;
  Codes codes = Codes::int8;
  // Only for Codes::bytes: one of the matrices that multiply these codes. The norm that is folded into this matrix determines the codes.
  MatrixId folded = MatrixId::none;
  std::int32_t pairs = 1;  // number of pairs of each row for the codes of Experts; otherwise 1
  std::int64_t terms() const { return codes == Codes::two_int8 ? 2 : 1; }
  std::int64_t row_bytes() const;
};

// The codes of activations for a product with a sketch, and what its steps find.
struct SketchPlace {
  std::int64_t cols = 0;   // of the sketch
  std::int32_t area = -1;  // index in CpuPlan::areas
};
inline constexpr std::int64_t kSketchSlices = 512;  // the most slices of a head, each for one task
inline constexpr std::int64_t kSketchedRows = 8;    // a run with more rows reads the whole head
std::int64_t sketch_row_bytes(std::int64_t cols);   // bytes of a row of such an area

// The properties of an Attend that decide how its work is divided into tasks, apart from the batch. Layers with equal properties share one
// AttendShape.
struct AttendShape {
  std::int32_t group = 1, kv_heads = 1, key_dim = 0, value_dim = 0;  // group: number of query heads per kv head
  std::int32_t window = 0, chunk = 0;                                // as in Attend
  bool causal = false, cached = false;
  bool operator==(const AttendShape&) const = default;
};

// Number of rows in one block of a program's tail. The tail is all steps after the last one that combines several rows. In programs with
// LogProb or Top, the tail runs block by block, so that the logits of all rows are never in memory at the same time (those of one block of
// 32 rows are 32 MiB with a vocabulary of 262,144).
inline constexpr std::int64_t kTailRows = 32;

struct CpuPlan {
  ProgramFacts facts;
  std::vector<Step> steps;
  std::size_t tail = 0;  // index of the first step of the tail; steps.size() if there is no tail
  std::vector<SlotPlace> slots;
  std::vector<QuantizedPlace> quantized;
  std::vector<PairPlace> pairs;
  std::vector<SketchPlace> sketches;
  std::int32_t most_chosen = 0, most_experts = 0;  // of Experts; 0: there is none
  std::vector<Area> areas;
  std::vector<RopeTable> turns;  // the tables of all Rope operations, each only once
  std::vector<AttendShape> attends;
  std::int64_t widest_embedding = 0;
  std::int32_t widest_key = 0;  // largest key_dim of Scan; 0: there is none
  bool gated = false;
};

// Lowers a program. folded[m] is the norm that is folded into matrix m, or null (folded_of() in cpu/packed_weights.h). If `folded` is
// empty, nothing is folded. Throws the errors of check_program().
CpuPlan lower(const Program& program, const WeightShapes& weights, Compute compute, const std::vector<const Folded*>& folded = {});

}  // namespace pumice::cpu
