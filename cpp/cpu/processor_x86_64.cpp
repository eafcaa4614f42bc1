// The functions of processor.h for x86-64. Intel SDM volume 2 and AMD APM volume 3 describe CPUID and XGETBV.
#if defined(__x86_64__)

#include <cpuid.h>
#include <xmmintrin.h>

#include "cpu/processor.h"

namespace pumice::cpu {
namespace {

bool has(unsigned word, int bit) { return (word >> bit & 1) != 0; }

unsigned leaf7(unsigned subleaf, char reg) {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || a < subleaf || !__get_cpuid_count(7, subleaf, &a, &b, &c, &d)) return 0;
  return reg == 'a' ? a : reg == 'b' ? b : c;
}

// Returns the register XCR0, whose bits show which registers the operating system saves. If the operating system does not save the AVX
// registers, AVX instructions fault, even on a processor that supports them.
unsigned saved_state() {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// Prefetch distances, measured on some families of processors. Processors differ most in the distance that their hardware prefetchers run
// ahead of a stream, and in the number of cache lines that can be on the way to L1 at the same time.
struct Measured {
  bool amd;
  unsigned family, first_model, last_model;
  Fetches fetches;
};
constexpr Fetch kL1At2K{2048, false}, kL1At8K = kUnmeasured.two, kL2At1K{1024, true};
constexpr Measured kMeasured[] = {
    // Zen 4. Prefetching 2 KiB ahead into L1 reaches only 20 to 22 of the possible 27 to 30 GB/s, because few cache lines can be on the way
    // to L1 at the same time. For 1 and 2 tokens, 1 KiB ahead into L2 is best.
    {true, 25, 0x10, 0x1f, {kL2At1K, kL1At8K}},
    {true, 25, 0x60, 0x7f, {kL2At1K, kL1At8K}},
    {true, 25, 0xa0, 0xaf, {kL2At1K, kL1At8K}},
    // Zen 3. Compared with 2 KiB ahead, 1 KiB ahead is 5 % slower, and no prefetch is 25 % slower.
    {true, 25, 0x00, 0xff, {kL1At2K, kL1At2K}},
};

}  // namespace

// The bit numbers are those of Intel SDM volume 2, CPUID leaves 1 and 7.
bool runs_avx2() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
  const bool fma = has(c, 12), osxsave = has(c, 27), avx = has(c, 28), f16c = has(c, 29);
  if (!(fma && osxsave && avx && f16c)) return false;
  constexpr unsigned kXmmAndYmm = 0x6;
  if ((saved_state() & kXmmAndYmm) != kXmmAndYmm) return false;
  const unsigned word = leaf7(0, 'b');
  const bool avx2 = has(word, 5), bmi2 = has(word, 8);
  return avx2 && bmi2;
}

// A processor that has AVX-512 but not VNNI (Skylake-X) runs the AVX2 kernels, because AVX-512 would not make its integer products faster.
bool runs_avx512() {
  if (!runs_avx2()) return false;
  constexpr unsigned kUpToZmm = 0xe6;  // bits for XMM, YMM, ZMM and mask registers
  if ((saved_state() & kUpToZmm) != kUpToZmm) return false;
  const unsigned b = leaf7(0, 'b'), c = leaf7(0, 'c');
  const bool f = has(b, 16), dq = has(b, 17), bw = has(b, 30), vl = has(b, 31), vnni = has(c, 11);
  return f && dq && bw && vl && vnni;
}

bool runs_avx512_bf16() { return runs_avx512() && has(leaf7(1, 'a'), 5); }

Fetches measured_fetches() {
  unsigned a, b, c, d;
  if (!__get_cpuid(0, &a, &b, &c, &d)) return kUnmeasured;
  const bool amd = b == 0x68747541;  // "Auth", the beginning of "AuthenticAMD"
  __get_cpuid(1, &a, &b, &c, &d);
  const unsigned family = (a >> 8 & 15) + ((a >> 8 & 15) == 15 ? a >> 20 & 255 : 0), model = (a >> 4 & 15) + (a >> 16 & 15) * 16;
  for (const Measured& row : kMeasured) {
    if (row.amd == amd && row.family == family && model >= row.first_model && model <= row.last_model) return row.fetches;
  }
  return kUnmeasured;
}

void pause_briefly() { _mm_pause(); }

// 0x1F80 means that floating-point exceptions are masked, results are rounded to nearest, and denormals are kept.
FloatMode::FloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
FloatMode::~FloatMode() { _mm_setcsr(static_cast<unsigned>(saved_)); }

}  // namespace pumice::cpu

#endif
