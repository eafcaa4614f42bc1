// Decides after which tokens a sequence leaves states in the prefix tree, so that later texts can continue from these states. A sequence
// also leaves a state at its end (PagePool::release). Only models with recurrent layers have states.
#pragma once

#include <cstdint>

#include "engine/sequence.h"

namespace pumice::engine {

inline constexpr std::int64_t kSnapshotTokens = 2048;  // a sequence leaves a state after each multiple of this many tokens
// Minimum number of tokens between the state that a prompt leaves and the end of the prompt. A chat template may end a prompt with tokens
// that the next turn's prompt lacks ("<think>"). The next turn can still continue from a state before these tokens.
inline constexpr std::int64_t kTurnTokens = 16;

// Returns true if the sequence must leave the state after its first `tokens` tokens.
inline bool is_snapshot(const Sequence& s, std::int64_t tokens) {
  if (tokens <= 0 || tokens % kPageTokens != 0) return false;
  if (tokens % kSnapshotTokens == 0) return true;
  const std::int64_t prompt = s.prompt->tokens;
  if (tokens <= prompt && tokens == (prompt - kTurnTokens) / kPageTokens * kPageTokens) return true;
  // When the sequence began, the prefix tree had pages for the first known() tokens. So several texts begin with these tokens, and the next
  // such text can continue from this state.
  return tokens == s.table.known();
}

}  // namespace pumice::engine
