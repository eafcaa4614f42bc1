// The functions of processor.h for processor families without a file of their own. These families run the scalar kernels in the float mode
// of the caller's thread.
#if !defined(__x86_64__) && !defined(__aarch64__)

#include "cpu/processor.h"

namespace pumice::cpu {

Fetches measured_fetches() { return kUnmeasured; }

void pause_briefly() {}

FloatMode::FloatMode() : saved_(0) {}
FloatMode::~FloatMode() = default;

}  // namespace pumice::cpu

#endif
