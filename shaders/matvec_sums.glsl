// The end of matvec and matvec_i8. Each lane has partial sums of TOKENS x OUTPUTS products. finish() adds up the partial sums of all lanes
// and stores the results.
const uint SUMS = TOKENS * OUTPUTS;
float sums[SUMS];
shared float partial[SUMS * LANES];  // has SUMS entries for each subgroup; there are at most LANES subgroups

void finish() {
  [[unroll]] for (uint s = 0; s < SUMS; ++s) sums[s] = subgroupAdd(sums[s]);
  if (subgroupElect()) {
    [[unroll]] for (uint s = 0; s < SUMS; ++s) partial[gl_SubgroupID * SUMS + s] = sums[s];
  }
  barrier();
  const uint t = LANE / WIDTH, i = LANE % WIDTH;
  if (t >= TOKENS) return;
  float product = 0, product2 = 0;
  for (uint g = 0; g < gl_NumSubgroups; ++g) {
    product += partial[g * SUMS + t * OUTPUTS + i];
    if (GATED != 0) product2 += partial[g * SUMS + t * OUTPUTS + WIDTH + i];
  }
  store(t, i, product, product2);
}
