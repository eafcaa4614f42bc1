// What depends on the processor family: the instruction sets that a processor runs, how far ahead it should prefetch, and two settings of a
// thread that C++ has no words for. Each family has a file processor_FAMILY.cpp, which holds nothing when the compiler compiles for another
// family. Only these files, isa/ and the headers that only isa/ includes may name a family.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"

namespace pumice::cpu {

// runs_NAME() returns whether the processor and the operating system support the instruction set NAME of isa/sets.def.
#define PUMICE_ISA(name, matrix, rows, options) bool runs_##name();
#include "cpu/isa/sets.def"
#undef PUMICE_ISA

Fetches measured_fetches();  // the best prefetch distances for this processor; kUnmeasured if they were not measured

// For processors that were not measured. On Sapphire Rapids with AVX-512 and with AVX2, this is the best. Compared with it, 2 KiB ahead is
// 5 % slower, 1 KiB ahead into L2 15 %, and no prefetch 25 to 30 % (half as much for Q8_0 and Q4_1). On Zen 4, this is within a tenth of
// the best for every format and for 1 to 8 tokens.
inline constexpr Fetches kUnmeasured{.two = {8192, false}, .more = {8192, false}};

void pause_briefly();  // for loops that wait for another thread: lets the other hardware thread of the core run, and saves energy

// While a FloatMode exists, its thread rounds to nearest and keeps denormals. The caller's thread may have another setting (some libraries
// turn on flush-to-zero when they are loaded), which must not change a row's bits. New threads inherit the setting of their creator.
class FloatMode {
 public:
  FloatMode();
  ~FloatMode();
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  std::uint64_t saved_;  // the control register's value before the constructor
};

}  // namespace pumice::cpu
