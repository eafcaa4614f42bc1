// Speed of the matrix kernels on one core: how fast a format's weights stream past 1 to 4 tokens, multiply-adds per cycle of products
// with many tokens, packing. Thread CPU time and the best of many trials, because neighbours disturb shared machines.
//   matrix_bench [format ...]
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "cpu/kernels.h"

namespace {

using namespace pumice;
using namespace pumice::cpu;

double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <class Run>
double best_seconds(Run run, double budget) {
  double best = 1e30;
  const double start = thread_seconds();
  do {
    const double before = thread_seconds();
    run();
    best = std::min(best, thread_seconds() - before);
  } while (thread_seconds() - start < budget);
  return best;
}

double clock_hz() {  // dependent additions take one cycle each
  const double seconds = best_seconds(
      [] {
        std::uint64_t v = 1;
        for (int i = 0; i < 1000000; ++i) asm volatile("add $1, %0\n\tadd $1, %0\n\tadd $1, %0\n\tadd $1, %0" : "+r"(v));
      },
      0.2);
  return 4e6 / seconds;
}

// Touched, in huge pages where the system gives them.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_((bytes + (2 << 20)) & ~std::size_t{(2 << 20) - 1}) {
    data_ = static_cast<std::uint8_t*>(std::aligned_alloc(2 << 20, bytes_));
    madvise(data_, bytes_, MADV_HUGEPAGE);
    std::memset(data_, 0, bytes_);
  }
  ~Memory() { std::free(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::uint8_t* get() const { return data_; }

 private:
  std::size_t bytes_;
  std::uint8_t* data_;
};

struct Shape {
  std::int64_t rows, cols;
};
constexpr Shape kShapes[] = {{576, 1536}, {640, 2048}, {2048, 2048}, {1536, 384}};

void measure(Format format, double hz) {
  const FormatInfo& f = info(format);
  const FormatKernels& k = kMatrixAvx2[format];
  std::mt19937 random(1);
  for (Shape shape : kShapes) {
    if (shape.cols % f.block != 0) shape.cols = 512;
    const std::int64_t stride = row_bytes(format, shape.cols), groups = shape.rows / 16, group_bytes = k.group_bytes(shape.cols);
    std::vector<std::uint8_t> file(static_cast<std::size_t>(shape.rows * stride));
    for (auto& byte : file) byte = static_cast<std::uint8_t>(random() % 48);  // no infinities in any scale
    const std::int64_t bytes = groups * group_bytes, copies = std::max<std::int64_t>(1, (96 << 20) / bytes);
    const Memory memory(static_cast<std::size_t>(bytes * copies));
    const auto pack = [&](std::int64_t copy) {
      for (std::int64_t g = 0; g < groups; ++g)
        k.pack_group(file.data() + g * 16 * stride, stride, 16, shape.cols, memory.get() + copy * bytes + g * group_bytes);
    };
    for (std::int64_t copy = 0; copy < copies; ++copy) pack(copy);
    const double pack_seconds = best_seconds([&] { pack(0); }, 0.02);

    constexpr std::int64_t kTokens = 256;
    std::vector<float> x(static_cast<std::size_t>(kTokens * shape.cols)), out(static_cast<std::size_t>(kTokens * shape.rows));
    for (float& v : x) v = static_cast<float>(random() % 1000) * 1e-3f - 0.5f;
    std::vector<std::int8_t> codes(x.size());
    for (auto& c : codes) c = static_cast<std::int8_t>(static_cast<int>(random() % 255) - 127);
    std::vector<float> scales(x.size() / 32, 0.01f);
    std::vector<std::int32_t> sums(x.size() / 16, 7);
    const QuantRows q{codes.data(), scales.data(), sums.data(), kTokens, shape.cols};

    const auto product = [&](std::int64_t copy, std::int64_t tokens, bool int8) {
      const std::uint8_t* w = memory.get() + copy * bytes;
      if (int8)
        k.product_int8(w, shape.rows, shape.cols, q, 0, tokens, out.data(), shape.rows);
      else
        k.product_f32(w, shape.rows, shape.cols, x.data(), shape.cols, tokens, out.data(), shape.rows);
    };
    const double macs = static_cast<double>(shape.rows * shape.cols);
    for (const bool int8 : {true, false}) {
      if (int8 && k.product_int8 == nullptr) continue;
      std::printf("%-7s %4lldx%-4lld %-4s", std::string(f.name).c_str(), static_cast<long long>(shape.rows),
                  static_cast<long long>(shape.cols), int8 ? "int8" : "f32");
      const double stream = best_seconds(
          [&] {
            for (std::int64_t c = 0; c < copies; ++c) product(c, 1, int8);
          },
          0.15);
      std::printf("  %5.1f GB/s |", static_cast<double>(bytes * copies) / stream * 1e-9);
      for (const std::int64_t tokens : {1, 2, 4, 5, 16, 64, 128, 256}) {
        const double seconds = best_seconds([&] { product(0, tokens, int8); }, 0.05);
        std::printf(" %5.1f", macs * static_cast<double>(tokens) / seconds / hz);
      }
      std::printf(" | %5.1f GB/s packed\n", static_cast<double>(stride * shape.rows) / pack_seconds * 1e-9);
      std::fflush(stdout);
    }
  }
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

}  // namespace

int main(int argc, char** argv) {
  if (kernels_for("avx2") == nullptr) {
    std::fprintf(stderr, "this machine has no AVX2\n");
    return 1;
  }
  const double hz = clock_hz();
  const Memory memory(128 << 20);
  volatile std::uint64_t sink = 0;
  const double read = best_seconds(
      [&] {
        std::uint64_t sum[4] = {};
        for (std::size_t i = 0; i < (128 << 20); i += 64) {
          const auto* p = reinterpret_cast<const std::uint64_t*>(memory.get() + i);
          for (int j = 0; j < 8; ++j) sum[j % 4] += p[j];
        }
        sink = sum[0] + sum[1] + sum[2] + sum[3];
      },
      0.3);
  std::printf("%s, %.2f GHz, plain read %.1f GB/s, one thread\n", cpu_name().c_str(), hz * 1e-9, (128 << 20) / read * 1e-9);
  std::printf("format  rows x cols     1 token, 96 MB | multiply-adds a cycle at 1 2 4 5 16 64 128 256 tokens | pack\n");
  for (const FormatInfo& f : kFormats) {
    bool wanted = argc < 2;
    for (int i = 1; i < argc; ++i) wanted = wanted || format_from_name(argv[i]) == f.format;
    if (wanted) measure(f.format, hz);
  }
  return 0;
}
