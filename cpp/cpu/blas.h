// float32 matrix products by our copy of OpenBLAS. It is opened at the first use and runs on the calling thread alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace pumice::cpu {

class Blas {
 public:
  // out[rows][cols] = x[rows][k] * w[cols][k]^T, with strides in floats. It is computed in panels of panel_rows() rows. The last panel is
  // padded with zero rows, so that a row's bits depend neither on its place nor on the number of rows. Thread-safe. Throws Error.
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
  void panel(std::int64_t cols, std::int64_t k, const float* x, std::int64_t x_stride, const float* w, std::int64_t w_stride,
             std::int64_t height, float* out) const;
  bool computes(std::int64_t height) const;

  // OpenBLAS maps one buffer for each thread that computes at the same time and keeps it. Where the system refuses a buffer, OpenBLAS asks
  // again for ever. So where
  // address space is limited, a thread that would need a further one enters only if there is room.
  struct Buffers {
    std::atomic<int> inside{0}, admitted{0}, coming{0};  // threads; their buffers, mapped or not; buffers that are not mapped yet
  };

  Sgemm sgemm_ = nullptr;
  std::unique_ptr<Buffers> buffers_ = std::make_unique<Buffers>();
  std::int64_t panel_rows_ = 1;
  std::string path_, config_;
};

// Null when there is no OpenBLAS; blas_why_not() then says why. The library is libpumiceopenblas.so beside this module. The environment
// variable PUMICE_BLAS can give the path of another one (with cblas_sgemm on 32-bit integers), or be "none".
const Blas* blas();
const std::string& blas_why_not();

// blas()->sgemm_nt(...); without one, fails (device) saying why there is none.
void sgemm_nt(std::int64_t rows, std::int64_t cols, std::int64_t k, const float* x, std::int64_t x_stride, const float* w,
              std::int64_t w_stride, float* out, std::int64_t out_stride);

}  // namespace pumice::cpu
