// Chooses the kernels, once, by what the processor and the operating system support.
#include "cpu/kernels.h"

#include <cpuid.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace pumice::cpu {
namespace {

bool has(unsigned word, int bit) { return (word >> bit & 1) != 0; }

unsigned leaf7(unsigned subleaf, char reg) {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || a < subleaf || !__get_cpuid_count(7, subleaf, &a, &b, &c, &d)) return 0;
  return reg == 'a' ? a : reg == 'b' ? b : c;
}

// Returns XCR0, which says which registers the operating system saves. If it does not save the AVX registers, AVX instructions fault, even
// on a processor that supports them.
unsigned saved_state() {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

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
  constexpr unsigned kUpToZmm = 0xe6;  // XMM, YMM, ZMM and mask registers
  if ((saved_state() & kUpToZmm) != kUpToZmm) return false;
  const unsigned b = leaf7(0, 'b'), c = leaf7(0, 'c');
  const bool f = has(b, 16), dq = has(b, 17), bw = has(b, 30), vl = has(b, 31), vnni = has(c, 11);
  return f && dq && bw && vl && vnni;
}

bool runs_avx512_bf16() { return runs_avx512() && has(leaf7(1, 'a'), 5); }

// An instruction set, and whether this machine runs it.
struct Known {
  bool runs;
  Kernels kernels;
};
// Returns all instruction sets, best first.
const std::array<Known, 4>& known() {
  static const std::array<Known, 4> all = {Known{runs_avx512_bf16(), {"avx512_bf16", kMatrixAvx512Bf16, kRowsAvx512}},
                                           Known{runs_avx512(), {"avx512", kMatrixAvx512, kRowsAvx512}},
                                           Known{runs_avx2(), {"avx2", kMatrixAvx2, kRowsAvx2}},
                                           Known{true, {"scalar", kMatrixScalar, kRowsScalar}}};
  return all;
}

const Kernels& choose() {
  const char* wanted = std::getenv("PUMICE_ISA");
  std::string names, here;
  for (const Known& candidate : known()) {
    const std::string separator = names.empty() ? "" : ", ";
    names += separator + candidate.kernels.isa;
    if (!candidate.runs) continue;
    here += (here.empty() ? "" : ", ") + std::string(candidate.kernels.isa);
    if (wanted == nullptr || *wanted == '\0' || std::string_view(wanted) == candidate.kernels.isa) return candidate.kernels;
  }
  fail(ErrorKind::invalid_argument, "the environment variable PUMICE_ISA is \"", wanted, "\"; known are ", names,
       ", and this machine runs ", here, ". Unset it to take the best one");
}

// Prefetch distances, measured on some families of processors. Processors differ most in how far their hardware prefetchers run ahead of a
// stream, and in how many lines can be in flight to L1 at once.
struct Measured {
  bool amd;
  unsigned family, first_model, last_model;
  Fetches fetches;
};
constexpr Fetch kL1At2K{2048, false}, kL1At8K{8192, false}, kL2At1K{1024, true};
constexpr Measured kMeasured[] = {
    // Zen 4. Prefetching 2 KiB ahead into L1 gives 20 to 22 GB/s of the possible 27 to 30, because few fills of L1 can be in flight at
    // once. For 1 and 2 tokens, 1 KiB ahead into L2 is best.
    {true, 25, 0x10, 0x1f, {kL2At1K, kL1At8K}},
    {true, 25, 0x60, 0x7f, {kL2At1K, kL1At8K}},
    {true, 25, 0xa0, 0xaf, {kL2At1K, kL1At8K}},
    // Zen 3. Compared with 2 KiB ahead, 1 KiB ahead is 5 % slower, and no prefetch is 25 % slower.
    {true, 25, 0x00, 0xff, {kL1At2K, kL1At2K}},
};
// For all other processors. Measured on Sapphire Rapids with AVX-512 and with AVX2, this is the best. Compared with it, 2 KiB ahead is 5 %
// slower, 1 KiB ahead into L2 15 %, and no prefetch 25 to 30 % (half as much for Q8_0 and Q4_1). On Zen 4, this is within a tenth of the
// best for every format and for 1 to 8 tokens.
constexpr Fetches kOthers{kL1At8K, kL1At8K};

Fetches choose_fetches() {
  unsigned a, b, c, d;
  if (!__get_cpuid(0, &a, &b, &c, &d)) return kOthers;
  const bool amd = b == 0x68747541;  // "Auth"
  __get_cpuid(1, &a, &b, &c, &d);
  const unsigned family = (a >> 8 & 15) + ((a >> 8 & 15) == 15 ? a >> 20 & 255 : 0), model = (a >> 4 & 15) + (a >> 16 & 15) * 16;
  for (const Measured& row : kMeasured) {
    if (row.amd == amd && row.family == family && model >= row.first_model && model <= row.last_model) return row.fetches;
  }
  return kOthers;
}

}  // namespace

const Fetches& fetches() {
  static const Fetches chosen = choose_fetches();
  return chosen;
}

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

std::span<const char* const> known_isas() {
  static const auto names = [] {
    std::array<const char*, std::tuple_size_v<std::remove_cvref_t<decltype(known())>>> all;
    std::transform(known().rbegin(), known().rend(), all.begin(), [](const Known& candidate) { return candidate.kernels.isa; });
    return all;
  }();
  return names;
}

const Kernels* kernels_for(const char* isa) {
  for (const Known& candidate : known()) {
    if (candidate.runs && std::string_view(isa) == candidate.kernels.isa) return &candidate.kernels;
  }
  return nullptr;
}

std::int64_t kv_page_bytes(KvFormat format, int key_dim, int value_dim) {
  for (const auto& [dim, most] : {std::pair(key_dim, kMaxKeyDim), std::pair(value_dim, kMaxValueDim)}) {
    if (dim < 1 || dim > most)
      fail(ErrorKind::unsupported_model, "attention heads have ", dim, " dimensions; this version runs 1 to ", most);
  }
  const std::int64_t values = std::int64_t{kPageTokens} * (std::int64_t{key_dim} + value_dim);
  switch (format) {
    case KvFormat::f16:
      return values * 2;
    case KvFormat::f32:
      return values * 4;
    case KvFormat::q8_0:
      return (values + 2 * kPageTokens * static_cast<std::int64_t>(sizeof(float)) + 63) / 64 * 64;
  }
  fail(ErrorKind::invalid_argument, "unknown cache format ", static_cast<int>(format));
}

}  // namespace pumice::cpu
