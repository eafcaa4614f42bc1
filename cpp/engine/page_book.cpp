#include "engine/page_book.h"

#include "core/error.h"
#include "core/program.h"

namespace pumice::engine {

void PageBook::reserve(std::int64_t pages) {
  pages_.reserve(static_cast<std::size_t>(pages));
  free_.reserve(static_cast<std::size_t>(pages));
  leaves_.reserve(static_cast<std::size_t>(pages));
  snapshots_.reserve(static_cast<std::size_t>(pages));
}

void PageBook::add(std::int64_t pages) {
  const std::int64_t had = size();
  pages_.resize(static_cast<std::size_t>(pages));
  for (std::int64_t page = pages; page-- > had;) free_.push_back(static_cast<std::int32_t>(page));
}

std::int32_t PageBook::take() {
  if (free_.empty()) return -1;
  const std::int32_t page = free_.back();
  free_.pop_back();
  pages_[page] = Page{};
  pages_[page].holders = 1;
  return page;
}

bool PageBook::evict() {
  if (leaves_.empty()) return false;
  free_kept(std::get<2>(*leaves_.begin()));
  return true;
}

void PageBook::hold(std::int32_t page) {
  Page& p = pages_[page];
  if (p.holders++ == 0) {  // the page had no holders, so it was a kept page
    --kept_;
    leaves_.erase(leaf(page));
  }
}

void PageBook::drop(std::int32_t page) {
  Page& p = pages_[page];
  if (--p.holders > 0) return;
  if (p.name == 0) {
    free_.push_back(page);
    return;
  }
  ++kept_;
  p.used = ++clock_;
  if (p.children == 0) leaves_.insert(leaf(page));
}

void PageBook::enter(std::int32_t page, std::int32_t parent, std::uint64_t root, std::span<const std::int32_t> ids) {
  const auto near = tree_.longest(name_of(parent, root), ids);
  const bool covered = near.page >= 0 && near.tokens == pages_[near.page].tokens;
  if (covered && pages_[near.page].holders == 0 && pages_[near.page].state < 0) {
    free_kept(near.page);
  }
  Page& p = pages_[page];
  p.entry = tree_.insert(name_of(parent, root), ids, page);
  p.name = ++names_;
  p.parent = parent;
  p.tokens = static_cast<std::int32_t>(ids.size());
  if (parent >= 0 && pages_[parent].children++ == 0) leaves_.erase(leaf(parent));
}

void PageBook::leave(std::int32_t page) {
  Page& p = pages_[page];
  tree_.erase(p.entry);
  leaves_.erase(leaf(page));
  detach(page);
  p.name = 0;
  if (p.parent < 0) return;
  Page& parent = pages_[p.parent];
  if (--parent.children == 0 && parent.holders == 0) leaves_.insert(leaf(p.parent));
  p.parent = -1;
}

void PageBook::free_kept(std::int32_t page) {
  leave(page);
  --kept_;
  free_.push_back(page);
}

// ---------------------------------------------------------------- states
void PageBook::reserve_states(std::int64_t states) {
  state_holders_.reserve(static_cast<std::size_t>(states));
  free_states_.reserve(static_cast<std::size_t>(states));
}

void PageBook::add_states(std::int64_t states) {
  const std::int64_t had = this->states();
  state_holders_.resize(static_cast<std::size_t>(states), 0);
  for (std::int64_t state = states; state-- > had;) free_states_.push_back(static_cast<std::int32_t>(state));
}

std::int32_t PageBook::take_state() {
  if (free_states_.empty()) return -1;
  const std::int32_t state = free_states_.back();
  free_states_.pop_back();
  hold_state(state);
  return state;
}

void PageBook::drop_state(std::int32_t state) {
  if (--state_holders_[static_cast<std::size_t>(state)] == 0) free_states_.push_back(state);
}

void PageBook::attach(std::int32_t page, std::int32_t state) {
  Page& p = pages_[page];
  require(p.name != 0, "page book: a page outside of the tree gets a state");
  if (p.state >= 0) return use_state(page);
  const bool was_leaf = leaves_.erase(leaf(page));
  hold_state(state);
  p.state = state;
  p.state_used = ++clock_;
  snapshots_.insert({p.state_used, page});
  if (was_leaf) leaves_.insert(leaf(page));
}

void PageBook::detach(std::int32_t page) {
  Page& p = pages_[page];
  if (p.state < 0) return;
  const bool was_leaf = leaves_.erase(leaf(page));
  snapshots_.erase({p.state_used, page});
  drop_state(p.state);
  p.state = -1;
  if (was_leaf) leaves_.insert(leaf(page));
}

bool PageBook::evict_state() {
  if (snapshots_.empty()) return false;
  detach(snapshots_.begin()->second);
  return true;
}

void PageBook::use_state(std::int32_t page) {
  Page& p = pages_[page];
  snapshots_.erase({p.state_used, page});
  p.state_used = ++clock_;
  snapshots_.insert({p.state_used, page});
}

void PageBook::hold_only(std::span<const std::int32_t> holders, std::span<const std::int32_t> state_holders) {
  std::vector<std::int32_t> wanted(state_holders.begin(), state_holders.end());
  for (const auto& [used, page] : snapshots_) ++wanted[static_cast<std::size_t>(pages_[page].state)];
  for (std::size_t state = state_holders_.size(); state-- > 0;) {
    if (state_holders_[state] == wanted[state]) continue;
    state_holders_[state] = wanted[state] + 1;
    drop_state(static_cast<std::int32_t>(state));
  }
  for (std::size_t i = pages_.size(); i-- > 0;) {
    Page& p = pages_[i];
    if (p.holders == holders[i]) continue;
    p.holders = holders[i] + 1;
    drop(static_cast<std::int32_t>(i));
  }
}

void PageBook::self_check() const {
  const auto check = [](bool holds, const char* what) { require(holds, "page pool: ", what); };
  std::vector<std::int32_t> children(pages_.size(), 0);
  std::vector<bool> is_free(pages_.size(), false);
  for (const std::int32_t page : free_) {
    check(!is_free[page], "a page is free twice");
    is_free[page] = true;
  }
  std::size_t in_tree = 0, leaves = 0, of_pages = 0;
  std::int64_t kept = 0;
  for (const Page& p : pages_)
    if (p.name != 0 && p.parent >= 0) ++children[p.parent];
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    const Page& p = pages_[i];
    check(is_free[i] == (p.holders == 0 && p.name == 0), "a page is lost, or free and in use");
    check(p.state < 0 || p.name != 0, "a page outside of the tree has a state");
    if (p.name == 0) continue;
    ++in_tree;
    if (p.state >= 0) {
      ++of_pages;
      check(snapshots_.contains({p.state_used, static_cast<std::int32_t>(i)}) && state_holders_[static_cast<std::size_t>(p.state)] > 0,
            "a page's state cannot be evicted, or is free");
    }
    check(p.entry->second == static_cast<std::int32_t>(i), "the tree names another page");
    check(p.children == children[i], "wrong count of children");
    check(p.parent < 0 || pages_[p.parent].name == p.entry->first.parent, "a page's parent has left the tree");
    check(p.children == 0 || p.tokens == kPageTokens, "a partly filled page has children");
    if (p.holders > 0) continue;
    ++kept;
    if (p.children == 0) {
      ++leaves;
      check(leaves_.contains(leaf(static_cast<std::int32_t>(i))), "a leaf cannot be evicted");
    }
  }
  check(in_tree == tree_.size() && leaves == leaves_.size() && kept == kept_ && of_pages == snapshots_.size(), "wrong totals");
  std::size_t unused = 0;
  for (const std::int32_t count : state_holders_) unused += count == 0;
  check(unused == free_states_.size(), "a state is lost, or free twice");
}

}  // namespace pumice::engine
