// Finds the most similar name for error messages ("the nearest name is ...").
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace pumice::model {

// Number of names that nearest() compares at most. It is more than any known model has, and limits the time that a malicious file can take.
inline constexpr std::size_t kNamesCompared = 4096;
// Returns the name of `names` that is most similar to `name`, or an empty string if there are no names. Compares only the first
// kNamesCompared names.
std::string_view nearest(std::string_view name, std::span<const std::string> names);

}  // namespace pumice::model
