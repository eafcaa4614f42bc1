#include "engine/page_pool.h"

#include <algorithm>
#include <limits>
#include <new>

#include "core/checked.h"
#include "core/error.h"

namespace pumice::engine {
namespace {

std::string gib(std::uint64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1024 ? str(static_cast<std::int64_t>(mib * 10) / 10.0, " MiB") : str(static_cast<std::int64_t>(mib / 10.24) / 100.0, " GiB");
}

}  // namespace

PageTable::~PageTable() {
  try {
    if (pool_) pool_->release(*this);
  } catch (...) {  // there was no memory for the bookkeeping, so some pages might never be used again
  }
}

PagePool::PagePool(CacheSet caches, std::uint64_t budget_bytes)
    : caches_(std::move(caches)),
      units_{caches_.page_bytes(), caches_.state_bytes()},
      at_fork_({.before =
                    [this] {
                      mutex_.lock();
                      storage_mutex_.lock();
                    },
                .in_parent =
                    [this] {
                      storage_mutex_.unlock();
                      mutex_.unlock();
                    },
                .in_child =
                    [this] {
                      forget_parent();
                      storage_mutex_.unlock();
                      mutex_.unlock();
                    }}) {
  require(units_.page_bytes > 0 || units_.state_bytes > 0, "a model without caches and states needs no page pool");
  constexpr std::uint64_t kMostPages = std::numeric_limits<std::int32_t>::max() / kPageTokens;
  const std::uint64_t pages = std::min(units_.pages_in(budget_bytes), kMostPages);
  budget_pages_ = static_cast<std::int64_t>(pages);
  budget_states_ = static_cast<std::int64_t>(units_.states_for(pages));
  if (budget_pages_ == 0)
    fail(ErrorKind::out_of_memory, "kv_budget of ", budget_bytes, " bytes holds no page: ", kPageTokens, " tokens of this model need ",
         gib(units_.bytes_for(1)), "; raise kv_budget=");
}

std::int64_t PagePool::max_tokens() const {
  const std::lock_guard lock(mutex_);
  return budget_pages_ * kPageTokens;
}

void PagePool::check_fits(std::int64_t tokens) const {
  const std::lock_guard lock(mutex_);
  const std::int64_t needed = ceil_div(tokens, kPageTokens);
  if (needed <= budget_pages_) return;
  fail(ErrorKind::out_of_memory, "a sequence of ", tokens, " tokens needs ", needed, " cache pages of ", kPageTokens, " tokens (",
       gib(units_.bytes_for(static_cast<std::uint64_t>(needed))), "), the budget holds ", budget_pages_, " (",
       gib(units_.bytes_for(static_cast<std::uint64_t>(budget_pages_))),
       "): raise kv_budget=, choose kv_dtype=\"q8_0\", or shorten the prompt");
}

// ---------------------------------------------------------------- finding room
std::int64_t PagePool::room() const { return budget_pages_ - book_.size() + book_.free() + book_.kept(); }

bool PagePool::grow() {
  const std::int64_t have = book_.size();
  if (have >= budget_pages_) return false;
  const std::int64_t wanted = std::min(budget_pages_, have + std::max<std::int64_t>(64, have / 2));
  book_.reserve(wanted);
  try {
    const std::lock_guard storage(storage_mutex_);
    caches_.reserve(static_cast<std::int32_t>(wanted));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::out_of_memory && error.kind() != ErrorKind::out_of_device_memory) throw;
    if (have == 0) throw;
    budget_pages_ = have;  // goes on with the existing pages, some of which can be evicted
    return false;
  }
  book_.add(wanted);
  return true;
}

bool PagePool::evict() {
  if (!book_.evict()) return false;
  ++counts_.pages_evicted;
  return true;
}

// Takes all pages away from the table that has been parked longest. Pages of the table that are in the prefix tree become kept pages, which
// can be evicted, and its other pages become free. Returns false if no table is parked.
bool PagePool::reclaim() {
  if (parked_.empty()) return false;
  PageTable& table = *parked_.begin()->second;
  parked_.erase(parked_.begin());
  table.parked_ = 0;
  table.lost_ = true;
  drop_all(table);
  return true;
}

std::int32_t PagePool::take() {
  while (book_.free() == 0)
    if (!grow() && !evict() && !reclaim()) return -1;
  return book_.take();
}

void PagePool::drop_all(PageTable& table) {
  // Drops the last page first. The text's first page then counts as used most recently and is evicted last. It is the most useful page,
  // because texts share their beginnings most often.
  while (!table.pages_.empty()) {
    book_.drop(table.pages_.back());
    table.pages_.pop_back();
  }
  table.published_ = 0;
  drop_states(table);
}

// ---------------------------------------------------------------- states
bool PagePool::grow_states() {
  const std::int64_t have = book_.states();
  if (have >= budget_states_) return false;
  const std::int64_t wanted = std::min(budget_states_, have + std::max<std::int64_t>(2, have / 4));
  book_.reserve_states(wanted);
  try {
    const std::lock_guard storage(storage_mutex_);
    caches_.reserve_states(static_cast<std::int32_t>(wanted));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::out_of_memory && error.kind() != ErrorKind::out_of_device_memory) throw;
    if (have < static_cast<std::int64_t>(CacheUnits::kRunningStates)) throw;
    budget_states_ = have;
    return false;
  }
  book_.add_states(wanted);
  return true;
}

std::int32_t PagePool::take_state() {
  while (book_.free_states() == 0)
    if (!grow_states() && !book_.evict_state() && !reclaim()) return -1;
  return book_.take_state();
}

// Takes a state for a snapshot. Returns -1 if no state is free and none can be evicted. Unlike take_state(), never reclaims a parked table.
std::int32_t PagePool::spare_state() {
  while (book_.free_states() == 0)
    if (!grow_states() && !book_.evict_state()) return -1;
  return book_.take_state();
}

// Adds or drops fresh states, which the next step writes, until the table has `states` of them. Returns false if the pool has too few
// states.
bool PagePool::fill_states(PageTable& table, std::int64_t states) {
  for (; static_cast<std::int64_t>(table.fresh_.size()) > states; table.fresh_.pop_back()) book_.drop_state(table.fresh_.back());
  while (has_states() && static_cast<std::int64_t>(table.fresh_.size()) < states) {
    table.fresh_.reserve(static_cast<std::size_t>(states));
    const std::int32_t state = take_state();
    if (state < 0) return false;
    table.fresh_.push_back(state);
  }
  return true;
}

void PagePool::drop_snapshots(PageTable& table) {
  for (const PageTable::Snapshot& snapshot : table.snapshots_) book_.drop_state(snapshot.state);
  table.snapshots_.clear();
}

void PagePool::drop_states(PageTable& table) {
  drop_snapshots(table);
  for (const std::int32_t state : table.fresh_) book_.drop_state(state);
  table.fresh_.clear();
  if (table.state_ >= 0) book_.drop_state(table.state_);
  table.state_ = -1;
}

void PagePool::plan_snapshots(PageTable& table, std::span<const std::int64_t> tokens) {
  if (!has_states() || (tokens.empty() && table.snapshots_.empty())) return;
  const std::lock_guard lock(mutex_);
  drop_snapshots(table);  // if the last step failed, its snapshots are still in the table
  table.snapshots_.reserve(tokens.size());
  for (const std::int64_t after : tokens) {
    const std::int32_t state = spare_state();
    if (state < 0) return;
    table.snapshots_.push_back({after, state});
  }
}

void PagePool::advance(PageTable& table) {
  if (!has_states()) return;
  const std::lock_guard lock(mutex_);
  require(!table.fresh_.empty(), "PagePool::advance: the table has no fresh state");
  if (table.state_ >= 0) book_.drop_state(table.state_);
  table.state_ = table.fresh_.front();
  table.fresh_.erase(table.fresh_.begin());
}

void PagePool::keep_state(PageTable& table, std::int64_t tokens) {
  if (!has_states() || tokens == 0) return;
  const std::lock_guard lock(mutex_);
  require(tokens % kPageTokens == 0 && tokens / kPageTokens <= table.published_ && table.state_ >= 0,
          "PagePool::keep_state: the state after ", tokens, " tokens of a table with ", table.published_, " published pages");
  book_.attach(table.pages_[static_cast<std::size_t>(tokens / kPageTokens) - 1], table.state_);
}

// Adds pages to a table until it has `pages` pages. If there are too few pages, returns false and leaves the table as it was.
bool PagePool::fill(PageTable& table, std::int64_t pages) {
  const std::size_t had = table.pages_.size();
  table.pages_.reserve(static_cast<std::size_t>(std::max<std::int64_t>(pages, 0)));
  while (static_cast<std::int64_t>(table.pages_.size()) < pages) {
    const std::int32_t page = take();
    if (page < 0) {
      while (table.pages_.size() > had) {
        book_.drop(table.pages_.back());
        table.pages_.pop_back();
      }
      return false;
    }
    table.pages_.push_back(page);
  }
  return true;
}

void PagePool::copy(std::int32_t from, std::int32_t to) {
  const std::lock_guard storage(storage_mutex_);
  caches_.copy_page(from, to);
}

// ---------------------------------------------------------------- tables
PagePool::Found PagePool::find(std::span<const std::int32_t> ids, std::uint64_t root) const {
  Found found;
  std::int32_t parent = -1;
  for (std::size_t at = 0; at < ids.size(); at += kPageTokens) {
    const auto match = book_.longest(parent, root, ids.subspan(at, std::min<std::size_t>(kPageTokens, ids.size() - at)));
    if (match.tokens < kPageTokens) {
      if (match.tokens > 0) found.partial = match.page, found.partial_tokens = match.tokens;
      break;
    }
    found.pages.push_back(match.page);
    parent = match.page;
  }
  found.used = found.pages.size();
  if (has_states()) find_state(found, ids, root);
  return found;
}

// Shortens `found` so that it ends at a position for which the tree has a state. In a model with states, a text can continue only from such
// a position.
void PagePool::find_state(Found& found, std::span<const std::int32_t> ids, std::uint64_t root) const {
  found.partial = -1;
  found.partial_tokens = 0;
  for (found.used = found.pages.size();; --found.used) {
    const std::int32_t last = found.used == 0 ? -1 : found.pages[found.used - 1];
    const auto rest = ids.subspan(found.used * kPageTokens);
    for (std::size_t tokens = std::min<std::size_t>(rest.size(), kPageTokens - 1); tokens > 0; --tokens) {
      const std::int32_t page = book_.find(last, root, rest.first(tokens));
      if (page < 0 || book_.state_of(page) < 0) continue;
      found.partial = found.state_page = page;
      found.partial_tokens = static_cast<std::int32_t>(tokens);
      return;
    }
    if (last < 0) return;
    if (book_.state_of(last) < 0) continue;
    found.state_page = last;
    return;
  }
}

std::optional<std::int32_t> PagePool::acquire(PageTable& table, std::span<const std::int32_t> ids, std::int64_t sharable,
                                              std::int64_t spare, std::int64_t stage) {
  std::unique_lock lock(mutex_);
  require(table.pages_.empty() && !ids.empty(), "PagePool::acquire needs an empty table and at least one id");
  table.pool_ = this;
  table.process_ = process_;
  table.root_ = PrefixTree::root(stage);
  table.lost_ = false;
  const auto limit = static_cast<std::size_t>(std::min(static_cast<std::int64_t>(ids.size()) - 1, sharable));
  const std::int64_t needed = ceil_div(static_cast<std::int64_t>(ids.size()), kPageTokens);
  table.pages_.reserve(static_cast<std::size_t>(needed));
  Found found = find(ids.first(limit), table.root_);
  table.known_ = static_cast<std::int64_t>(found.pages.size()) * kPageTokens;
  for (std::size_t i = 0; i < found.used; ++i) {
    book_.hold(found.pages[i]);
    table.pages_.push_back(found.pages[i]);
  }
  table.published_ = static_cast<std::int32_t>(found.used);
  if (found.state_page >= 0) {
    table.state_ = book_.state_of(found.state_page);
    book_.hold_state(table.state_);
    book_.use_state(found.state_page);
  }
  if (spare > 0 && room() < needed - table.published_ + spare) {
    drop_all(table);
    return std::nullopt;
  }
  if (found.partial >= 0) book_.hold(found.partial);  // so that this page is not evicted before it is copied
  bool enough = false;
  try {
    enough = fill(table, needed) && fill_states(table, 1);
  } catch (...) {
    if (found.partial >= 0) book_.drop(found.partial);
    throw;
  }
  if (!enough && found.partial >= 0) {  // tries again without the copy, because with a tiny budget found.partial may be the only page left
    book_.drop(found.partial);
    if (has_states()) {  // without the state of found.partial, the text is computed from its first token
      drop_all(table);
      found.used = 0;
    }
    found.partial = -1;
    found.partial_tokens = 0;
    enough = fill(table, needed) && fill_states(table, 1);
  }
  if (!enough) {
    drop_all(table);
    return std::nullopt;
  }
  if (found.partial < 0) return found.tokens();
  const std::int32_t to = table.pages_[static_cast<std::size_t>(table.published_)];
  lock.unlock();
  try {
    copy(found.partial, to);
  } catch (...) {
    lock.lock();
    book_.drop(found.partial);
    drop_all(table);
    throw;
  }
  lock.lock();
  book_.drop(found.partial);
  return found.tokens();
}

std::int32_t PagePool::cached_tokens(std::span<const std::int32_t> ids, std::int64_t stage) const {
  const std::lock_guard lock(mutex_);
  return find(ids.first(ids.size() - std::min<std::size_t>(1, ids.size())), PrefixTree::root(stage)).tokens();
}

bool PagePool::extend(PageTable& table, std::int64_t tokens, std::int64_t states) {
  const std::int64_t needed = ceil_div(tokens, kPageTokens);
  const bool has = static_cast<std::int64_t>(table.pages_.size()) >= needed;
  // Takes no lock if nothing is missing, which is the usual case.
  if (has && (!has_states() || static_cast<std::int64_t>(table.fresh_.size()) == states)) return true;
  const std::lock_guard lock(mutex_);
  table.pool_ = this;
  table.process_ = process_;
  return fill_states(table, states) && fill(table, needed);
}

bool PagePool::fork(const PageTable& from, std::int32_t tokens, PageTable& to) {
  std::unique_lock lock(mutex_);
  const std::int32_t full = tokens / kPageTokens;
  require(to.pages_.empty() && from.published_ >= full, "PagePool::fork needs an empty table and published pages");
  to.pool_ = this;
  to.process_ = process_;
  to.root_ = from.root_;
  to.lost_ = false;
  to.pages_.reserve(static_cast<std::size_t>(full) + 1);
  for (std::int32_t i = 0; i < full; ++i) {
    book_.hold(from.pages_[i]);
    to.pages_.push_back(from.pages_[i]);
  }
  to.published_ = full;
  if (from.state_ >= 0) {
    to.state_ = from.state_;
    book_.hold_state(to.state_);
  }
  if (tokens % kPageTokens == 0) return true;
  try {
    if (!fill(to, full + 1)) {
      drop_all(to);
      return false;
    }
    lock.unlock();
    copy(from.pages_[full], to.pages_[full]);
  } catch (...) {
    if (!lock) lock.lock();
    drop_all(to);
    throw;
  }
  return true;
}

void PagePool::publish_full(PageTable& table, std::span<const std::int32_t> computed) {
  const auto full = static_cast<std::int32_t>(std::min(computed.size() / kPageTokens, table.pages_.size()));
  for (std::int32_t i = table.published_; i < full; ++i) {
    const std::int32_t parent = i == 0 ? -1 : table.pages_[i - 1];
    const auto ids = computed.subspan(static_cast<std::size_t>(i) * kPageTokens, kPageTokens);
    const auto match = book_.longest(parent, table.root_, ids);
    if (match.tokens == kPageTokens) {
      book_.hold(match.page);
      book_.drop(table.pages_[i]);
      table.pages_[i] = match.page;
    } else {
      book_.enter(table.pages_[i], parent, table.root_, ids);
    }
    table.published_ = i + 1;
  }
}

void PagePool::publish(PageTable& table, std::span<const std::int32_t> computed) {
  if (static_cast<std::int64_t>(computed.size()) / kPageTokens <= table.published_ && table.snapshots_.empty()) return;
  const std::lock_guard lock(mutex_);
  publish_full(table, computed);
  for (const auto& [tokens, state] : table.snapshots_) {
    if (tokens <= static_cast<std::int64_t>(computed.size()) && tokens / kPageTokens <= table.published_)
      book_.attach(table.pages_[static_cast<std::size_t>(tokens / kPageTokens) - 1], state);
  }
  drop_snapshots(table);
}

void PagePool::release(PageTable& table, std::span<const std::int32_t> computed) {
  const std::lock_guard lock(mutex_);
  if (left_behind(table)) return;
  if (table.parked_) parked_.erase(table.parked_);
  table.parked_ = 0;
  try {
    if (!table.pages_.empty()) publish_ended(table, computed);
  } catch (const std::bad_alloc&) {  // these pages do not enter the prefix tree, so other texts cannot share them
  }
  drop_all(table);
  table.lost_ = false;
}

// Enters the pages of a text that has ended into the prefix tree, including the partly filled last page.
void PagePool::publish_ended(PageTable& table, std::span<const std::int32_t> computed) {
  publish_full(table, computed);
  const std::size_t full = computed.size() / kPageTokens;
  const auto rest = computed.subspan(full * kPageTokens);
  if (has_states()) {
    if (!computed.empty() && table.state_ >= 0) keep_end(table, rest);
  } else if (!rest.empty() && table.pages_.size() > full) {
    const std::int32_t parent = full == 0 ? -1 : table.pages_[full - 1];
    const auto match = book_.longest(parent, table.root_, rest);
    if (match.tokens < static_cast<std::int32_t>(rest.size())) book_.enter(table.pages_[full], parent, table.root_, rest);
  }
}

// Attaches the state after a table's computed tokens to the page of the last token, so that the prefix tree keeps this state. `rest` holds
// the computed tokens in a partly filled last page. That page enters the tree now, unless the tree has an equal page already.
void PagePool::keep_end(PageTable& table, std::span<const std::int32_t> rest) {
  const auto full = static_cast<std::size_t>(table.published_);
  const std::int32_t last = full == 0 ? -1 : table.pages_[full - 1];
  if (rest.empty()) {
    if (last >= 0) book_.attach(last, table.state_);
    return;
  }
  std::int32_t page = book_.find(last, table.root_, rest);
  if (page < 0) {
    page = table.pages_[full];
    book_.enter(page, last, table.root_, rest);
  }
  book_.attach(page, table.state_);
}

void PagePool::park(PageTable& table) {
  const std::lock_guard lock(mutex_);
  if (table.pages_.empty() || table.parked_) return;
  parked_.emplace(parkings_ + 1, &table);
  table.parked_ = ++parkings_;
  drop_snapshots(table);
  for (const std::int32_t state : table.fresh_) book_.drop_state(state);
  table.fresh_.clear();
}

bool PagePool::unpark(PageTable& table) {
  const std::lock_guard lock(mutex_);
  if (table.parked_) parked_.erase(table.parked_);
  table.parked_ = 0;
  return !std::exchange(table.lost_, false);
}

void PagePool::read(const PageTable& table, std::size_t first, std::span<std::uint8_t> out) {
  if (units_.page_bytes == 0) return;
  const std::size_t count = out.size() / units_.page_bytes;
  require(first + count <= table.pages_.size(), "PagePool::read: page ", first + count, " of ", table.pages_.size());
  const std::lock_guard storage(storage_mutex_);
  caches_.read_pages(table.pages().subspan(first, count), out);
}

void PagePool::write(PageTable& table, std::size_t first, std::span<const std::uint8_t> in) {
  if (units_.page_bytes == 0) return;
  const std::size_t count = in.size() / units_.page_bytes;
  require(first >= unpublished(table) && first + count <= table.pages_.size(), "PagePool::write: pages ", first, " to ", first + count,
          " of ", table.pages_.size(), ", of which ", table.published_, " are others' too");
  const std::lock_guard storage(storage_mutex_);
  caches_.write_pages(table.pages().subspan(first, count), in);
}

void PagePool::read_state(const PageTable& table, std::span<std::uint8_t> out) {
  require(table.state_ >= 0 && out.size() == state_bytes(), "PagePool::read_state: state ", table.state_, " to ", out.size(), " bytes");
  const std::lock_guard storage(storage_mutex_);
  caches_.read_state(table.state_, out);
}

void PagePool::write_state(PageTable& table, std::span<const std::uint8_t> in) {
  require(!table.fresh_.empty() && in.size() == state_bytes(), "PagePool::write_state: ", table.fresh_.size(), " fresh states, ", in.size(),
          " bytes");
  {
    const std::lock_guard storage(storage_mutex_);
    caches_.write_state(table.fresh_.front(), in);
  }
  advance(table);
}

// ---------------------------------------------------------------- after a fork
// Must be called in the child of a fork. The child does not have the parent's engine thread, so only parked tables keep their pages. Pages
// of other tables become kept if they are in the prefix tree, else free.
void PagePool::forget_parent() {
  ++process_;
  std::vector<std::int32_t> holders(static_cast<std::size_t>(book_.size()), 0), states(static_cast<std::size_t>(book_.states()), 0);
  for (const auto& [when, table] : parked_) {
    table->process_ = process_;
    for (const std::int32_t page : table->pages_) ++holders[page];
    if (table->state_ >= 0) ++states[static_cast<std::size_t>(table->state_)];
  }
  book_.hold_only(holders, states);
}

// Returns true in the child of a fork if the table belongs to a sequence that ran in the parent. forget_parent() has released the table's
// pages already, so this function only empties the table.
bool PagePool::left_behind(PageTable& table) const {
  if (table.process_ == process_) return false;
  table.pages_.clear();
  table.fresh_.clear();
  table.snapshots_.clear();
  table.state_ = -1;
  table.published_ = 0;
  table.parked_ = 0;
  table.lost_ = false;
  return true;
}

// ---------------------------------------------------------------- numbers
void PagePool::count_prompt(std::int64_t tokens, std::int64_t reused) {
  const std::lock_guard lock(mutex_);
  counts_.prompt_tokens += static_cast<std::uint64_t>(tokens);
  counts_.reused_tokens += static_cast<std::uint64_t>(reused);
}

PagePool::Stats PagePool::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = counts_;
  stats.pages_reserved = book_.size();
  stats.pages_cached = book_.kept();
  stats.pages_in_use = stats.pages_reserved - book_.free() - book_.kept();
  stats.pages_budget = budget_pages_;
  stats.page_bytes = units_.page_bytes;
  stats.states_reserved = book_.states();
  stats.states_cached = book_.kept_states();
  stats.states_in_use = stats.states_reserved - book_.free_states() - stats.states_cached;
  stats.states_budget = budget_states_;
  stats.state_bytes = units_.state_bytes;
  return stats;
}

void PagePool::self_check() const {
  const std::lock_guard lock(mutex_);
  book_.self_check();
  require(book_.size() <= budget_pages_ && book_.states() <= budget_states_, "page pool: over budget");
}

}  // namespace pumice::engine
