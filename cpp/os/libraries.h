// Shared libraries that are opened at run time.
#pragma once

#include <filesystem>
#include <optional>
#include <span>

namespace pumice::os {

// Flags of dlopen() for a library whose symbols must not be replaced by those of another copy that the process has loaded globally.
int open_alone_flags();

// Returns the path of the program that runs, or an empty path if it is unknown.
std::filesystem::path program();

struct VulkanLoader {
  std::span<const char* const> names;  // under which it is installed, in the order in which they should be tried
  const char* install;                 // a sentence that says how a user gets it
};
VulkanLoader vulkan_loader();

// A library with cblas_sgemm that is a part of the system.
struct SystemBlas {
  const char *name, *path;
};
std::optional<SystemBlas> system_blas();

}  // namespace pumice::os
