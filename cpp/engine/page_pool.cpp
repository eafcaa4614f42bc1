#include "engine/page_pool.h"

#include <algorithm>
#include <limits>

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
  } catch (...) {  // no memory for the bookkeeping; some pages may then never be used again
  }
}

PagePool::PagePool(CacheSet caches, std::uint64_t budget_bytes)
    : caches_(std::move(caches)),
      page_bytes_(caches_.page_bytes()),
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
  require(page_bytes_ > 0, "a model without caches needs no page pool");
  budget_pages_ = static_cast<std::int64_t>(
      std::min<std::uint64_t>(budget_bytes / page_bytes_, std::numeric_limits<std::int32_t>::max() / kPageTokens));
  if (budget_pages_ == 0)
    fail(ErrorKind::out_of_memory, "kv_budget of ", budget_bytes, " bytes holds no page: ", kPageTokens, " tokens of this model need ",
         gib(page_bytes_), "; raise kv_budget=");
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
       gib(static_cast<std::uint64_t>(needed) * page_bytes_), "), the budget holds ", budget_pages_, " (",
       gib(static_cast<std::uint64_t>(budget_pages_) * page_bytes_),
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
    budget_pages_ = have;  // go on with the existing pages, some of which can be evicted
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

// Takes the pages away from the table that has been parked longest. Its pages in the prefix tree become kept and can be evicted, and its
// other pages become free. Returns false if no table is parked.
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
  // Drops the last page first. The first page then counts as used most recently and is evicted last, because texts share their beginnings
  // most often.
  while (!table.pages_.empty()) {
    book_.drop(table.pages_.back());
    table.pages_.pop_back();
  }
  table.published_ = 0;
}

// Adds pages to a table until it has `pages` pages. Returns false, and leaves the table as it was, if there is no room.
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
std::optional<std::int32_t> PagePool::acquire(PageTable& table, std::span<const std::int32_t> ids, std::int64_t sharable,
                                              std::int64_t spare, std::int64_t stage) {
  std::unique_lock lock(mutex_);
  require(table.pages_.empty() && !ids.empty(), "PagePool::acquire needs an empty table and at least one id");
  table.pool_ = this;
  table.process_ = process_;
  table.root_ = PrefixTree::root(stage);
  table.lost_ = false;
  const auto limit = static_cast<std::int32_t>(std::min(static_cast<std::int64_t>(ids.size()) - 1, sharable));
  const std::int64_t needed = ceil_div(static_cast<std::int64_t>(ids.size()), kPageTokens);
  std::int32_t tokens = 0, parent = -1, source = -1, partial = 0;
  while (tokens < limit) {
    const auto match = book_.longest(parent, table.root_, ids.subspan(tokens, std::min(kPageTokens, limit - tokens)));
    if (match.tokens < kPageTokens) {
      if (match.tokens > 0) source = match.page, partial = match.tokens;
      break;
    }
    book_.hold(match.page);
    table.pages_.push_back(match.page);
    parent = match.page;
    tokens += kPageTokens;
  }
  table.published_ = static_cast<std::int32_t>(table.pages_.size());
  if (spare > 0 && room() < needed - table.published_ + spare) {
    drop_all(table);
    return std::nullopt;
  }
  if (source >= 0) book_.hold(source);  // so that it is not evicted before it is copied
  bool enough = fill(table, needed);
  if (!enough && source >= 0) {  // with a tiny budget, the page to copy may be the only page left to take; then nothing is copied
    book_.drop(source);
    source = -1;
    enough = fill(table, needed);
  }
  if (!enough) {
    drop_all(table);
    return std::nullopt;
  }
  if (source < 0) return tokens;
  const std::int32_t to = table.pages_[table.published_];
  lock.unlock();
  try {
    copy(source, to);
  } catch (...) {
    lock.lock();
    book_.drop(source);
    drop_all(table);
    throw;
  }
  lock.lock();
  book_.drop(source);
  return tokens + partial;
}

std::int32_t PagePool::cached_tokens(std::span<const std::int32_t> ids, std::int64_t stage) const {
  const std::lock_guard lock(mutex_);
  const std::uint64_t root = PrefixTree::root(stage);
  const auto limit = static_cast<std::int32_t>(ids.size()) - 1;
  std::int32_t tokens = 0, parent = -1;
  while (tokens < limit) {
    const auto match = book_.longest(parent, root, ids.subspan(tokens, std::min(kPageTokens, limit - tokens)));
    tokens += match.tokens;
    parent = match.page;
    if (match.tokens < kPageTokens) break;
  }
  return tokens;
}

bool PagePool::extend(PageTable& table, std::int64_t tokens) {
  const std::int64_t needed = ceil_div(tokens, kPageTokens);
  if (static_cast<std::int64_t>(table.pages_.size()) >= needed) return true;  // the usual case, which needs no lock
  const std::lock_guard lock(mutex_);
  table.pool_ = this;
  table.process_ = process_;
  return fill(table, needed);
}

bool PagePool::fork(const PageTable& from, std::int32_t tokens, PageTable& to) {
  std::unique_lock lock(mutex_);
  const std::int32_t full = tokens / kPageTokens;
  require(to.pages_.empty() && from.published_ >= full, "PagePool::fork needs an empty table and published pages");
  to.pool_ = this;
  to.process_ = process_;
  to.root_ = from.root_;
  to.lost_ = false;
  for (std::int32_t i = 0; i < full; ++i) {
    book_.hold(from.pages_[i]);
    to.pages_.push_back(from.pages_[i]);
  }
  to.published_ = full;
  if (tokens % kPageTokens == 0) return true;
  if (!fill(to, full + 1)) {
    drop_all(to);
    return false;
  }
  lock.unlock();
  try {
    copy(from.pages_[full], to.pages_[full]);
  } catch (...) {
    lock.lock();
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
  if (static_cast<std::int64_t>(computed.size()) / kPageTokens <= table.published_) return;
  const std::lock_guard lock(mutex_);
  publish_full(table, computed);
}

void PagePool::release(PageTable& table, std::span<const std::int32_t> computed) {
  const std::lock_guard lock(mutex_);
  if (left_behind(table)) return;
  if (table.parked_) parked_.erase(table.parked_);
  table.parked_ = 0;
  if (!table.pages_.empty()) {
    publish_full(table, computed);
    const std::size_t full = computed.size() / kPageTokens;
    const auto rest = computed.subspan(full * kPageTokens);
    if (!rest.empty() && table.pages_.size() > full) {
      const std::int32_t parent = full == 0 ? -1 : table.pages_[full - 1];
      const auto match = book_.longest(parent, table.root_, rest);
      if (match.tokens < static_cast<std::int32_t>(rest.size())) book_.enter(table.pages_[full], parent, table.root_, rest);
    }
    drop_all(table);
  }
  table.lost_ = false;
}

void PagePool::park(PageTable& table) {
  const std::lock_guard lock(mutex_);
  if (table.pages_.empty() || table.parked_) return;
  table.parked_ = ++parkings_;
  parked_.emplace(table.parked_, &table);
}

bool PagePool::unpark(PageTable& table) {
  const std::lock_guard lock(mutex_);
  if (table.parked_) parked_.erase(table.parked_);
  table.parked_ = 0;
  return !std::exchange(table.lost_, false);
}

void PagePool::read(const PageTable& table, std::size_t first, std::span<std::uint8_t> out) {
  const std::size_t count = out.size() / page_bytes_;
  require(first + count <= table.pages_.size(), "PagePool::read: page ", first + count, " of ", table.pages_.size());
  const std::lock_guard storage(storage_mutex_);
  caches_.read_pages(table.pages().subspan(first, count), out);
}

void PagePool::write(PageTable& table, std::size_t first, std::span<const std::uint8_t> in) {
  const std::size_t count = in.size() / page_bytes_;
  require(first >= unpublished(table) && first + count <= table.pages_.size(), "PagePool::write: pages ", first, " to ", first + count,
          " of ", table.pages_.size(), ", of which ", table.published_, " are others' too");
  const std::lock_guard storage(storage_mutex_);
  caches_.write_pages(table.pages().subspan(first, count), in);
}

// ---------------------------------------------------------------- after a fork
// The child does not have the parent's engine thread, so only parked tables keep their pages. Pages that running sequences held become kept
// if they are in the prefix tree, else free.
void PagePool::forget_parent() {
  ++process_;
  std::vector<std::int32_t> holders(static_cast<std::size_t>(book_.size()), 0);
  for (const auto& [when, table] : parked_) {
    table->process_ = process_;
    for (const std::int32_t page : table->pages_) ++holders[page];
  }
  book_.hold_only(holders);
}

// Returns true, in the child of a fork, for the table of a sequence that ran in the parent. forget_parent() has given the table's pages
// back already, so this function only empties the table.
bool PagePool::left_behind(PageTable& table) const {
  if (table.process_ == process_) return false;
  table.pages_.clear();
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
  stats.page_bytes = page_bytes_;
  return stats;
}

void PagePool::self_check() const {
  const std::lock_guard lock(mutex_);
  book_.self_check();
  require(book_.size() <= budget_pages_, "page pool: over budget");
}

}  // namespace pumice::engine
