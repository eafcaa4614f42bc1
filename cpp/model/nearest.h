// "Did you mean": the name that differs least.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace pumice::model {

inline constexpr std::size_t kNamesCompared = 4096;  // enough for any model, bounded for a bomb
// Looks at the first kNamesCompared names; empty where there are none.
std::string_view nearest(std::string_view name, std::span<const std::string> names);

}  // namespace pumice::model
