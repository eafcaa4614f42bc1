// The prefix tree: it knows which cached page continues which. It is a trie whose edges are the token ids of a page, stored as one ordered
// map. A key contains the ids themselves and no hash, so equal keys are equal texts. In the order of keys, the entry that has the most ids
// in common with a text is one of the two neighbours of the text's own key.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>

#include "core/program.h"

namespace pumice::engine {

class PrefixTree {
 public:
  // Returns the parent of the first pages of texts whose rope is at this stage (RopeTable::stage). Texts of different stages have different
  // keys, so they share no pages. Names of pages count from 1, and none is used twice.
  static constexpr std::uint64_t root(std::int64_t stage) {
    return stage == 0 ? 0 : std::uint64_t{1} << 63 | static_cast<std::uint64_t>(stage);
  }

  struct Key {
    std::uint64_t parent;
    std::array<std::int32_t, kPageTokens> ids;  // unused entries at the end are -1
    auto operator<=>(const Key&) const = default;
  };
  using Entry = std::map<Key, std::int32_t>::iterator;

  struct Match {
    std::int32_t page = -1, tokens = 0;  // tokens: number of ids in common, from the first on
  };

  // Returns the child of `parent` whose key has the longest prefix in common with `ids` (at most kPageTokens).
  Match longest(std::uint64_t parent, std::span<const std::int32_t> ids) const;
  // Inserts a page. Its key must be new: longest() has found fewer ids in common than ids.size().
  Entry insert(std::uint64_t parent, std::span<const std::int32_t> ids, std::int32_t page);
  void erase(Entry entry) { pages_.erase(entry); }
  std::size_t size() const { return pages_.size(); }

 private:
  static Key key(std::uint64_t parent, std::span<const std::int32_t> ids);
  std::map<Key, std::int32_t> pages_;
};

}  // namespace pumice::engine
