// Divides a tile of TOKENS x OUTPUTS among the lanes of gemm and gemm_i8. Each lane has the sums of R tokens x C outputs in registers. The
// outputs of a lane are i, i + ACROSS, i + 2 ACROSS, ..., so that neighbouring lanes store neighbouring numbers, and so that the gate and
// the up product of one output are in the same lane.
const uint C = 8;
const uint ACROSS = OUTPUTS / C;   // number of lanes along the outputs
const uint DOWN = LANES / ACROSS;  // number of lanes along the tokens
const uint R = TOKENS / DOWN;
uint across() { return LANE % ACROSS; }
uint down() { return LANE / ACROSS; }

// `tile` holds the rows of activations, and then the rows of weights. A row has SIXTEENS uvec4, and one more uvec4 as padding, so that the
// same column of eight rows lies in different banks of shared memory.
const uint STRIDE = SIXTEENS + 1;
const uint W_TILE = TOKENS * STRIDE;
shared uvec4 tile[(TOKENS + OUTPUTS) * STRIDE];
uint x_slot(uint row, uint i) { return row * STRIDE + i; }
uint w_slot(uint row, uint i) { return W_TILE + row * STRIDE + i; }

float sums[R * C];

// finish() stores the results. First it copies the sums of a token from registers to the lane's own words of `tile`, from which staged()
// reads them. A loop can index these words, so the loop over the outputs is not unrolled. If it were, the code of store() would be repeated
// R C times, and lavapipe would take 2.4 s instead of 1.0 s to compile the shader.
float staged(uint c) { return uintBitsToFloat(tile[LANE * 2 + c / 4][c % 4]); }
void finish() {
  [[unroll]] for (uint r = 0; r < R; ++r) {
    [[unroll]] for (uint i = 0; i < C; i += 4) {
      tile[LANE * 2 + i / 4] = floatBitsToUint(vec4(sums[r * C + i], sums[r * C + i + 1], sums[r * C + i + 2], sums[r * C + i + 3]));
    }
    [[dont_unroll]] for (uint c = 0; c < WIDTH / ACROSS; ++c)
      store(down() + r * DOWN, across() + c * ACROSS, staged(c), GATED != 0 ? staged(c + C / 2) : 0);
  }
}
