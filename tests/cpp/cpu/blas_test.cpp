// A BLAS library, opened at run time, must give right products, and a row must have the same bits at any index in any batch.
#include "cpu/blas.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"

namespace pumice::cpu {
namespace {

using Floats = std::vector<float>;

Floats random(std::size_t n, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  Floats out(n);
  for (float& x : out) x = normal(engine);
  return out;
}

const Blas& library() {
  const Blas* found = blas();
  if (found == nullptr) throw std::runtime_error(blas_why_not());
  return *found;
}

int threads_of_this_process() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("Threads:", 0) == 0) return std::stoi(line.substr(8));
  }
  return -1;
}

TEST(Blas, OpensOurCopyAndAddsNoThread) {
  const int before = threads_of_this_process();
  EXPECT_NE(library().path().find("libpumiceopenblas.so"), std::string::npos) << library().path();
  EXPECT_NE(library().config().find("OpenBLAS"), std::string::npos) << library().config();
  EXPECT_EQ(threads_of_this_process(), before);
  EXPECT_EQ(getenv("OPENBLAS_NUM_THREADS"), nullptr);
  EXPECT_EQ(getenv("VECLIB_MAXIMUM_THREADS"), nullptr);
  // If panels have fewer rows, products are slow, and the panel needs another shape on this processor.
  EXPECT_GE(library().panel_rows(), 8);
}

TEST(Blas, ProductsOfOddShapesAndStrides) {
  for (int rows : {1, 2, 15, 16, 17, 33, 65, 129}) {
    for (int cols : {1, 7, 33, 384}) {
      for (int k : {1, 5, 64, 385}) {
        const int x_stride = k + 3, w_stride = k + 1, out_stride = cols + 2;
        const Floats x = random(rows * x_stride, rows), w = random(cols * w_stride, cols);
        Floats out(rows * out_stride, 77.0f);
        library().sgemm_nt(rows, cols, k, x.data(), x_stride, w.data(), w_stride, out.data(), out_stride);
        for (int r = 0; r < rows; ++r) {
          for (int c = 0; c < out_stride; ++c) {
            if (c >= cols) {
              ASSERT_EQ(out[r * out_stride + c], 77.0f) << "written outside";
              continue;
            }
            double truth = 0.0;
            for (int i = 0; i < k; ++i) truth += double{x[r * x_stride + i]} * w[c * w_stride + i];
            ASSERT_NEAR(out[r * out_stride + c], truth, 1e-6 * k + 1e-5);
          }
        }
      }
    }
  }
}

TEST(Blas, ARowsBitsDependOnNothingElse) {
  for (int cols : {1, 16, 33, 384, 1152, 1537}) {
    for (int k : {1, 32, 33, 127, 384, 1536, 2049}) {
      const Floats w = random(static_cast<std::size_t>(cols) * k, cols + k), row = random(k, k);
      Floats alone(cols);
      library().sgemm_nt(1, cols, k, row.data(), k, w.data(), k, alone.data(), cols);
      for (int rows : {2, 16, 17, 70}) {
        Floats x = random(static_cast<std::size_t>(rows) * k, 5), out(static_cast<std::size_t>(rows) * cols);
        for (int r = 0; r < rows; r += 2) std::memcpy(&x[static_cast<std::size_t>(r) * k], row.data(), k * sizeof(float));
        library().sgemm_nt(rows, cols, k, x.data(), k, w.data(), k, out.data(), cols);
        for (int r = 0; r < rows; r += 2) {
          ASSERT_EQ(std::memcmp(&out[static_cast<std::size_t>(r) * cols], alone.data(), cols * sizeof(float)), 0)
              << "row " << r << " of " << rows << ", cols " << cols << ", k " << k;
        }
      }
    }
  }
}

TEST(Blas, ManyThreadsAtOnce) {
  const int rows = 40, cols = 200, k = 300;
  const Floats x = random(rows * k, 1), w = random(cols * k, 2);
  Floats truth(rows * cols);
  library().sgemm_nt(rows, cols, k, x.data(), k, w.data(), k, truth.data(), cols);
  std::vector<Floats> results(16, Floats(rows * cols));
  std::vector<std::thread> threads;
  for (Floats& result : results) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) library().sgemm_nt(rows, cols, k, x.data(), k, w.data(), k, result.data(), cols);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Floats& result : results) EXPECT_EQ(result, truth);
}

TEST(Blas, NumbersBeyondBlasAreRefused) {
  float x = 0.0f;
  EXPECT_THROW(library().sgemm_nt(1, std::int64_t{1} << 31, 1, &x, 1, &x, 1, &x, 1), Error);
  library().sgemm_nt(0, 1, 1, &x, 1, &x, 1, nullptr, 1);  // without rows there is nothing to compute
}

// Prints whether the library that PUMICE_BLAS names was opened. Runs in a child process, because a process opens the library only once.
void open_and_report(const char* named) {
  setenv("PUMICE_BLAS", named, 1);
  setenv("OPENBLAS_NUM_THREADS", "7", 1);
  const Blas* found = blas();
  std::fprintf(stderr, "%s; threads %s\n", found != nullptr ? "opened" : blas_why_not().c_str(), getenv("OPENBLAS_NUM_THREADS"));
  std::exit(0);
}
TEST(BlasDeathTest, EnvironmentNamesTheLibrary) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ends_well = testing::ExitedWithCode(0);
  EXPECT_EXIT(open_and_report(library().path().c_str()), ends_well, "opened; threads 7");
  EXPECT_EXIT(open_and_report("none"), ends_well, "PUMICE_BLAS=none; threads 7");
  EXPECT_EXIT(open_and_report("/no/such/library.so"), ends_well, "cannot open /no/such/library.so: .*; threads 7");
  EXPECT_EXIT(open_and_report("libm.so.6"), ends_well, "cannot open");
}

// A library with Accelerate's functions (tests/cpp/libraries/accelerate.cpp). Its products are wrong if they may use other threads.
void multiply_with_accelerate() {
  setenv("PUMICE_BLAS", PUMICE_ACCELERATE, 1);
  void* library = dlopen(PUMICE_ACCELERATE, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto threading = reinterpret_cast<unsigned (*)()>(dlsym(library, "BLASGetThreading"));
  const auto set_threading = reinterpret_cast<int (*)(unsigned)>(dlsym(library, "BLASSetThreading"));
  const Floats x = random(40 * 30, 1), w = random(20 * 30, 2);
  Floats out(40 * 20);
  sgemm_nt(40, 20, 30, x.data(), 30, w.data(), 30, out.data(), 20);
  double truth = 0.0;
  for (int i = 0; i < 30; ++i) truth += double{x[39 * 30 + i]} * w[19 * 30 + i];
  const bool right = std::abs(out[39 * 20 + 19] - truth) < 1e-4;
  const unsigned many = threading();
  set_threading(1);
  sgemm_nt(40, 20, 30, x.data(), 30, w.data(), 30, out.data(), 20);
  std::fprintf(stderr, "%s; panels of %lld; threading %u and %u\n", right ? "right" : "wrong", static_cast<long long>(blas()->panel_rows()),
               many, threading());
  std::exit(0);
}
TEST(BlasDeathTest, AccelerateComputesOnTheCallingThreadAlone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(multiply_with_accelerate(), testing::ExitedWithCode(0), "right; panels of 64; threading 0 and 1");
}

}  // namespace
}  // namespace pumice::cpu
