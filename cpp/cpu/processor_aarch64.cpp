// The functions of processor.h for AArch64, the 64-bit ARM architecture. The Arm Architecture Reference Manual (DDI 0487) describes the
// registers and instructions.
#if defined(__aarch64__)

#include "cpu/processor.h"
#include "os/limits.h"

namespace pumice::cpu {

bool runs_neon_dot() { return os::arm_instructions().dot_products; }
bool runs_neon_i8mm() { return os::arm_instructions().dot_products && os::arm_instructions().int8_matrices; }

Fetches measured_fetches() { return kUnmeasured; }  // no processor of this family was measured yet

// Uses ISB, which takes some tens of cycles, because YIELD does nothing on most cores.
void pause_briefly() { asm volatile("isb"); }

// 0 in the register FPCR means that floating-point exceptions are not trapped, results are rounded to nearest, and denormals and the
// payloads of NaN are kept.
FloatMode::FloatMode() {
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}) : "memory");
}
FloatMode::~FloatMode() { asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory"); }

}  // namespace pumice::cpu

#endif
