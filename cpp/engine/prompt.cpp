#include "engine/prompt.h"

#include <algorithm>

#include "core/error.h"
#include "engine/sequence.h"

namespace pumice::engine {

void Prompt::add(Sequence& sequence) {
  if (leader_) {
    sequence.life = Sequence::Life::following;
    followers_.push_back(&sequence);
  } else {
    sequence.life = Sequence::Life::waiting;
    leader_ = &sequence;
  }
}

void Prompt::leave(Sequence& sequence) {
  if (&sequence != leader_) {
    std::erase(followers_, &sequence);
    return;
  }
  leader_ = nullptr;
  const auto next = std::ranges::find_if(followers_, [](const Sequence* s) { return s->in_step != Sequence::InStep::leaving; });
  if (next == followers_.end()) return;
  leader_ = *next;
  leader_->life = Sequence::Life::waiting;
  followers_.erase(next);
}

std::vector<Sequence*> Prompt::fork(Sequence& sequence, PagePool& pool) {
  std::vector<Sequence*> sharing;
  each_sharing(sequence, [&](Sequence& s) { sharing.push_back(&s); });
  if (sharing.size() == 1) return sharing;
  for (Sequence* follower : followers_) {
    if (follower->in_step == Sequence::InStep::leaving) continue;  // the follower ends when this step is over
    bool shared = false;
    try {
      shared = pool.fork(sequence.table, static_cast<std::int32_t>(sequence.computed), follower->table);
    } catch (const Error&) {
      // The page could not be copied, so the follower will compute the prompt itself. If this fails, too, the step that computes it reports
      // the error.
    }
    follower->life = shared ? Sequence::Life::running : Sequence::Life::waiting;
    follower->computed = shared ? sequence.computed : 0;
  }
  followers_.clear();
  return sharing;
}

const std::vector<std::uint64_t>& Prompt::page_hashes(std::span<const std::int32_t> ids) {
  if (!hashes_.empty()) return hashes_;
  std::uint64_t hash = 0x9e3779b97f4a7c15ull;
  for (std::int32_t i = 0; i < tokens; ++i) {
    hash = (hash ^ static_cast<std::uint32_t>(ids[static_cast<std::size_t>(i)])) * 0xbf58476d1ce4e5b9ull;
    hash ^= hash >> 29;
    if ((i + 1) % kPageTokens == 0) hashes_.push_back(hash);
  }
  return hashes_;
}

}  // namespace pumice::engine
