#include "engine/token_counts.h"

#include <algorithm>

namespace pumice::engine {

std::size_t TokenCounts::place(std::int32_t id) const {
  const std::size_t mask = table_.size() - 1;
  std::size_t at = (static_cast<std::uint32_t>(id) * 2654435769u) & mask;  // Fibonacci hashing
  while (table_[at].id >= 0 && table_[at].id != id) at = (at + 1) & mask;
  return at;
}

void TokenCounts::add(std::int32_t id, bool generated) {
  if (2 * (used_ + 1) > table_.size()) {
    std::vector<Entry> old(std::max<std::size_t>(64, 2 * table_.size()));
    old.swap(table_);
    for (const Entry& entry : old)
      if (entry.id >= 0) table_[place(entry.id)] = entry;
  }
  Entry& entry = table_[place(id)];
  if (entry.id < 0) ++used_;
  entry.id = id;
  entry.generated += generated;
}

std::optional<std::int32_t> TokenCounts::generated(std::int32_t id) const {
  if (table_.empty()) return {};
  const Entry& entry = table_[place(id)];
  return entry.id < 0 ? std::nullopt : std::optional(entry.generated);
}

void ChangedIds::add(std::int32_t id) {
  if (!fit()) return;
  const auto at = std::lower_bound(ids_.begin(), ids_.end(), id);
  if (at == ids_.end() || *at != id) ids_.insert(at, id);
}

}  // namespace pumice::engine
