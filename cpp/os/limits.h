// The resources that the operating system allows this process to use: processors, memory, address space.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace pumice::os {

int allowed_cpus();  // number of logical processors that this process may use (on Linux, those in its affinity mask)
int usable_cpus();   // allowed_cpus(), but at most the cgroup's cpu quota; at least 1
// Number of physical cores among allowed_cpus(), but at most the cgroup's cpu quota; at least 1. On Apple silicon, the number of
// performance cores.
int default_threads();
std::string cpu_model();

// The instructions of 64-bit ARM for dot products of bytes (FEAT_DotProd) and for products of byte matrices (FEAT_I8MM). A member is true
// if both the processor and the system support the instruction. The operating system is asked, because programs cannot ask the processor
// itself. On other processors the result has no meaning.
struct ArmInstructions {
  bool dot_products = false, int8_matrices = false;
};
ArmInstructions arm_instructions();

struct Memory {
  // Numbers of bytes of memory in the machine, or in the cgroup if its limit is lower. `free` is never more than address_space_left().
  std::uint64_t total = 0, free = 0;
};
Memory memory();

// Returns the number of bytes of address space that this process's limits (RLIMIT_AS, RLIMIT_DATA) leave, or an empty optional if there is
// no limit.
std::optional<std::uint64_t> address_space_left();

// Returns the system's setting of transparent huge pages, "always", "madvise" or "never". Returns "unknown" if the setting cannot be read,
// and "none" if the system has no huge pages.
std::string huge_pages();

}  // namespace pumice::os
