#include "engine/prefix.h"

#include <algorithm>
#include <iterator>

namespace pumice::engine {

PrefixTree::Key PrefixTree::key(std::uint64_t parent, std::span<const std::int32_t> ids) {
  Key key{parent, {}};
  key.ids.fill(-1);
  std::copy(ids.begin(), ids.end(), key.ids.begin());
  return key;
}

PrefixTree::Match PrefixTree::longest(std::uint64_t parent, std::span<const std::int32_t> ids) const {
  Match best;
  const auto look = [&](const std::pair<const Key, std::int32_t>& entry) {
    if (entry.first.parent != parent) return;
    const auto common = std::mismatch(ids.begin(), ids.end(), entry.first.ids.begin()).first - ids.begin();
    if (common > best.tokens) best = {entry.second, static_cast<std::int32_t>(common)};
  };
  const auto next = pages_.lower_bound(key(parent, ids));
  if (next != pages_.end()) look(*next);
  if (next != pages_.begin()) look(*std::prev(next));
  return best;
}

std::int32_t PrefixTree::find(std::uint64_t parent, std::span<const std::int32_t> ids) const {
  const auto found = pages_.find(key(parent, ids));
  return found == pages_.end() ? -1 : found->second;
}

PrefixTree::Entry PrefixTree::insert(std::uint64_t parent, std::span<const std::int32_t> ids, std::int32_t page) {
  return pages_.emplace(key(parent, ids), page).first;
}

}  // namespace pumice::engine
