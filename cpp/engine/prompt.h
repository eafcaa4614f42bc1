// One prompt of a request, and the sequences that continue it (GenerateParams::n).
//
// The first sequence, the leader, computes the keys and values of the prompt. The other sequences, its followers, wait until the prompt is
// computed. Then each sequence draws its own first token from the leader's row of logits, and fork() shares the leader's pages with each
// follower. If the leader ends before fork() is called, a follower becomes the leader.
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

  void add(Sequence& sequence);  // adds a sequence; the first one becomes the leader, and later ones become followers
  // Returns how many tokens are chosen from the row of logits of `sequence`: one for itself, and one for each follower.
  std::size_t sharing(const Sequence& sequence) const { return &sequence == leader_ ? 1 + followers_.size() : 1; }
  // Calls visit() with `sequence`, and then, if it is the leader, with each of its followers.
  template <class Visit>
  void each_sharing(Sequence& sequence, Visit&& visit) {
    visit(sequence);
    if (&sequence != leader_) return;
    for (Sequence* follower : followers_) visit(*follower);
  }
  // Removes a sequence that has ended. If it was the leader, the next follower becomes the leader and waits for pages.
  void leave(Sequence& sequence);
  // Must be called when `sequence` has computed the prompt. Turns its followers into independent sequences. Each follower shares the full
  // pages of `sequence` and gets a copy of the partly filled last page. If there is no free page for the copy, the follower later computes
  // the prompt itself. Returns the sequences that choose their first token from the row of logits of `sequence`, in the order of
  // each_sharing().
  std::vector<Sequence*> fork(Sequence& sequence, PagePool& pool);

  // Returns one hash for each full page of the prompt. It is the hash of all ids from the start of the prompt to the end of that page. So
  // if two prompts begin with the same pages, these pages have the same hashes. `ids` must begin with the prompt.
  const std::vector<std::uint64_t>& page_hashes(std::span<const std::int32_t> ids);

  const std::int32_t tokens;
  bool begun = false;        // true if a step has computed the prompt's first row, or is computing it
  std::int32_t reused = -1;  // number of tokens found in the prefix cache when pages were first acquired; -1 before that

 private:
  Sequence* leader_ = nullptr;
  std::vector<Sequence*> followers_;
  std::vector<std::uint64_t> hashes_;  // computed when page_hashes() is first called
};

}  // namespace pumice::engine
