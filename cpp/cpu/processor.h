// The code that depends on the processor family: the instruction sets that a processor runs, its prefetch distances, a pause instruction,
// and the float mode of a thread. C++ has no portable means for these. Each family has a file processor_FAMILY.cpp, which is empty when the
// compiler compiles for another family. Only these files, isa/ and the headers that only isa/ includes may name a family.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"

namespace pumice::cpu {

// runs_NAME() returns whether the processor and the operating system support the instruction set NAME of isa/sets.def.
#define PUMICE_ISA(name, matrix, rows, options) bool runs_##name();
#include "cpu/isa/sets.def"
#undef PUMICE_ISA

Fetches measured_fetches();  // returns the best prefetch distances for this processor, or kUnmeasured if they were not measured

// The prefetch distances for processors that were not measured. They are the best ones on Sapphire Rapids, both with AVX-512 and with AVX2.
// There, 2 KiB ahead is 5 % slower, 1 KiB ahead into L2 is 15 % slower, and no prefetch is 25 to 30 % slower. For Q8_0 and Q4_1, these
// losses are half as large. On Zen 4, the speed with these distances is within a tenth of the best for every format and for 1 to 8 tokens.
inline constexpr Fetches kUnmeasured{.two = {8192, false}, .more = {8192, false}};

// Called in loops that wait for another thread. Lets the other hardware thread of the core run, and saves energy.
void pause_briefly();

// While a FloatMode exists, its thread rounds to nearest and keeps denormals. The caller's thread may have another setting, because some
// libraries turn on flush-to-zero when they are loaded, and that setting must not change the bits of a row. A new thread inherits the
// setting of the thread that creates it.
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
