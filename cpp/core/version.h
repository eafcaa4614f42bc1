#pragma once

#include <string_view>

namespace pumice {

// Returns the version of the Python package that this build belongs to, for example "0.1.0" or "0.1.1.dev3+g0123abc" (PEP 440). In a build
// with CMake alone, returns "0+cmake".
std::string_view version();

}  // namespace pumice
