// Where a sequence of a model with states leaves states in the prefix tree, besides at its end, so that later texts can continue there.
#pragma once

#include <cstdint>

#include "engine/sequence.h"

namespace pumice::engine {

inline constexpr std::int64_t kSnapshotTokens = 2048;  // a state is left after each multiple of so many tokens
// The state of a prompt is left at the last page end that is at least so many tokens before the prompt's end. A chat template may end a
// prompt with tokens that the next turn's prompt lacks ("<think>"), and the next turn is to continue from this state all the same.
inline constexpr std::int64_t kTurnTokens = 16;

// Does the sequence leave the state after its first `tokens` tokens?
inline bool is_snapshot(const Sequence& s, std::int64_t tokens) {
  if (tokens <= 0 || tokens % kPageTokens != 0) return false;
  if (tokens % kSnapshotTokens == 0) return true;
  const std::int64_t prompt = s.prompt->tokens;
  if (tokens <= prompt && tokens == (prompt - kTurnTokens) / kPageTokens * kPageTokens) return true;
  // The tree knows the text up to here, so other texts begin in the same way. The next one finds the state.
  return tokens == s.table.known();
}

}  // namespace pumice::engine
