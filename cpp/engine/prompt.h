// One prompt of a request, and the sequences that continue it (GenerateParams::n).
//
// The leader, the first of them, computes the prompt's keys and values; the others follow it. When the first token is chosen, each of them
// draws its own from the same row of logits, and fork() gives each follower the leader's pages. A leader that ends before that hands over
// to a follower.
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
  // How many next tokens are chosen from the row of `sequence`: one, and one for each of its followers.
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
  // `sequence` has computed the prompt: its followers go on in pages of their own, and nothing is shared any more. A follower for which
  // there is no page computes the prompt itself. Gives all whose next tokens are chosen from the row, in the order of each_sharing().
  std::vector<Sequence*> fork(Sequence& sequence, PagePool& pool);

  // A hash of the prompt up to the end of each full page. `ids` begins with the prompt. Equal beginnings have equal hashes.
  const std::vector<std::uint64_t>& page_hashes(std::span<const std::int32_t> ids);

  const std::int32_t tokens;
  std::int32_t reused = -1;  // tokens that were in the prefix cache when its first pages were had; -1: it has had none

 private:
  Sequence* leader_ = nullptr;
  std::vector<Sequence*> followers_;
  std::vector<std::uint64_t> hashes_;  // made when first asked for
};

}  // namespace pumice::engine
