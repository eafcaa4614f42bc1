// From a program to what the CPU does: checked steps over areas of scratch memory. Nothing here touches weights' data or a batch.
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
  std::vector<std::int32_t> quantized = {};
};  // quantized: also leaves `out` as codes there
struct QuantizeStep {
  View in;
  std::int32_t quantized;
};
struct ProductPart {
  MatrixId weight;
  VectorId bias;
  std::int64_t rows, cols;
  std::int32_t col;               // column of `out`
  std::int32_t quantized;         // the quantized activations that it multiplies; -1: the floats themselves
  std::int32_t folded_bias = -1;  // in place of `bias`: the executable's, with what a folded norm's bias adds
  bool bf16 = false;  // the floats are rounded to bfloat16 where the instruction set is faster with it (FormatKernels::product_bf16)
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
struct MultiplyStep {
  Multiply op;
};
struct TurnsStep {
  std::int32_t turns;
};  // cos and sin of every row
// Ropes that follow each other, and the Store after them: a row needs no other row's, so that all share one phase.
struct Turned {
  View x;
  std::int32_t head_dim, turns;
  float temperature;
  std::int32_t temperature_length;
};
struct RopeStoreStep {
  std::vector<Turned> ropes;
  Store store;
  CacheShape shape;  // of the cache; no heads: nothing is stored
};
struct KeepStep {
  Attend op;
  std::int32_t shape;
};  // an encoder's k and v to scratch pages
struct AttendStep {
  Attend op;
  std::int32_t shape;
};
struct MergeStep {
  Attend op;
  std::int32_t shape;
};  // merges the chunks of several tasks
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
using Step = std::variant<InputStep, EmbedStep, NormStep, QuantizeStep, LinearStep, GatedStep, MultiplyStep, TurnsStep, RopeStoreStep,
                          KeepStep, AttendStep, MergeStep, SelectStep, PoolStep, LogProbStep, TopStep>;

// ---------------------------------------------------------------- memory
// Rows of scratch that several slots or quantized inputs use one after another.
struct Area {
  Rows rows = Rows::tokens;
  bool in_blocks = false;  // holds the rows of one tail block only
  std::int64_t row_bytes = 0;
};
struct SlotPlace {
  Rows rows = Rows::tokens;
  std::int32_t width = 0;
  std::int64_t stride = 0;  // floats from row to row
  std::int32_t area = -1;   // -1: the output slot, which lies at the caller's, or a slot that nothing uses
};
// Floats from row to row of activations of this width. A tile of six rows about a multiple of 2 KiB apart would find them in few sets of
// L1, where they push each other and the weights out (6 multiply-adds a cycle instead of 14.5 at a width of 2,048).
std::int64_t activation_stride(std::int64_t width);

// How a product takes its activations, where not as floats. two_int8: each row is followed by what rounding took from it, as a row of its
// own.
enum class Codes : std::uint8_t { int8, two_int8, fixed, bytes };
struct QuantizedPlace {
  Rows rows = Rows::tokens;
  std::int64_t cols = 0;
  std::int32_t area = -1;
  Codes codes = Codes::int8;
  MatrixId folded = MatrixId::none;  // bytes: one that multiplies them, and whose folding they therefore follow
  std::int64_t terms() const { return codes == Codes::two_int8 ? 2 : 1; }
  std::int64_t row_bytes() const;
};

// Everything but the batch on which attention's work depends. Layers with the same shape share it.
struct AttendShape {
  std::int32_t group = 1, kv_heads = 1, key_dim = 0, value_dim = 0, window = 0;  // group: query heads of one kv head
  bool causal = false, cached = false;
  bool operator==(const AttendShape&) const = default;
};

// Rows of one block of a program's tail. The tail follows the last step that looks beyond one row; in programs with LogProb or Top it runs
// block by block, so that no rows x vocabulary array is ever there (32 x 262,144 floats are 32 MiB).
inline constexpr std::int64_t kTailRows = 32;

struct CpuPlan {
  ProgramFacts facts;
  std::vector<Step> steps;
  std::size_t tail = 0;  // steps from here on run in blocks; steps.size() when there is no tail
  std::vector<SlotPlace> slots;
  std::vector<QuantizedPlace> quantized;
  std::vector<Area> areas;
  std::vector<RopeTable> turns;  // distinct
  std::vector<AttendShape> attends;
  std::int64_t widest_embedding = 0;
  bool gated = false;
};

// `folded`: what is folded into each matrix (folded_of(), cpu/packed_weights.h); empty: nothing. Throws what check_program() throws.
CpuPlan lower(const Program& program, const WeightShapes& weights, Compute compute, const std::vector<const Folded*>& folded = {});

}  // namespace pumice::cpu
