// AArch64, the 64-bit ARM architecture. The Arm Architecture Reference Manual (DDI 0487) describes the registers and instructions.
#if defined(__aarch64__)

#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "cpu/processor.h"

namespace pumice::cpu {

// Linux says in the auxiliary vector what both it and the processor support. Under an operating system that is not asked here, the scalar
// kernels run.
#if defined(__linux__)
bool runs_neon_dot() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
bool runs_neon_i8mm() { return runs_neon_dot() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0; }
#else
bool runs_neon_dot() { return false; }
bool runs_neon_i8mm() { return false; }
#endif

Fetches measured_fetches() { return kUnmeasured; }  // none was measured yet

// YIELD does nothing on most cores, and ISB takes some tens of cycles.
void pause_briefly() { asm volatile("isb"); }

// The register FPCR: 0 means that no exception is raised, results are rounded to nearest, and denormals and the payloads of NaN stay.
FloatMode::FloatMode() {
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}) : "memory");
}
FloatMode::~FloatMode() { asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory"); }

}  // namespace pumice::cpu

#endif
