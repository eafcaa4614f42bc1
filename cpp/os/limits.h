// What the operating system gives this process: processors, memory, address space.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace pumice::os {

int allowed_cpus();     // logical processors that this process may use (Linux: its affinity mask)
int usable_cpus();      // allowed_cpus(), limited by the cgroup's cpu quota; at least 1
int default_threads();  // physical cores of allowed_cpus(), limited by the same quota; at least 1. On Apple silicon, the performance cores
std::string cpu_model();

// Instructions of 64-bit ARM that both the processor and the system support: dot products of bytes (FEAT_DotProd) and products of byte
// matrices (FEAT_I8MM). Programs cannot ask the processor itself. Means nothing on other processors.
struct ArmInstructions {
  bool dot_products = false, int8_matrices = false;
};
ArmInstructions arm_instructions();

struct Memory {
  // Bytes of the machine, or of the cgroup where that is less. `free` is at most what address_space_left() says.
  std::uint64_t total = 0, free = 0;
};
Memory memory();

// Returns the bytes of address space that this process's limits (RLIMIT_AS, RLIMIT_DATA) leave, or nothing if there is no limit.
std::optional<std::uint64_t> address_space_left();

// Returns the setting of transparent huge pages: "always", "madvise", "never" or "unknown"; "none" where the system has none.
std::string huge_pages();

}  // namespace pumice::os
