#include "core/ops.h"

#include <utility>

namespace pumice {

std::string snake_case(std::string_view name) {
  std::string snake;
  for (const char c : name) {
    const bool upper = c >= 'A' && c <= 'Z';
    if (upper && !snake.empty()) snake += '_';
    snake += upper ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return snake;
}

std::vector<std::string> op_names() {
  return []<std::size_t... i>(std::index_sequence<i...>) {
    return std::vector<std::string>{snake_case(std::variant_alternative_t<i, Op>::kName)...};
  }(std::make_index_sequence<std::variant_size_v<Op>>());
}

}  // namespace pumice
