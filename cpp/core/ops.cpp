#include "core/ops.h"

#include <cmath>
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

std::span<const float> RopeFrequencies::of(std::int64_t length) {
  if (table_.stage(length) == 0) return table_.inv_freq;
  if (!table_.long_inv_freq.empty()) return table_.long_inv_freq;
  if (length == made_for_) return made_;
  made_.resize(table_.inv_freq.size());
  // Computes in float32, as Hugging Face's transformers library does.
  const auto dims = static_cast<float>(2 * made_.size());
  const float stretch = table_.growth * static_cast<float>(length) / static_cast<float>(table_.original) - (table_.growth - 1);
  const float base = table_.base * std::pow(stretch, dims / (dims - 2));
  for (std::size_t j = 0; j < made_.size(); ++j) made_[j] = 1.0f / std::pow(base, static_cast<float>(2 * j) / dims);
  made_for_ = length;
  return made_;
}

}  // namespace pumice
