// Facts about this build and this machine for doctor() and build_info(). Only diagnostics.cpp and devices.cpp know which backends exist.
#pragma once

#include <string>
#include <vector>

namespace pumice::engine {

struct CpuFacts {
  std::string isa;                // the instruction set whose kernels are used
  std::vector<std::string> isas;  // all instruction sets whose kernels can run on this machine, the simplest first
  std::string blas;               // path and configuration of the BLAS library, or "none: " and the reason why there is none
  int threads = 0;                // default of the argument `threads` of load()
  std::string huge_pages;         // the system's setting of transparent huge pages: "always", "madvise", "never" or "unknown"
};
CpuFacts cpu_facts();
std::string isa();  // returns cpu_facts().isa, without collecting the other facts

// Result of comparing a kernel with the scalar kernel for the same operation.
struct KernelCheck {
  std::string name;             // for example "linear Q4_K, int8 activations"
  double error = 0, limit = 0;  // normalised mean squared error, and the largest error that counts as passed
  bool ok = false;
};
std::vector<KernelCheck> check_kernels();  // checks all kernels of the instruction set in use; takes some milliseconds

// Returns all messages from Vulkan's validation layer since the process began. PUMICE_VULKAN_VALIDATION=1 enables that layer.
std::vector<std::string> vulkan_messages();

}  // namespace pumice::engine
