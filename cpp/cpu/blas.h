// Float32 matrix products by a BLAS library, which is pumice's own copy of OpenBLAS or the system's library (Accelerate on macOS). The
// library is opened at the first use and computes only on the calling thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace pumice::cpu {

class Blas {
 public:
  // Computes out[rows][cols] = x[rows][k] * w[cols][k]^T, with strides in floats. Rows are processed in panels of panel_rows() rows. The
  // last panel is padded with zero rows, so that the bits of a row depend neither on its index nor on the number of rows. Thread-safe.
  // Throws Error.
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

  // OpenBLAS maps one buffer for each thread that computes at the same time, and never unmaps a buffer. If the system refuses a buffer,
  // OpenBLAS retries for ever. If the process has a limit of address space, a thread that needs a new buffer therefore calls OpenBLAS only
  // if there is room for the buffer. Otherwise the thread throws an error.
  struct Buffers {
    // `inside` is the number of threads that compute now. `admitted` is the number of buffers that exist or are promised to a thread.
    // `coming` is the number of promised buffers that might not be mapped yet.
    std::atomic<int> inside{0}, admitted{0}, coming{0};
  };

  Sgemm sgemm_ = nullptr;
  // Pointers to Accelerate's BLASSetThreading() and BLASGetThreading() (since macOS 15), or null in other libraries. The functions set and
  // return how the products of the calling thread are computed: 0 allows many threads, and 1 allows only the calling thread.
  int (*set_threading_)(unsigned) = nullptr;
  unsigned (*get_threading_)() = nullptr;
  std::unique_ptr<Buffers> buffers_ = std::make_unique<Buffers>();
  std::int64_t panel_rows_ = 1;
  std::string path_, config_;
};

// Returns the BLAS library. Returns null if the library cannot be used; blas_why_not() then returns the reason. The library is the
// system's, or the file libpumiceopenblas.so in the folder of this module. The environment variable PUMICE_BLAS can be the path of another
// library, whose cblas_sgemm must take 32-bit integers. If PUMICE_BLAS is "none", no library is used.
const Blas* blas();
const std::string& blas_why_not();
const char* blas_name();  // name of the library that is used without PUMICE_BLAS: "OpenBLAS" or "Accelerate"

// Calls blas()->sgemm_nt(...). If there is no library, throws ErrorKind::device with the reason.
void sgemm_nt(std::int64_t rows, std::int64_t cols, std::int64_t k, const float* x, std::int64_t x_stride, const float* w,
              std::int64_t w_stride, float* out, std::int64_t out_stride);

}  // namespace pumice::cpu
