// Tracks the state of each page of a pool. A page is either free, or held by at least one sequence, or kept. A kept page is in the prefix
// tree, but no sequence holds it.
//
// A sequence that holds a page also holds all earlier pages of its text. So the descendants of a kept page in the tree are all kept, and
// pages can always be evicted leaf by leaf, the least recently used leaf first. This class only does the bookkeeping. PagePool has the lock
// and the bytes.
//
// The pool of a model with recurrent layers also has states. A state is either free, or it has holders, which are sequences and pages in
// the tree. A page in the tree may have the state after the last of its ids, so that a text that begins with these ids can continue from
// there. States can be evicted without their pages, the least recently used state first.
#pragma once

#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/prefix.h"
#include "engine/reserved_set.h"

namespace pumice::engine {

class PageBook {
 public:
  std::int64_t size() const { return static_cast<std::int64_t>(pages_.size()); }
  std::int64_t free() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t kept() const { return kept_; }

  // Allocates memory for the bookkeeping of `pages` pages in all. After that, no function for pages except enter() allocates memory.
  void reserve(std::int64_t pages);
  void add(std::int64_t pages);  // raises size() to `pages`; the new pages are free
  std::int32_t take();           // takes a free page, which then has one holder; returns -1 if no page is free
  bool evict();                  // frees the kept page that is first in the order of eviction (Leaf); returns false if none is kept
  void hold(std::int32_t page);
  void drop(std::int32_t page);  // removes one holder; a page without holders becomes kept if it is in the tree, else free

  // Returns the child of page `parent` whose key has the longest prefix in common with `ids`. If `parent` is -1, searches the first pages
  // of the texts under `root`.
  PrefixTree::Match longest(std::int32_t parent, std::uint64_t root, std::span<const std::int32_t> ids) const {
    return tree_.longest(name_of(parent, root), ids);
  }
  // Inserts a held page into the tree, with the key `ids`, as a child of `parent`. If the key of a kept child of `parent` is a prefix of
  // `ids`, and the child has no state, the child becomes free, because the new page contains its tokens.
  void enter(std::int32_t page, std::int32_t parent, std::uint64_t root, std::span<const std::int32_t> ids);

  // Returns the child of page `parent` with exactly these ids, or -1 if there is none. If `parent` is -1, searches the first pages of the
  // texts under `root`.
  std::int32_t find(std::int32_t parent, std::uint64_t root, std::span<const std::int32_t> ids) const {
    return tree_.find(name_of(parent, root), ids);
  }

  std::int64_t states() const { return static_cast<std::int64_t>(state_holders_.size()); }
  std::int64_t free_states() const { return static_cast<std::int64_t>(free_states_.size()); }
  std::int64_t kept_states() const { return static_cast<std::int64_t>(snapshots_.size()); }  // number of pages that have a state
  void reserve_states(std::int64_t states);
  void add_states(std::int64_t states);  // raises states() to `states`; the new states are free
  std::int32_t take_state();             // takes a free state, which then has one holder; returns -1 if no state is free
  bool evict_state();                    // detaches the least recently used state from its page; returns false if no page has a state
  void hold_state(std::int32_t state) { ++state_holders_[static_cast<std::size_t>(state)]; }
  void drop_state(std::int32_t state);  // removes one holder; a state without holders becomes free
  // Makes `state` the state after the ids of `page`, which must be in the tree. If the page has a state already, that state stays.
  void attach(std::int32_t page, std::int32_t state);
  std::int32_t state_of(std::int32_t page) const { return pages_[page].state; }  // returns -1 if the page has no state
  void use_state(std::int32_t page);                                             // marks the page's state as used now

  // Sets the number of holders of page i to holders[i], which must not be more than before. Sets the number of holders of state i to
  // state_holders[i], plus one for each page that has this state.
  void hold_only(std::span<const std::int32_t> holders, std::span<const std::int32_t> state_holders);
  // Computes every count again from the pages, and throws if a count differs. For tests.
  void self_check() const;

 private:
  struct Page {
    std::int32_t holders = 0;
    std::int32_t children = 0;     // number of children in the tree
    std::int32_t parent = -1;      // parent page in the tree; -1 if the page has none
    std::int32_t tokens = 0;       // number of ids in the page's key
    std::uint64_t name = 0;        // unique number by which the page's children in the tree refer to the page; 0 outside of the tree
    std::uint64_t used = 0;        // value of clock_ when the page lost its last holder
    std::int32_t state = -1;       // the state after the page's ids; -1 if the page has no state
    std::uint64_t state_used = 0;  // value of clock_ when the state was attached or used
    PrefixTree::Entry entry;
  };
  // A kept page without children, as a tuple of whether the page has a state, Page::used, and the page. Leaves are evicted in ascending
  // order, which is first the leaves without a state, and among these the least recently used leaf.
  using Leaf = std::tuple<bool, std::uint64_t, std::int32_t>;
  Leaf leaf(std::int32_t page) const { return {pages_[page].state >= 0, pages_[page].used, page}; }
  void detach(std::int32_t page);

  void leave(std::int32_t page);
  void free_kept(std::int32_t page);
  std::uint64_t name_of(std::int32_t page, std::uint64_t root) const { return page < 0 ? root : pages_[page].name; }

  PrefixTree tree_;
  std::vector<Page> pages_;
  std::vector<std::int32_t> free_;
  ReservedSet<Leaf> leaves_;  // kept pages without children, in the order of eviction
  ReservedSet<std::pair<std::uint64_t, std::int32_t>>
      snapshots_;  // (state_used, page) of each page with a state, least recently used first
  std::vector<std::int32_t> state_holders_, free_states_;
  std::uint64_t clock_ = 0, names_ = 0;
  std::int64_t kept_ = 0;
};

}  // namespace pumice::engine
