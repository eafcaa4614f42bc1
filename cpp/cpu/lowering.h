// Translates a program to what the CPU executes: checked steps over areas of scratch memory. Nothing here depends on a batch or on the
// values of weights.
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
  std::int32_t col;  // column of `out`
  // Index of the quantized activations that the part multiplies; -1: it multiplies the floats themselves.
  std::int32_t quantized;
  // Index of a bias of the executable that replaces `bias`. It includes what a folded norm's bias adds. -1: none.
  std::int32_t folded_bias = -1;
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
// Ropes that follow each other, and the Store after them. No row needs another row's result, so all of them share one phase.
struct Turned {
  View x;
  std::int32_t head_dim, turns;
  float temperature;
  std::int32_t temperature_length;
};
struct RopeStoreStep {
  std::vector<Turned> ropes;
  Store store;
  CacheShape shape;  // shape of the cache; no heads: nothing is stored
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
  // -1: the output slot, which lies in the caller's memory, or a slot that nothing uses.
  std::int32_t area = -1;
};
// Returns the stride in floats between rows of activations of this width. If the six rows of a tile lay about a multiple of 2 KiB apart,
// they would fall into few sets of L1 and evict each other and the weights (6 multiply-adds a cycle instead of 14.5 at a width of 2,048).
std::int64_t activation_stride(std::int64_t width);

// The kinds of codes in which a product may take its activations. With two_int8, a second row follows each row; it holds the rounding error
// of the first.
enum class Codes : std::uint8_t { int8, two_int8, fixed, bytes };
struct QuantizedPlace {
  Rows rows = Rows::tokens;
  std::int64_t cols = 0;
  std::int32_t area = -1;
  Codes codes = Codes::int8;
  // For `bytes`: one of the matrices that multiply these codes. Its folded norm determines the codes.
  MatrixId folded = MatrixId::none;
  std::int64_t terms() const { return codes == Codes::two_int8 ? 2 : 1; }
  std::int64_t row_bytes() const;
};

// The shape of one attention: everything except the batch that its work depends on. Layers with the same shape share it.
struct AttendShape {
  std::int32_t group = 1, kv_heads = 1, key_dim = 0, value_dim = 0, window = 0;  // group: query heads of one kv head
  bool causal = false, cached = false;
  bool operator==(const AttendShape&) const = default;
};

// Number of rows in one block of a program's tail. The tail follows the last step that combines several rows. In programs with LogProb or
// Top it runs block by block, so that no rows x vocabulary array is ever needed (32 x 262,144 floats are 32 MiB).
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

// `folded` has, for each matrix, what is folded into it (folded_of(), cpu/packed_weights.h); if it is empty, nothing is folded. Throws what
// check_program() throws.
CpuPlan lower(const Program& program, const WeightShapes& weights, Compute compute, const std::vector<const Folded*>& folded = {});

}  // namespace pumice::cpu
