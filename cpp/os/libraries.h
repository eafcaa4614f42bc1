// Shared libraries that are opened at run time.
#pragma once

#include <filesystem>
#include <optional>
#include <span>

namespace pumice::os {

// Returns the flags of dlopen() that make a library use its own symbols, even if another copy of the library is loaded in the process with
// global symbols.
int open_alone_flags();

// Returns the path of the program that this process runs, or an empty path if it is unknown.
std::filesystem::path program();

struct VulkanLoader {
  std::span<const char* const> names;  // names under which the loader may be installed, in the order in which they should be tried
  const char* install;                 // a sentence that tells a user how to install the loader
};
VulkanLoader vulkan_loader();

// A library that is part of the system and has cblas_sgemm.
struct SystemBlas {
  const char *name, *path;
};
std::optional<SystemBlas> system_blas();

}  // namespace pumice::os
