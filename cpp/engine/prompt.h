// One prompt of a request, and the sequences that continue it (GenerateParams::n).
//
// The first sequence, the leader, computes the keys and values of the prompt; the others follow it. Each of them draws its own first token
// from the leader's row of logits, and fork() shares the leader's pages with each follower. Where the leader ends before that, a follower
// takes its place.
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

  void add(Sequence& sequence);  // the first one leads, the others follow
  // How many tokens are chosen from the row of `sequence`: one for itself, and one for each follower.
  std::size_t sharing(const Sequence& sequence) const { return &sequence == leader_ ? 1 + followers_.size() : 1; }
  // Calls visit(s) for `sequence`, then for each of its followers.
  template <class Visit>
  void each_sharing(Sequence& sequence, Visit&& visit) {
    visit(sequence);
    if (&sequence != leader_) return;
    for (Sequence* follower : followers_) visit(*follower);
  }
  // `sequence` has ended: where it led, the next follower leads and waits for pages.
  void leave(Sequence& sequence);
  // `sequence` has computed the prompt: its followers go on by themselves, with full pages shared and a copy of the last. A follower that
  // finds no page for the copy computes the prompt itself. Gives the sequences that choose from the row, in the order of each_sharing().
  std::vector<Sequence*> fork(Sequence& sequence, PagePool& pool);

  // A hash of the prompt up to the end of each full page. `ids` begins with the prompt. Equal beginnings have equal hashes.
  const std::vector<std::uint64_t>& page_hashes(std::span<const std::int32_t> ids);

  const std::int32_t tokens;
  std::int32_t reused = -1;  // tokens that the prefix cache had when pages were first taken; -1: none were taken yet

 private:
  Sequence* leader_ = nullptr;
  std::vector<Sequence*> followers_;
  std::vector<std::uint64_t> hashes_;  // made when first asked for
};

}  // namespace pumice::engine
