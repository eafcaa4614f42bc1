// The version of this build.
#pragma once

#include <string_view>

namespace pumice {

// The version of the Python package that this build belongs to, as in "0.1.0" or "0.1.1.dev3+g0123abc" (PEP 440), or "0+cmake" in a build
// with CMake alone.
std::string_view version();

}  // namespace pumice
