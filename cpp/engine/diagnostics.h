// What doctor() and build_info() say about this build and this machine. diagnostics.cpp and devices.cpp alone name the backends.
#pragma once

#include <string>
#include <vector>

namespace pumice::engine {

struct CpuFacts {
  std::string isa;                // the chosen instruction set
  std::vector<std::string> isas;  // all instruction sets that run here, the plainest first
  std::string blas;               // the library's path and configuration, or "none: " and the reason
  int threads = 0;                // the default of load(threads=)
  std::string huge_pages;         // "always", "madvise", "never" or "unknown"
};
CpuFacts cpu_facts();
std::string isa();  // cpu_facts().isa

// A kernel of the chosen instruction set, compared with the scalar one.
struct KernelCheck {
  std::string name;             // "linear Q4_K, int8 activations"
  double error = 0, limit = 0;  // normalised mean squared error
  bool ok = false;
};
std::vector<KernelCheck> check_kernels();  // takes some milliseconds

// Returns the messages of Vulkan's validation layer since the process began (PUMICE_VULKAN_VALIDATION=1).
std::vector<std::string> vulkan_messages();

}  // namespace pumice::engine
