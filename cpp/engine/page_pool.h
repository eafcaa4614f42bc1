// The key-value cache of a model, divided into pages. Some pages are held by sequences. Others are kept after their sequences have ended,
// because a later prompt may begin with the same tokens.
//
// PageBook tracks the state of each page. A full page enters the prefix tree as soon as its sequence has computed it, so that other
// sequences can share it. The last, partly filled page of a sequence enters the tree when the sequence ends. A sequence that continues this
// page gets a copy of it. Storage grows in steps up to the byte budget. After that, kept pages are evicted.
//
// Thread-safe. The lock is held for bookkeeping and growth, never while a device computes. In the child of a fork(), kept pages and parked
// tables stay as they were. All other tables lose their pages in the child. Pages of such a table that are in the prefix tree become kept
// pages, and its other pages become free.
//
// Models with recurrent layers also have states. A table has the state after its computed tokens, and fresh states, which the next step
// writes. A state that was written never changes. A text can continue only from a position whose state is known. So acquire() finds tokens
// only up to the last page that has a state, and steps leave states at some page ends (snapshots).
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/at_fork.h"
#include "engine/cache_budget.h"
#include "engine/lock_order.h"
#include "engine/page_book.h"
#include "engine/pipeline.h"

namespace pumice::engine {

class PagePool;

// The pages of one sequence. PagePool fills the table, and the table's destructor releases the pages. Only one thread at a time may use a
// table.
class PageTable {
 public:
  PageTable() = default;
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;
  ~PageTable();
  std::span<const std::int32_t> pages() const { return pages_; }

  // Returns the state after the table's computed tokens, or -1 if no token is computed or the model has no states.
  std::int32_t state() const { return state_; }
  // Returns the states that the next step writes. A step writes the state after its last row. A step with guesses writes the state after
  // the sequence's last id and the state after each guess.
  std::span<const std::int32_t> fresh() const { return fresh_; }
  struct Snapshot {
    std::int64_t tokens;  // `state` is the state after this many tokens of the text; these tokens fill whole pages
    std::int32_t state;
  };
  // Returns the states that the next step writes for the prefix tree, ascending by tokens.
  std::span<const Snapshot> snapshots() const { return snapshots_; }
  // Returns how many of the text's tokens were found in full pages of the prefix tree when the pages were acquired. In a model with states,
  // the sequence may have to compute some of these tokens again, because the tree has states only at some positions.
  std::int64_t known() const { return known_; }

 private:
  friend class PagePool;
  PagePool* pool_ = nullptr;
  std::vector<std::int32_t> pages_;
  std::uint64_t root_ = 0;      // root under which the pages are in the prefix tree (PrefixTree::root)
  std::int32_t published_ = 0;  // how many pages, from the first on, are in the prefix tree; only this table holds the other pages
  std::uint64_t parked_ = 0;    // key in PagePool::parked_; 0 if the table is not parked
  std::uint64_t process_ = 0;   // value of PagePool::process_ when the table was filled
  bool lost_ = false;           // true if the pages were reclaimed while the table was parked
  std::int32_t state_ = -1;
  std::vector<std::int32_t> fresh_;
  std::vector<Snapshot> snapshots_;
  std::int64_t known_ = 0;
};

class PagePool {
 public:
  struct Stats {
    std::uint64_t prompt_tokens = 0, reused_tokens = 0, pages_evicted = 0;
    std::int64_t pages_in_use = 0, pages_cached = 0, pages_reserved = 0, pages_budget = 0;
    std::int64_t states_in_use = 0, states_cached = 0, states_reserved = 0, states_budget = 0;
    std::uint64_t page_bytes = 0, state_bytes = 0;
  };

  PagePool(CacheSet caches, std::uint64_t budget_bytes);

  CacheSet& caches() { return caches_; }
  std::int64_t max_tokens() const;  // maximum number of tokens of one sequence within the budget
  // Throws out_of_memory if the pool can never hold a sequence of `tokens` tokens. The message says how much such a sequence needs and how
  // much the budget holds.
  void check_fits(std::int64_t tokens) const;

  // Allocates pages for all of `ids` in an empty table. Pages that are in the prefix tree are shared. Returns how many ids, from the first
  // on, are already computed. This number is at most `sharable`, and less than ids.size(), so that the last id is computed and yields
  // logits. `spare` is the number of pages that must be left for other sequences. Only texts with the same `stage` share pages
  // (Runtime::rope_stage). If there are too few pages now, returns nullopt and leaves the table empty.
  std::optional<std::int32_t> acquire(PageTable& table, std::span<const std::int32_t> ids, std::int64_t sharable = kAll,
                                      std::int64_t spare = 0, std::int64_t stage = 0);
  static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
  // Returns how many computed tokens acquire() would find for `ids` if it were called now.
  std::int32_t cached_tokens(std::span<const std::int32_t> ids, std::int64_t stage = 0) const;
  // Adds pages to the table until they suffice for `tokens` tokens in all, and adds or drops fresh states until there are `states` of them.
  // If there are too few pages or states now, returns false and adds no pages.
  bool extend(PageTable& table, std::int64_t tokens, std::int64_t states = 1);
  // Fills the empty table `to` with the first `tokens` tokens of `from`, which must all be computed. Full pages are shared, and a partly
  // filled last page is copied. Returns false if there is no page for the copy.
  bool fork(const PageTable& from, std::int32_t tokens, PageTable& to);
  // Enters the table's new full pages into the prefix tree. `computed` holds the ids whose keys and values are in the table. If another
  // sequence has entered an equal page in the meantime, the table takes that page in place of its own. Both pages contain the same bits,
  // because equal texts have equal keys and values.
  void publish(PageTable& table, std::span<const std::int32_t> computed);
  // Must be called before a step. For each element n of `tokens`, takes a state for a snapshot after the first n tokens of the text, until
  // no state is left. The elements must ascend and be multiples of kPageTokens. Like advance() and keep_state(), does nothing in a model
  // without states.
  void plan_snapshots(PageTable& table, std::span<const std::int64_t> tokens);
  // Must be called after a step. Removes the first state from fresh() and makes it state(), the state after the table's computed tokens.
  void advance(PageTable& table);
  // Puts the table's state into the prefix tree. The state must be the one after `tokens` tokens, which must fill published pages.
  void keep_state(PageTable& table, std::int64_t tokens);

  // Empties a table. Its pages with the `computed` ids, and its state, stay in the prefix tree until they are evicted.
  void release(PageTable& table, std::span<const std::int32_t> computed);
  void release(PageTable& table) { release(table, {}); }

  // read() copies the bytes of the table's pages, from index `first` on, to `out` (CacheSet::read_pages). write() copies such bytes back.
  // It may write only pages with an index of unpublished() or more, because other tables may share the published pages. read_state() and
  // write_state() do the same for the state after the table's tokens (CacheSet::read_state). These functions save and load prefix files.
  void read(const PageTable& table, std::size_t first, std::span<std::uint8_t> out);
  void write(PageTable& table, std::size_t first, std::span<const std::uint8_t> in);
  static std::size_t unpublished(const PageTable& table) { return static_cast<std::size_t>(table.published_); }
  void read_state(const PageTable& table, std::span<std::uint8_t> out);
  void write_state(PageTable& table, std::span<const std::uint8_t> in);
  std::uint64_t page_bytes() const { return units_.page_bytes; }
  std::uint64_t state_bytes() const { return units_.state_bytes; }
  bool has_states() const { return units_.state_bytes > 0; }

  // park() must be called for a sequence that takes part in no further step for now. If the pool has no other pages, it reclaims the pages
  // of parked tables, so that such a sequence never blocks another one. If the table's pages were reclaimed, unpark() returns false, and
  // the table is empty. The sequence must then be computed again.
  void park(PageTable& table);
  bool unpark(PageTable& table);

  void count_prompt(std::int64_t tokens, std::int64_t reused);
  Stats stats() const;
  // Computes every count again from the pages, and throws if a count differs. For tests.
  void self_check() const;

 private:
  // The caller holds mutex_ in all of these functions except copy().
  std::int32_t take();        // takes a page, which then has one holder; returns -1 if there is no page left
  std::int32_t take_state();  // takes a state, which then has one holder; returns -1 if there is no state left
  bool grow();
  bool grow_states();
  std::int32_t spare_state();
  bool fill_states(PageTable& table, std::int64_t states);
  void drop_states(PageTable& table);
  void drop_snapshots(PageTable& table);
  void keep_end(PageTable& table, std::span<const std::int32_t> rest);
  struct Found {
    std::vector<std::int32_t> pages;  // full pages in the tree that the text begins with
    std::size_t used = 0;             // how many of `pages` need not be computed again
    // The page after the used pages, if only some of its first tokens belong to the text. -1 if there is no such page.
    std::int32_t partial = -1;
    std::int32_t partial_tokens = 0;  // number of tokens of `partial` that belong to the text
    std::int32_t state_page = -1;     // the page from whose state the text continues; -1 if there is none
    std::int32_t tokens() const { return static_cast<std::int32_t>(used) * kPageTokens + partial_tokens; }
  };
  Found find(std::span<const std::int32_t> ids, std::uint64_t root) const;
  void find_state(Found& found, std::span<const std::int32_t> ids, std::uint64_t root) const;
  bool evict();
  bool reclaim();
  void drop_all(PageTable& table);
  void publish_full(PageTable& table, std::span<const std::int32_t> computed);
  void publish_ended(PageTable& table, std::span<const std::int32_t> computed);
  bool fill(PageTable& table, std::int64_t pages);
  std::int64_t room() const;
  void copy(std::int32_t from, std::int32_t to);  // called without mutex_
  void forget_parent();
  bool left_behind(PageTable& table) const;

  CacheSet caches_;
  const CacheUnits units_;
  // Maximum numbers of pages and of states. If the device refuses to allocate more, the maximum falls to the number that exists.
  std::int64_t budget_pages_, budget_states_;

  mutable OrderedMutex<LockRank::pool> mutex_;
  OrderedMutex<LockRank::storage> storage_mutex_;  // held while page contents are copied and while the storage grows
  PageBook book_;
  std::map<std::uint64_t, PageTable*> parked_;  // parked tables by PageTable::parked_, so that the table parked longest ago comes first
  std::uint64_t parkings_ = 0;                  // how many times a table was parked so far
  std::uint64_t process_ = 1;                   // increased by one in each child of a fork
  Stats counts_;
  const AtFork at_fork_;
};

}  // namespace pumice::engine
