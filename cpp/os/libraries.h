// Shared libraries that are opened at run time.
#pragma once

#include <filesystem>
#include <optional>
#include <span>

namespace pumice::os {

// Returns flags of dlopen() for a library whose symbols must not be replaced by those of another copy that the process has loaded globally.
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
