// What doctor() and build_info() tell of this build and this machine. With devices.h the only look from above at a backend.
#pragma once

#include <string>
#include <vector>

namespace pumice::engine {

struct CpuFacts {
  std::string isa;                // the chosen instruction set
  std::vector<std::string> isas;  // all that run here, plainest first
  std::string blas;               // path and what the library says of itself, or "none: " and why
  int threads = 0;                // of a model that is given no number
  std::string huge_pages;         // "always", "madvise", "never" or "unknown"
};
CpuFacts cpu_facts();
std::string isa();  // cpu_facts().isa

// A kernel of the chosen instruction set against the scalar one.
struct KernelCheck {
  std::string name;             // "linear Q4_K, int8 activations"
  double error = 0, limit = 0;  // normalised mean squared error
  bool ok = false;
};
std::vector<KernelCheck> check_kernels();  // some milliseconds

// What Vulkan's validation layer said since the process began (PUMICE_VULKAN_VALIDATION=1).
std::vector<std::string> vulkan_messages();

}  // namespace pumice::engine
