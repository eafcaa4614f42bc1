// The key-value cache of a model, divided into pages. Some pages are held by sequences. Others are kept after their sequences have ended,
// because a later prompt may begin with the same tokens.
//
// PageBook tracks the state of each page. A full page enters the prefix tree as soon as its sequence has computed it, so that other
// sequences can share it. The last, partly filled page of a sequence enters the tree when the sequence ends. A sequence that continues this
// page gets a copy of it. Storage grows in steps up to the byte budget. After that, kept pages are evicted.
//
// Thread-safe. The lock is held for bookkeeping and growth, never while a device computes. In the child of a fork(), kept pages and parked
// tables stay as they were. All other tables lose their pages in the child. Those pages that are in the prefix tree become kept, and the
// rest become free.
//
// Models with recurrent layers also have states. A table has the state after its computed tokens and fresh ones, which the next step
// writes; a state that was written never changes. A text can only continue where a state is known. So acquire() finds no more tokens than
// up to the last page of the tree that has a state, and steps leave states at some page ends (snapshots).
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

// The pages of one sequence. PagePool fills the table, and the table's destructor gives the pages back. Only one thread at a time may use a
// table.
class PageTable {
 public:
  PageTable() = default;
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;
  ~PageTable();
  std::span<const std::int32_t> pages() const { return pages_; }

  // Of a model with states. The state after the table's computed tokens; -1 if none is computed.
  std::int32_t state() const { return state_; }
  // States that the next step may write: after its last row, or after its last id and after each guess.
  std::span<const std::int32_t> fresh() const { return fresh_; }
  struct Snapshot {
    std::int64_t tokens;  // how many tokens of the text the state comes after: whole pages
    std::int32_t state;
  };
  // States that the next step writes for the prefix tree, ascending by tokens.
  std::span<const Snapshot> snapshots() const { return snapshots_; }
  // How many tokens the prefix tree knew of the text when the pages were acquired; the sequence could not continue there for lack of a
  // state if it computes some of them again.
  std::int64_t known() const { return known_; }

 private:
  friend class PagePool;
  PagePool* pool_ = nullptr;
  std::vector<std::int32_t> pages_;
  std::uint64_t root_ = 0;      // root of the prefix tree for its pages (PrefixTree::root)
  std::int32_t published_ = 0;  // how many of the first pages are in the tree; the other pages belong to this table alone
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
  // Throws out_of_memory if the pool can never hold a sequence of `tokens` tokens. The message contains the numbers.
  void check_fits(std::int64_t tokens) const;

  // Gives an empty table pages for all of `ids`. Pages that are in the prefix tree are shared. Returns how many of the first ids are
  // already computed: at most `sharable`, and fewer than ids.size(), so that the last id is computed and yields logits. `spare` is the
  // number of pages that must be left over. `stage` is the stage of the text's rope (Runtime::rope_stage); only texts of the same stage
  // share pages. Returns nullopt and changes nothing if there is no room now.
  std::optional<std::int32_t> acquire(PageTable& table, std::span<const std::int32_t> ids, std::int64_t sharable = kAll,
                                      std::int64_t spare = 0, std::int64_t stage = 0);
  static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
  // Returns how many computed tokens acquire() would find for `ids` if it were called now.
  std::int32_t cached_tokens(std::span<const std::int32_t> ids, std::int64_t stage = 0) const;
  // Adds pages to the table until it has enough for `tokens` tokens in all, and brings it to `states` fresh states. Returns false, and adds
  // no pages, if there is no room now.
  bool extend(PageTable& table, std::int64_t tokens, std::int64_t states = 1);
  // Shares the first `tokens` tokens of `from`, which must all be computed, with the empty table `to`. Full pages are shared; a partly
  // filled last page is copied. Returns false if there is no room for the copy.
  bool fork(const PageTable& from, std::int32_t tokens, PageTable& to);
  // Enters the table's new full pages into the prefix tree. `computed` holds the ids whose keys and values are in the table. If another
  // sequence has entered an equal page in the meantime, the table takes that page in place of its own. Both pages contain the same bits,
  // because equal texts have equal keys and values.
  void publish(PageTable& table, std::span<const std::int32_t> computed);
  // The next three do nothing in a model without states.
  // Before a step: takes states for snapshots after each of these numbers of tokens (ascending, whole pages), as long as there is room.
  void plan_snapshots(PageTable& table, std::span<const std::int64_t> tokens);
  // After a step: the first of fresh() is the state after the table's computed tokens from now on, and no longer fresh.
  void advance(PageTable& table);
  // Leaves the table's state in the prefix tree. It is the state after `tokens` tokens: whole pages, which are published.
  void keep_state(PageTable& table, std::int64_t tokens);

  // Empties a table. Its pages with the `computed` ids, and its state, are kept as long as there is room.
  void release(PageTable& table, std::span<const std::int32_t> computed);
  void release(PageTable& table) { release(table, {}); }

  // read() copies the keys and values of a table's pages, beginning with page index `first`, to `out` as bytes (CacheSet::read_pages).
  // write() copies such bytes back to the pages. Both serve to save and load prefix files. write() may only write pages that are not
  // published, which are those with an index of unpublished() or more. read_state() and write_state() do the same for the state after the
  // table's tokens (CacheSet::read_state).
  void read(const PageTable& table, std::size_t first, std::span<std::uint8_t> out);
  void write(PageTable& table, std::size_t first, std::span<const std::uint8_t> in);
  static std::size_t unpublished(const PageTable& table) { return static_cast<std::size_t>(table.published_); }
  void read_state(const PageTable& table, std::span<std::uint8_t> out);
  void write_state(PageTable& table, std::span<const std::uint8_t> in);
  std::uint64_t page_bytes() const { return units_.page_bytes; }
  std::uint64_t state_bytes() const { return units_.state_bytes; }
  bool has_states() const { return units_.state_bytes > 0; }

  // A sequence that sits out parks its table. The pages of a parked table are reclaimed if there is no other room, so such a sequence never
  // blocks another one. unpark() returns false if the pages were reclaimed. The table is then empty, and the sequence must be computed
  // again.
  void park(PageTable& table);
  bool unpark(PageTable& table);

  void count_prompt(std::int64_t tokens, std::int64_t reused);
  Stats stats() const;
  // Computes every count again from the pages, and throws if one of them differs. For tests.
  void self_check() const;

 private:
  // The caller holds mutex_ in all of these functions except copy().
  std::int32_t take();        // takes a page, which then has one holder; returns -1 if there is no room
  std::int32_t take_state();  // the same for a state
  bool grow();
  bool grow_states();
  std::int32_t spare_state();
  bool fill_states(PageTable& table, std::int64_t states);
  void drop_states(PageTable& table);
  void drop_snapshots(PageTable& table);
  void keep_end(PageTable& table, std::span<const std::int32_t> rest);
  struct Found {
    std::vector<std::int32_t> pages;  // full pages at the text's begin
    std::size_t used = 0;             // how many of them the text continues behind
    std::int32_t partial = -1;        // a partly filled page that comes after them, or -1
    std::int32_t partial_tokens = 0;  // how many of its tokens belong to the text
    std::int32_t state_page = -1;     // the page whose state the text continues from; -1: none
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
  // Maximum numbers of pages and of states; each falls to the existing number if the device refuses to allocate more.
  std::int64_t budget_pages_, budget_states_;

  mutable OrderedMutex<LockRank::pool> mutex_;
  OrderedMutex<LockRank::storage> storage_mutex_;  // held while page contents are copied and while the storage grows
  PageBook book_;
  std::map<std::uint64_t, PageTable*> parked_;  // by PageTable::parked_, so the table that was parked longest ago comes first
  std::uint64_t parkings_ = 0;                  // how many times a table was parked so far
  std::uint64_t process_ = 1;                   // increased by one in each child of a fork
  Stats counts_;
  const AtFork at_fork_;
};

}  // namespace pumice::engine
