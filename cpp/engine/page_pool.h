// The cache pages of a model: pages that sequences hold, and pages of prefixes that are kept because a later prompt may begin with them.
//
// PageBook has the state of each page. Full pages enter the prefix tree as soon as a sequence has computed them, so that other sequences
// share them. The last, partly filled page of a sequence enters when the sequence ends; a sequence that continues it gets a copy. Storage
// grows in steps up to the byte budget; after that, kept pages are evicted.
//
// Thread-safe. The lock is held for bookkeeping and growth, never while a device computes. The child of a fork() has the kept pages and the
// parked tables. Pages of sequences that ran in the parent's threads are free in the child.
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

// The pages of one sequence. PagePool fills it, and its destructor gives the pages back. Only one thread at a time may use it.
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
  std::uint64_t root_ = 0;      // root of the prefix tree for its pages (PrefixTree::root)
  std::int32_t published_ = 0;  // how many of its first pages are in the tree; the others belong to this table alone
  std::uint64_t parked_ = 0;    // a new number each time that it is parked; 0 if it is not parked
  std::uint64_t process_ = 0;   // value of PagePool::process_ when the table was filled
  bool lost_ = false;           // its pages were reclaimed while it was parked
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
  std::int64_t max_tokens() const;  // maximum length of one sequence inside the budget
  // Throws out_of_memory, with the numbers, if the pool can never hold a sequence of so many tokens.
  void check_fits(std::int64_t tokens) const;

  // Gives an empty table pages for all of `ids`. Returns how many of the ids are computed already: at most `sharable`, and fewer than
  // ids.size(), so that the last one's logits are computed. `spare`: number of pages that must be left over. `stage`: the stage of the
  // text's rope; only texts of the same stage share pages. Returns nullopt, and changes nothing, if there is no room now.
  std::optional<std::int32_t> acquire(PageTable& table, std::span<const std::int32_t> ids, std::int64_t sharable = kAll,
                                      std::int64_t spare = 0, std::int64_t stage = 0);
  static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
  // Returns how many computed tokens acquire() would find if it were called now.
  std::int32_t cached_tokens(std::span<const std::int32_t> ids, std::int64_t stage = 0) const;
  // Brings the table to enough pages for `tokens` in all. Returns false if there is no room now.
  bool extend(PageTable& table, std::int64_t tokens);
  // Shares the first `tokens` of `from`, all computed, with the empty table `to`: full pages by reference, the last one by copy.
  bool fork(const PageTable& from, std::int32_t tokens, PageTable& to);
  // `computed`: ids whose keys and values are in the table. Enters new full pages into the prefix tree. If another sequence has entered an
  // equal page meanwhile, that page replaces the table's own, because equal ids have equal bits.
  void publish(PageTable& table, std::span<const std::int32_t> computed);
  // Empties a table. Its computed pages are kept as long as there is room.
  void release(PageTable& table, std::span<const std::int32_t> computed);
  void release(PageTable& table) { release(table, {}); }

  // Copies keys and values of a table's pages from index `first` on, as bytes (CacheSet::read_pages), for files. write() may only write
  // pages that are not published: those from unpublished() on.
  void read(const PageTable& table, std::size_t first, std::span<std::uint8_t> out);
  void write(PageTable& table, std::size_t first, std::span<const std::uint8_t> in);
  static std::size_t unpublished(const PageTable& table) { return static_cast<std::size_t>(table.published_); }
  std::uint64_t page_bytes() const { return page_bytes_; }

  // A sequence that is not scheduled parks its table: if there is no other room, its pages may be reclaimed, so it never blocks another
  // sequence. unpark() returns false if the pages are gone; the table is then empty, and the sequence must be computed again.
  void park(PageTable& table);
  bool unpark(PageTable& table);

  void count_prompt(std::int64_t tokens, std::int64_t reused);
  Stats stats() const;
  // Computes every count anew from the pages, and throws if one differs. For tests.
  void self_check() const;

 private:
  // mutex_ is held in all of these, except copy().
  std::int32_t take();  // returns a page, now held once, or -1 if there is no room
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
  std::int64_t budget_pages_;  // sinks to the number of existing pages when the device refuses to allocate more

  mutable OrderedMutex<LockRank::pool> mutex_;
  OrderedMutex<LockRank::storage> storage_mutex_;  // copies and growth
  PageBook book_;
  std::map<std::uint64_t, PageTable*> parked_;  // longest parked first
  std::uint64_t parkings_ = 0;                  // number of parkings so far
  std::uint64_t process_ = 1;                   // increased by one in each child of a fork
  Stats counts_;
  const AtFork at_fork_;
};

}  // namespace pumice::engine
