// Float32 matrix products by a BLAS library: our own copy of OpenBLAS, or the one that the system has (macOS: Accelerate). The library is
// opened at the first use, and computes only on the calling thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace pumice::cpu {

class Blas {
 public:
  // Computes out[rows][cols] = x[rows][k] * w[cols][k]^T, with strides in floats. Rows are processed in panels of panel_rows() rows. The
  // last panel is padded with zero rows, so that a row's bits depend neither on its index nor on the number of rows. Thread-safe. Throws
  // Error.
  void sgemm_nt(std::int64_t rows, std::int64_t cols, std::int64_t k, const float* x, std::int64_t x_stride, const float* w,
                std::int64_t w_stride, float* out, std::int64_t out_stride) const;

  std::int64_t panel_rows() const { return panel_rows_; }
  const std::string& path() const { return path_; }
  const std::string& config() const { return config_; }  // the library's own description of its build; may be empty

 private:
  friend struct OpenedBlas;
  using Sgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda, const float* b,
                         int ldb, float beta, float* c, int ldc);
  class Buffer;
  class OneThreadHere;
  void panel(std::int64_t cols, std::int64_t k, const float* x, std::int64_t x_stride, const float* w, std::int64_t w_stride,
             std::int64_t height, float* out) const;
  bool computes(std::int64_t height) const;

  // OpenBLAS maps one buffer for each thread that computes at the same time, and never unmaps it. If the system refuses a buffer, OpenBLAS
  // retries for ever. So if the address space is limited, a thread that needs a new buffer may call OpenBLAS only if there is room for the
  // buffer. Otherwise it throws an error.
  struct Buffers {
    // `inside` counts the threads that compute now, `admitted` the buffers that exist or are promised to a thread, and `coming` the
    // promised buffers that may not be mapped yet.
    std::atomic<int> inside{0}, admitted{0}, coming{0};
  };

  Sgemm sgemm_ = nullptr;
  // BLASSetThreading() and BLASGetThreading(), which Accelerate has since macOS 15: 0 is many threads, 1 is only the calling one. The
  // setting is that of the calling thread.
  int (*set_threading_)(unsigned) = nullptr;
  unsigned (*get_threading_)() = nullptr;
  std::unique_ptr<Buffers> buffers_ = std::make_unique<Buffers>();
  std::int64_t panel_rows_ = 1;
  std::string path_, config_;
};

// Returns null if the library cannot be used; blas_why_not() then returns the reason. The library is the system's, or libpumiceopenblas.so
// in the folder of this module. The environment variable PUMICE_BLAS can give the path of another library, whose cblas_sgemm must take
// 32-bit integers. If it is "none", no library is used.
const Blas* blas();
const std::string& blas_why_not();
const char* blas_name();  // of the library that is used unless PUMICE_BLAS gives another one: "OpenBLAS" or "Accelerate"

// Calls blas()->sgemm_nt(...). If there is no library, throws ErrorKind::device with the reason.
void sgemm_nt(std::int64_t rows, std::int64_t cols, std::int64_t k, const float* x, std::int64_t x_stride, const float* w,
              std::int64_t w_stride, float* out, std::int64_t out_stride);

}  // namespace pumice::cpu
