// The cache pages of a model: those that sequences hold, and those of prefixes that are kept because a later prompt may begin with them.
//
// Pages one by one are in a PageBook. Full pages that a sequence has computed enter the prefix tree at once, so that others share them; its
// last, partly filled page enters when the sequence ends, and a sequence that continues it gets a copy. Storage grows in steps up to the
// byte budget, then kept pages go.
//
// Thread-safe. The lock is held for bookkeeping and growth, never while a device computes. The child of a fork() has the kept pages and
// the parked tables; pages of sequences that ran in the parent's threads are free there.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/at_fork.h"
#include "engine/lock_order.h"
#include "engine/page_book.h"
#include "engine/pipeline.h"

namespace pumice::engine {

class PagePool;

// The pages of one sequence. PagePool fills it, its destructor gives the pages back, and one thread at a time uses it.
class PageTable {
 public:
  PageTable() = default;
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;
  ~PageTable();
  std::span<const std::int32_t> pages() const { return pages_; }

 private:
  friend class PagePool;
  PagePool* pool_ = nullptr;
  std::vector<std::int32_t> pages_;
  std::uint64_t root_ = 0;      // root of the prefix tree that its pages are in (PrefixTree::root)
  std::int32_t published_ = 0;  // how many of its first pages are in the tree; the others belong to this table alone
  std::uint64_t parked_ = 0;    // number of its parking; 0: it is not parked
  std::uint64_t process_ = 0;   // PagePool::process_ when it was filled
  bool lost_ = false;           // its pages were taken while it was parked
};

class PagePool {
 public:
  struct Stats {
    std::uint64_t prompt_tokens = 0, reused_tokens = 0, pages_evicted = 0;
    std::int64_t pages_in_use = 0, pages_cached = 0, pages_reserved = 0, pages_budget = 0;
    std::uint64_t page_bytes = 0;
  };

  PagePool(CacheSet caches, std::uint64_t budget_bytes);

  CacheSet& caches() { return caches_; }
  std::int64_t max_tokens() const;  // most tokens of one sequence inside the budget
  // Throws out_of_memory, with the numbers, where the pool can never hold a sequence of so many tokens.
  void check_fits(std::int64_t tokens) const;

  // Gives an empty table pages for all of `ids` and says how many of its tokens are computed already (fewer than ids.size(), so that the
  // last one's logits can be had, and at most `sharable`). `spare`: pages that must be left over. `stage`: of the text's rope, whose pages
  // alone are shared. nullopt: there is no room now; nothing has changed.
  std::optional<std::int32_t> acquire(PageTable& table, std::span<const std::int32_t> ids, std::int64_t sharable = kAll,
                                      std::int64_t spare = 0, std::int64_t stage = 0);
  static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
  // How many tokens acquire() would find.
  std::int32_t cached_tokens(std::span<const std::int32_t> ids, std::int64_t stage = 0) const;
  // Pages for `tokens` in all; false: there is no room now.
  bool extend(PageTable& table, std::int64_t tokens);
  // Shares the first `tokens` of `from`, all computed, with the empty table `to`: full pages by reference, the last one by copy.
  bool fork(const PageTable& from, std::int32_t tokens, PageTable& to);
  // `computed`: ids whose keys and values are in the table. Enters new full pages into the prefix tree. A page that another sequence has
  // entered meanwhile takes the place of the table's own: equal ids give equal bits.
  void publish(PageTable& table, std::span<const std::int32_t> computed);
  // Empties a table. Pages that are computed are kept as long as there is room.
  void release(PageTable& table, std::span<const std::int32_t> computed);
  void release(PageTable& table) { release(table, {}); }

  // Copies keys and values of a table's pages from `first` on, as bytes (CacheSet::read_pages), for files. write() takes pages that are not
  // published: those from unpublished() on.
  void read(const PageTable& table, std::size_t first, std::span<std::uint8_t> out);
  void write(PageTable& table, std::size_t first, std::span<const std::uint8_t> in);
  static std::size_t unpublished(const PageTable& table) { return static_cast<std::size_t>(table.published_); }
  std::uint64_t page_bytes() const { return page_bytes_; }

  // A sequence that is not scheduled parks its table: its pages may be reclaimed where there is no other room, so no sequence blocks on it.
  // unpark(): false where the pages are gone; the table is then empty, and the sequence is computed again.
  void park(PageTable& table);
  bool unpark(PageTable& table);

  void count_prompt(std::int64_t tokens, std::int64_t reused);
  Stats stats() const;
  // Every count recomputed from the pages themselves; throws when they differ. For tests.
  void self_check() const;

 private:
  // All of these: mutex_ is held.
  std::int32_t take();  // a page, held once; -1: there is no room
  bool grow();
  bool evict();
  bool reclaim();
  void drop_all(PageTable& table);
  void publish_full(PageTable& table, std::span<const std::int32_t> computed);
  bool fill(PageTable& table, std::int64_t pages);
  std::int64_t room() const;
  void copy(std::int32_t from, std::int32_t to);  // without mutex_
  void forget_parent();
  bool left_behind(PageTable& table) const;

  CacheSet caches_;
  const std::uint64_t page_bytes_;
  std::int64_t budget_pages_;  // falls to the pages there are when the device refuses to give more

  mutable OrderedMutex<LockRank::pool> mutex_;
  OrderedMutex<LockRank::storage> storage_mutex_;  // copies and growth
  PageBook book_;
  std::map<std::uint64_t, PageTable*> parked_;  // longest parked first
  std::uint64_t parkings_ = 0;                  // counts them
  std::uint64_t process_ = 1;                   // one more in each child of a fork
  Stats counts_;
  const AtFork at_fork_;
};

}  // namespace pumice::engine
