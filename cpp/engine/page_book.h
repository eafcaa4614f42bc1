// The state of each page of a pool. A page is free, or held by sequences (with a count), or kept: in the prefix tree, but held by no
// sequence.
//
// A sequence that holds a page also holds all earlier pages of its text. So kept pages can always be freed beginning with the leaves of the
// tree, the longest unused first. This class does the bookkeeping alone; PagePool has the lock and the bytes.
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

  void reserve(std::int64_t pages);  // allocates memory for so many pages, so that add() cannot fail
  void add(std::int64_t pages);      // brings size() to `pages`; the new ones are free
  std::int32_t take();               // returns a free page, now held once, or -1 if none is free
  bool evict();                      // frees the leaf that was unused longest. Returns false if no page is kept
  void hold(std::int32_t page);
  void drop(std::int32_t page);  // removes one holder; a page without holders is kept if it is in the tree, else free

  // Returns the child of `parent` whose key has the longest prefix in common with `ids`. parent -1: the pages with which texts under `root`
  // begin.
  PrefixTree::Match longest(std::int32_t parent, std::uint64_t root, std::span<const std::int32_t> ids) const {
    return tree_.longest(name_of(parent, root), ids);
  }
  // Puts a held page into the tree. A kept page whose key is a shorter prefix of the same ids leaves the tree.
  void enter(std::int32_t page, std::int32_t parent, std::uint64_t root, std::span<const std::int32_t> ids);

  // From now on, page i has holders[i] holders, which must not be more than before.
  void hold_only(std::span<const std::int32_t> holders);
  // Computes every count anew from the pages, and throws if one differs. For tests.
  void self_check() const;

 private:
  struct Page {
    std::int32_t holders = 0;
    std::int32_t children = 0;  // number of children in the tree
    std::int32_t parent = -1;   // parent page; -1 if it has none
    std::int32_t tokens = 0;    // number of ids in its key
    std::uint64_t name = 0;     // its name in the tree; 0 if it is not there
    std::uint64_t used = 0;     // time when it was last dropped (clock_)
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
