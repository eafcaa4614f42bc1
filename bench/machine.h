// Helpers for the benchmark programs. They time work on this thread and measure the limits of this machine.
#pragma once

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace pumice::bench {

struct Times {  // wall-clock or CPU time in seconds
  double best, median;
};

inline Times times_of(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {seconds.front(), seconds[seconds.size() / 2]};
}

inline double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Measures the CPU time of run() on this thread. Time in which other programs use the processor does not count. Makes as many trials as fit
// into `budget` seconds, but at least two. A trial repeats run() until the trial lasts 50 us, because reading the clock takes most of a
// microsecond.
template <class Run>
Times measure(Run run, double budget) {
  const double start = thread_seconds();
  run();
  const double once = std::max(thread_seconds() - start, 1e-9);
  const auto repeats = static_cast<std::int64_t>(std::clamp(50e-6 / once, 1.0, 1e5));
  std::vector<double> trials;
  do {
    const double before = thread_seconds();
    for (std::int64_t i = 0; i < repeats; ++i) run();
    trials.push_back((thread_seconds() - before) / static_cast<double>(repeats));
  } while (trials.size() < 2 || thread_seconds() - start < budget);
  return times_of(std::move(trials));
}

// Returns a number of bytes that no cache can hold: three times the size of the last-level cache, but at least 96 MiB.
inline std::int64_t from_memory() {
  const long last = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return std::max<std::int64_t>(96 << 20, 3 * static_cast<std::int64_t>(last));
}

// A buffer that has been written once, so that the system has really mapped its memory. Uses huge pages if the system can.
class HugeBuffer {
 public:
  explicit HugeBuffer(std::int64_t bytes) : bytes_((static_cast<std::size_t>(bytes) + kHuge - 1) / kHuge * kHuge) {
    data_ = static_cast<std::uint8_t*>(std::aligned_alloc(kHuge, bytes_));
    if (data_ == nullptr) throw std::bad_alloc();
    madvise(data_, bytes_, MADV_HUGEPAGE);
    std::memset(data_, 0, bytes_);
  }
  ~HugeBuffer() { std::free(data_); }
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;
  std::uint8_t* get() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kHuge = 2 << 20;
  std::size_t bytes_;
  std::uint8_t* data_;
};

// Measures the clock rate in Hz, with dependent additions, which take one cycle each. The additions add registers and not constants,
// because Intel's cores from Golden Cove on merge several additions of constants into one, and the result would be 10 GHz instead of 2.5.
#if defined(__aarch64__)
#define PUMICE_ADD "add %0, %0, %0\n\t"
#else
#define PUMICE_ADD "add %0, %0\n\t"
#endif
inline double clock_hz() {
  constexpr int kRounds = 250000;
  const Times t = measure(
      [] {
        std::uint64_t v = 1;
        for (int i = 0; i < kRounds; ++i) asm volatile(PUMICE_ADD PUMICE_ADD PUMICE_ADD PUMICE_ADD : "+r"(v));
      },
      0.1);
  return 4.0 * kRounds / t.best;
}
#undef PUMICE_ADD

// Reads memory and does nothing else. memchr() of the C library searches the buffer of zeros for a byte that is not zero, with the widest
// loads of the processor. A loop over 8-byte words would read at half the speed while another program uses the core's second hardware
// thread.
inline void read_all(const std::uint8_t* data, std::size_t bytes) {
  const void* found = std::memchr(data, 1, bytes);
  asm volatile("" : : "r"(found) : "memory");
}

// Returns the wall-clock seconds in which the threads together read the memory. Each thread reads an equal share.
inline Times read_by(const HugeBuffer& memory, int threads, int trials) {
  std::vector<double> seconds;
  const std::size_t share = memory.bytes() / static_cast<std::size_t>(threads);
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin;
  std::barrier step(threads);
  const auto work = [&](int thread) {
    for (int trial = 0; trial < trials; ++trial) {
      step.arrive_and_wait();
      if (thread == 0) begin = Clock::now();
      read_all(memory.get() + static_cast<std::size_t>(thread) * share, share);
      step.arrive_and_wait();
      if (thread == 0) seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
  work(0);
  for (std::thread& other : others) other.join();
  return times_of(std::move(seconds));
}

// Loops that use only registers, so no matrix product can be faster. Each loop adds to 8 independent sums, 1,000 times.
inline constexpr std::int64_t kPeakSums = 8000;
#if defined(__x86_64__)
#define PUMICE_SUMS(step) step("0") step("1") step("2") step("3") step("4") step("5") step("6") step("7")
#define PUMICE_PEAK(name, step)                                                                                                     \
  inline void name() {                                                                                                              \
    std::int64_t rounds = kPeakSums / 8;                                                                                            \
    asm volatile("vzeroall\n1:\n" PUMICE_SUMS(step) "dec %0\n\tjnz 1b\n\tvzeroupper"                                                \
                 : "+r"(rounds)                                                                                                     \
                 :                                                                                                                  \
                 : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
                   "xmm13", "xmm14", "xmm15");                                                                                      \
  }
#define PUMICE_FMA(i) "vfmadd231ps %%ymm15, %%ymm14, %%ymm" i "\n\t"
#define PUMICE_INT8(i) "vpmaddubsw %%ymm15, %%ymm14, %%ymm8\n\tvpaddw %%ymm8, %%ymm" i ", %%ymm" i "\n\t"
#define PUMICE_INT16(i) "vpmaddwd %%ymm15, %%ymm14, %%ymm8\n\tvpaddd %%ymm8, %%ymm" i ", %%ymm" i "\n\t"
PUMICE_PEAK(peak_fma_avx2, PUMICE_FMA)
PUMICE_PEAK(peak_int8_avx2, PUMICE_INT8)
PUMICE_PEAK(peak_int16_avx2, PUMICE_INT16)
#undef PUMICE_FMA
#undef PUMICE_INT8
#undef PUMICE_INT16
#undef PUMICE_PEAK
#undef PUMICE_SUMS
#endif

struct Peak {
  const char *isa, *name;
  int macs;  // number of multiply-adds per addition to a sum
  void (*run)();
};
inline const std::vector<Peak> kPeaks = {
#if defined(__x86_64__)
    {"avx2", "float32 (vfmadd231ps)", 8, peak_fma_avx2},
    {"avx2", "int8 (vpmaddubsw, vpaddw)", 32, peak_int8_avx2},
    {"avx2", "int16 (vpmaddwd, vpaddd)", 16, peak_int16_avx2},
#endif
};

}  // namespace pumice::bench
