#version 450
#extension GL_GOOGLE_include_directive : require
// Does the same as gemm.comp with cooperative matrices (VK_KHR_cooperative_matrix). Activations and weights are rounded to f16 in shared
// memory, and sums are in float32. Each subgroup computes BLOCKS_M x BLOCKS_N matrices of COOP_M x COOP_N results.
// Requires shaderFloat16, vulkanMemoryModel, and a pipeline with full subgroups of SUBGROUP lanes. See LinearParams in params.h for the
// number of subgroups in a group.
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "linear_float.glsl"

layout(constant_id = kLinearCoopM) const uint COOP_M = 16;
layout(constant_id = kLinearCoopN) const uint COOP_N = 16;
layout(constant_id = kLinearCoopK) const uint COOP_K = 16;
layout(constant_id = kLinearCoopSubgroup) const uint SUBGROUP = 32;

const uint DEPTH = 32;
// Activations are multiplied by SHRINK before they are rounded, and the results are divided by SHRINK. Without this, some activations
// inside networks exceed 65504, the largest f16. Small activations lose little precision: below 1e-3 the error is 5e-7.
const float SHRINK = 1.0 / 16.0;
// Number of f16vec4 in a row of x_tile or w_tile. Two of these are padding, so that the same column of eight rows lies in different banks
// of shared memory.
const uint STRIDE = DEPTH / 4 + 2;
const uint SUBGROUPS = LANES / SUBGROUP;
const uint SUBGROUPS_N = SUBGROUPS > 1 ? 2 : 1;
const uint SUBGROUPS_M = SUBGROUPS / SUBGROUPS_N;
const uint BLOCKS_M = TOKENS / SUBGROUPS_M / COOP_M;  // number of matrices per subgroup along the tokens
// Number of matrices per subgroup along the outputs, which is even. Half of a subgroup's matrices use rows in the first half of w_tile, and
// half use rows in the second half, so that the gate and the up product of an output are in the same subgroup.
const uint BLOCKS_N = OUTPUTS / SUBGROUPS_N / COOP_N;
const uint HALF_N = BLOCKS_N / 2;
const uint STAGE = COOP_M * COOP_N;
const uint STAGES = GATED != 0 ? 2 : 1;

shared f16vec4 x_tile[TOKENS * STRIDE];
shared f16vec4 w_tile[OUTPUTS * STRIDE];
shared float stage[SUBGROUPS * STAGES * STAGE];

// Returns the row of w_tile where matrix `j` of a subgroup begins. `n` is the index of the subgroup along the outputs.
uint matrix_column(uint n, uint j) { return (j < HALF_N ? n * HALF_N + j : SUBGROUPS_N * HALF_N + n * HALF_N + j - HALF_N) * COOP_N; }

void main() {
  if (!find_tile()) return;
  prepare_codes(FORMAT, FORMAT2);
  const uint m = gl_SubgroupID / SUBGROUPS_N, n = gl_SubgroupID % SUBGROUPS_N;

  coopmat<float, gl_ScopeSubgroup, COOP_M, COOP_N, gl_MatrixUseAccumulator> sums[BLOCKS_M * BLOCKS_N];
  [[unroll]] for (uint i = 0; i < BLOCKS_M * BLOCKS_N; ++i) {
    sums[i] = coopmat<float, gl_ScopeSubgroup, COOP_M, COOP_N, gl_MatrixUseAccumulator>(0);
  }

  for (uint first = 0; first < p.cols; first += DEPTH) {
    for (uint i = LANE; i < TOKENS * DEPTH / 4; i += LANES) {
      const uint row = i / (DEPTH / 4), k = i % (DEPTH / 4);
      x_tile[row * STRIDE + k] = f16vec4(SHRINK * activations(activation_row(row), first + k * 4));
    }
    for (uint i = LANE; i < OUTPUTS * DEPTH / 16; i += LANES) {
      const uint row = i % OUTPUTS, k = i / OUTPUTS * 16;
      vec4 w[4] = vec4[](vec4(0), vec4(0), vec4(0), vec4(0));
      if (first + k < p.cols) {
        if (is_second(row)) {
          weights_of(FORMAT2, tile_row(row), first + k, w);
        } else {
          weights_of(FORMAT, tile_row(row), first + k, w);
        }
      }
      [[unroll]] for (uint j = 0; j < 4; ++j) w_tile[row * STRIDE + k / 4 + j] = f16vec4(w[j]);
    }
    barrier();
    [[unroll]] for (uint k = 0; k < DEPTH; k += COOP_K) {
      coopmat<float16_t, gl_ScopeSubgroup, COOP_M, COOP_K, gl_MatrixUseA> a[BLOCKS_M];
      [[unroll]] for (uint i = 0; i < BLOCKS_M; ++i) {
        coopMatLoad(a[i], x_tile, (m * BLOCKS_M + i) * COOP_M * STRIDE + k / 4, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
      }
      [[unroll]] for (uint j = 0; j < BLOCKS_N; ++j) {
        coopmat<float16_t, gl_ScopeSubgroup, COOP_K, COOP_N, gl_MatrixUseB> b;
        coopMatLoad(b, w_tile, matrix_column(n, j) * STRIDE + k / 4, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint i = 0; i < BLOCKS_M; ++i) sums[i * BLOCKS_N + j] = coopMatMulAdd(a[i], b, sums[i * BLOCKS_N + j]);
      }
    }
    barrier();
  }

  // Only the driver knows which lane holds which sum, so the matrices go to shared memory before bias and activation are applied.
  const uint own = gl_SubgroupID * STAGES * STAGE;
  [[unroll]] for (uint i = 0; i < BLOCKS_M; ++i) {
    [[unroll]] for (uint j = 0; j < (GATED != 0 ? HALF_N : BLOCKS_N); ++j) {
      coopMatStore(sums[i * BLOCKS_N + j], stage, own, COOP_N, gl_CooperativeMatrixLayoutRowMajor);
      if (GATED != 0) coopMatStore(sums[i * BLOCKS_N + j + HALF_N], stage, own + STAGE, COOP_N, gl_CooperativeMatrixLayoutRowMajor);
      barrier();
      for (uint e = gl_SubgroupInvocationID; e < STAGE; e += SUBGROUP) {
        store((m * BLOCKS_M + i) * COOP_M + e / COOP_N, matrix_column(n, j) + e % COOP_N, stage[own + e] / SHRINK,
              GATED != 0 ? stage[own + STAGE + e] / SHRINK : 0);
      }
      barrier();
    }
  }
}
