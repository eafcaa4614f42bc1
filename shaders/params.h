// What the host tells the shaders: push constants and numbers of specialisation constants. Valid C++ and valid GLSL, so that each
// fact stands in one place. Units: `_at` is an offset in words (4 bytes) from the start of the bound range, `_stride` the words between
// rows. All members are 4 bytes wide, so std430 and C++ agree; a block is at most 128 bytes.
// Every block begins with first_group and groups: a dispatch runs groups [first_group, groups) of a list (see group() in common.glsl).
// Bindings that a variant does not read must still be bound (to anything): they are used statically.
#ifndef PUMICE_SHADERS_PARAMS_H
#define PUMICE_SHADERS_PARAMS_H

#ifdef __cplusplus
#include <cstdint>
namespace pumice::vulkan::params {
using uint = std::uint32_t;
#define PUMICE_CONSTANT(name, value) inline constexpr uint name = value
#else
#define PUMICE_CONSTANT(name, value) const uint name = value
#endif

// Specialisation constant 0 of every shader: invocations of a workgroup, a power of two in 32..256.
PUMICE_CONSTANT(kSpecLanes, 0);

// ---------------------------------------------------------------- Linear, GatedLinear: matvec, gemm, matvec_i8, gemm_i8, gemm_coopmat
// out[t][r] = activation(sum over k of in[t][k] * W[r][k] + bias[r]) + residual[t][r],   r in [0, outputs)
// GATED: out[t][r] = activation(in[t] . W[r]) * (in[t] . W2[r]); neither bias nor residual.
// A dispatch covers the outputs of one bound piece of a matrix (row chunk, part of a stack): out_at, residual_at, bias_at and
// weights_at all point to its first output.
// Bindings: 0 weights, 1 in (float rows; the _i8 shaders: rows that quantize.comp wrote), 2 out, 3 bias, 4 residual (may be the same
// range as out), 5 weights2.
struct LinearParams {
  uint first_group, groups;  // groups = ceil(tokens / TOKENS) * ceil(outputs / OUTPUTS), half the OUTPUTS when GATED
  uint tokens, outputs, cols;
  uint weights_at, weights2_at;  // rows follow each other without gaps, device_row_words(format, cols) words each; multiples of 4
  uint in_at, in_stride;         // _i8: multiples of 4; in_stride = quantised_row_words(cols)
  uint out_at, out_stride;
  uint bias_at;
  uint residual_at, residual_stride;
};
PUMICE_CONSTANT(kLinearFormat, 1);       // Format of the weights, in the order of formats.def
PUMICE_CONSTANT(kLinearFormat2, 2);      // Format of weights2; equal to kLinearFormat when not GATED
PUMICE_CONSTANT(kLinearActivation, 3);   // pumice::Activation
PUMICE_CONSTANT(kLinearGated, 4);        // 0 or 1
PUMICE_CONSTANT(kLinearBias, 5);         // 0 or 1
PUMICE_CONSTANT(kLinearResidual, 6);     // 0 or 1
PUMICE_CONSTANT(kLinearAligned, 7);      // 1: in_at and in_stride are multiples of 4 (vector loads); 0: any
// The tile of a group: TOKENS rows of `in` by OUTPUTS rows of weights (GATED: half of them of W, half of W2; OUTPUTS is then even).
//   matvec, matvec_i8: TOKENS 1, 2, 4 or 8; OUTPUTS 1, 2, 4 or 8, TOKENS * OUTPUTS <= 32. LANES divide the columns. tokens may be any number.
//   gemm, gemm_i8: LANES = TOKENS * OUTPUTS / (8 R) with R = 2, 4 or 8 tokens a lane, OUTPUTS 32, 64 or 128. Shared memory:
//     gemm (TOKENS + OUTPUTS) * 80 + 64 bytes, gemm_i8 (TOKENS + OUTPUTS) * 64 + 64 at most.
//   gemm_coopmat: see the three constants below.
PUMICE_CONSTANT(kLinearTokens, 8);
PUMICE_CONSTANT(kLinearOutputs, 9);
PUMICE_CONSTANT(kLinearCoopM, 10);  // gemm_coopmat: shape of one cooperative matrix product, from the device's list (f16 x f16 -> f32)
PUMICE_CONSTANT(kLinearCoopN, 11);
PUMICE_CONSTANT(kLinearCoopK, 12);
PUMICE_CONSTANT(kLinearCoopSubgroup, 13);  // gemm_coopmat: lanes of a subgroup; LANES = a multiple of it

// ---------------------------------------------------------------- Embed: gather
// out[r] = (ADD ? out[r] : 0) + scale * W[meta[index_at + r]] for r in [0, groups): one group a row.
// Bound are rows [chunk_first, chunk_first + chunk_rows) of the table; rows whose index is elsewhere are left alone.
// Bindings: 0 weights, 1 meta, 2 out.
struct GatherParams {
  uint first_group, groups;
  uint cols;
  uint weights_at, chunk_first, chunk_rows;
  uint index_at;
  uint out_at, out_stride;
  float scale;
};
PUMICE_CONSTANT(kGatherFormat, 1);
PUMICE_CONSTANT(kGatherAdd, 2);  // 0 or 1

// ---------------------------------------------------------------- Quantize: float rows to int8, for the _i8 products
// x ~ scale * code: for each row and each 32 columns, scale = max|x| / 127, code = the nearest integer in [-127, 127], ties to even.
// A row of the output: cols / 4 words of codes (bytes in order), cols / 32 float scales, padding to a multiple of 4 words. cols % 32 == 0.
// Bindings: 0 in, 1 out.
struct QuantizeParams {
  uint first_group, groups;  // groups = ceil(tokens * cols / 4 / LANES)
  uint tokens, cols;
  uint in_at, in_stride;
  uint out_at, out_stride;  // out_stride = quantised_row_words(cols)
};
PUMICE_CONSTANT(kQuantizeAligned, 1);  // as kLinearAligned

#ifdef __cplusplus
constexpr std::int64_t quantised_row_words(std::int64_t cols) { return (cols / 4 + cols / 32 + 3) / 4 * 4; }
static_assert(sizeof(LinearParams) <= 128 && sizeof(GatherParams) <= 128 && sizeof(QuantizeParams) <= 128);
#endif

#ifdef __cplusplus
}  // namespace pumice::vulkan::params
#endif
#undef PUMICE_CONSTANT
#endif
