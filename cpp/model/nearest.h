// Finds the most similar name for error messages ("the nearest name is ...").
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace pumice::model {

inline constexpr std::size_t kNamesCompared = 4096;  // enough for any model; bounds the time that a malicious file can take
// Returns the most similar of the first kNamesCompared names, or an empty string if there are none.
std::string_view nearest(std::string_view name, std::span<const std::string> names);

}  // namespace pumice::model
