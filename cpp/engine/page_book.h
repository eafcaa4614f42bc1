// The pages of a pool, one by one: each is free, held by sequences (a count), or kept: in the prefix tree, and held by none.
//
// A holder of a page holds all pages before it in its text, so kept pages can always be given up from the leaves of the tree, the longest
// unused first. Bookkeeping alone: it has no lock and no bytes (PagePool).
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "engine/prefix.h"

namespace pumice::engine {

class PageBook {
 public:
  std::int64_t size() const { return static_cast<std::int64_t>(pages_.size()); }
  std::int64_t free() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t kept() const { return kept_; }

  void reserve(std::int64_t pages);  // takes memory for so many pages, so that add() cannot fail
  void add(std::int64_t pages);      // brings size() to `pages`; the new ones are free
  std::int32_t take();               // a free page, held once; -1: none is free
  bool evict();                      // frees the leaf that was unused longest; false: no page is kept
  void hold(std::int32_t page);
  void drop(std::int32_t page);  // one holder less; without a holder, the page is kept where it is in the tree, else free

  // The page that continues `parent` (-1: the beginning of texts under `root`) with the most of `ids`.
  PrefixTree::Match longest(std::int32_t parent, std::uint64_t root, std::span<const std::int32_t> ids) const {
    return tree_.longest(name_of(parent, root), ids);
  }
  // Puts a held page into the tree. A kept page that holds less of the same ids leaves it.
  void enter(std::int32_t page, std::int32_t parent, std::uint64_t root, std::span<const std::int32_t> ids);

  // From now on page i is held holders[i] times: at most as often as before.
  void hold_only(std::span<const std::int32_t> holders);
  // Every count computed anew from the pages; throws where they differ. For tests.
  void self_check() const;

 private:
  struct Page {
    std::int32_t holders = 0;
    std::int32_t children = 0;  // in the tree
    std::int32_t parent = -1;   // page; -1: none
    std::int32_t tokens = 0;    // ids in its key
    std::uint64_t name = 0;     // in the tree; 0: it is not there
    std::uint64_t used = 0;     // when it was last dropped
    PrefixTree::Entry entry;
  };

  void leave(std::int32_t page);
  void free_kept(std::int32_t page);
  std::uint64_t name_of(std::int32_t page, std::uint64_t root) const { return page < 0 ? root : pages_[page].name; }

  PrefixTree tree_;
  std::vector<Page> pages_;
  std::vector<std::int32_t> free_;
  std::set<std::pair<std::uint64_t, std::int32_t>> leaves_;  // kept pages without children, longest unused first
  std::uint64_t clock_ = 0, names_ = 0;
  std::int64_t kept_ = 0;
};

}  // namespace pumice::engine
