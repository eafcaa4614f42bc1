// Finds the most similar name for error messages ("the nearest name is ...").
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace pumice::model {

// Maximum number of names that nearest() compares. No known model has more names. The limit keeps the time short if a malicious file has
// very many.
inline constexpr std::size_t kNamesCompared = 4096;
// Returns the name of `names` that is most similar to `name`, or an empty string if there are no names. Compares only the first
// kNamesCompared names.
std::string_view nearest(std::string_view name, std::span<const std::string> names);

}  // namespace pumice::model
