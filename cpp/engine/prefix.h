// The prefix tree: which cached page continues which. It is a trie whose edges are the token ids of a page, kept as one ordered map.
// A key holds the ids themselves, so equal keys are equal texts, without a hash. In the order of keys, the entry with the most ids in
// common with a text is one of the two neighbours of the text's own place.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>

#include "core/program.h"

namespace pumice::engine {

class PrefixTree {
 public:
  // The parent of the first pages of texts whose rope is at this stage (RopeTable::stage): texts of other stages have other keys, and share
  // no pages. Names of pages count from 1, and none is used twice.
  static constexpr std::uint64_t root(std::int64_t stage) {
    return stage == 0 ? 0 : std::uint64_t{1} << 63 | static_cast<std::uint64_t>(stage);
  }

  struct Key {
    std::uint64_t parent;
    std::array<std::int32_t, kPageTokens> ids;  // unused ones at the end are -1
    auto operator<=>(const Key&) const = default;
  };
  using Entry = std::map<Key, std::int32_t>::iterator;

  struct Match {
    std::int32_t page = -1, tokens = 0;  // tokens: ids in common from the first on
  };

  // The child of `parent` with the most of `ids` (at most kPageTokens) in common.
  Match longest(std::uint64_t parent, std::span<const std::int32_t> ids) const;
  // The key must be new: longest() had fewer tokens in common than ids.size().
  Entry insert(std::uint64_t parent, std::span<const std::int32_t> ids, std::int32_t page);
  void erase(Entry entry) { pages_.erase(entry); }
  std::size_t size() const { return pages_.size(); }

 private:
  static Key key(std::uint64_t parent, std::span<const std::int32_t> ids);
  std::map<Key, std::int32_t> pages_;
};

}  // namespace pumice::engine
