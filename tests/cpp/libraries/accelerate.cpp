// Stands for Apple's Accelerate: cblas_sgemm, and the two functions for the threading of BLAS that came with macOS 15. As there, the
// setting is that of a thread. Products while it is not "one thread" are NaN, so a test sees whether each of them was limited to the
// calling thread.
#include <limits>

namespace {
thread_local unsigned threading = 0;  // 0: many threads; 1: one
}

#pragma GCC visibility push(default)
extern "C" {

int BLASSetThreading(unsigned model) {
  threading = model;
  return 0;
}
unsigned BLASGetThreading() { return threading; }

// Row-major, out[m][n] = a[m][k] * b[n][k]^T. pumice asks for no other product.
void cblas_sgemm(int, int, int, int m, int n, int k, float, const float* a, int lda, const float* b, int ldb, float, float* c, int ldc) {
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      float sum = threading == 1 ? 0.0f : std::numeric_limits<float>::quiet_NaN();
      for (int l = 0; l < k; ++l) sum += a[i * lda + l] * b[j * ldb + l];
      c[i * ldc + j] = sum;
    }
  }
}
}
#pragma GCC visibility pop
