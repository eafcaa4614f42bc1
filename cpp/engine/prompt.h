// One prompt of a request, and the sequences that continue it (GenerateParams::n).
//
// The first sequence, the leader, computes the keys and values of the prompt; the others follow it. Each sequence draws its own first token
// from the leader's row of logits, and fork() shares the leader's pages with each follower. If the leader ends before that, a follower
// becomes the leader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pumice::engine {

class PagePool;
struct Sequence;

class Prompt {
 public:
  explicit Prompt(std::int32_t tokens) : tokens(tokens) {}
  Prompt(const Prompt&) = delete;
  Prompt& operator=(const Prompt&) = delete;

  void add(Sequence& sequence);  // the first sequence leads, the others follow
  // Returns how many tokens are chosen from the row of logits of `sequence`: one for itself, and one for each follower.
  std::size_t sharing(const Sequence& sequence) const { return &sequence == leader_ ? 1 + followers_.size() : 1; }
  // Calls visit(s) for `sequence`, then for each of its followers.
  template <class Visit>
  void each_sharing(Sequence& sequence, Visit&& visit) {
    visit(sequence);
    if (&sequence != leader_) return;
    for (Sequence* follower : followers_) visit(*follower);
  }
  // `sequence` has ended. If it was the leader, the next follower becomes the leader and waits for pages.
  void leave(Sequence& sequence);
  // `sequence` has computed the prompt. Its followers go on by themselves: they share its full pages and get a copy of the last one. A
  // follower that finds no page for the copy computes the prompt itself. Returns the sequences that choose a token from the row, in the
  // order of each_sharing().
  std::vector<Sequence*> fork(Sequence& sequence, PagePool& pool);

  // Returns, for each full page, a hash of the prompt up to the end of the page. `ids` begins with the prompt. Equal beginnings have equal
  // hashes.
  const std::vector<std::uint64_t>& page_hashes(std::span<const std::int32_t> ids);

  const std::int32_t tokens;
  std::int32_t reused = -1;  // tokens found in the prefix cache when pages were first acquired; -1: not yet acquired

 private:
  Sequence* leader_ = nullptr;
  std::vector<Sequence*> followers_;
  std::vector<std::uint64_t> hashes_;  // computed when page_hashes() is first called
};

}  // namespace pumice::engine
