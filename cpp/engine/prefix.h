// The prefix tree records for each cached page which page comes before it. The tree is a trie: the edge to a page is labelled with the
// token ids of the page. All edges are in one ordered map, whose keys consist of the name of the parent page and the ids of the child page.
// A key contains the ids themselves and not a hash of them, so equal keys mean equal texts. To find the entry that shares the longest
// prefix with some ids, it suffices to look at two entries of the map: those directly before and after the position where a key with these
// ids would be inserted.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>

#include "core/program.h"

namespace pumice::engine {

class PrefixTree {
 public:
  // Returns the name of a root, which is the parent of the first page of every text whose rope is at this stage (RopeTable::stage). Ropes
  // at different stages rotate attention keys differently. So each stage has its own root, and texts at different stages share no pages.
  // Pages are named 1, 2, 3, ..., and no name is used twice, so no page has the name of a root.
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
    // `page` is -1 if no entry matches. `tokens` is the length of the common prefix.
    std::int32_t page = -1, tokens = 0;
  };

  // Returns the child of `parent` whose ids have the longest prefix in common with `ids`. There must be at most kPageTokens ids.
  Match longest(std::uint64_t parent, std::span<const std::int32_t> ids) const;
  // Returns the child of `parent` with exactly these ids, or -1 if there is none.
  std::int32_t find(std::uint64_t parent, std::span<const std::int32_t> ids) const;
  // Inserts a page as a child of `parent`. `parent` must not have a child with the same ids yet.
  Entry insert(std::uint64_t parent, std::span<const std::int32_t> ids, std::int32_t page);
  void erase(Entry entry) { pages_.erase(entry); }
  std::size_t size() const { return pages_.size(); }

 private:
  static Key key(std::uint64_t parent, std::span<const std::int32_t> ids);
  std::map<Key, std::int32_t> pages_;
};

}  // namespace pumice::engine
