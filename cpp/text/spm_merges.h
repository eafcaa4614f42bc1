// A SentencePiece BPE vocabulary has tokens and scores, but no merges. spm_merges() derives the merges that a BPE tokenizer needs.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace pumice::text {

struct Merge {
  std::int32_t left, right;  // token ids; their concatenated text is a token
};

// Returns the merges of a vocabulary in order of priority: higher score first, then lower id of the merged token.
//
// A token needs one merge, not one for each split whose halves are tokens. Say symbols x and y stand side by side in some text. Every merge
// inside their span had the highest priority in the whole text when it was done, so also within the span. Tokenizing xy alone therefore
// does the same merges in the same order and ends with x and y. So the only split of a token that ever occurs is the last one left when the
// token itself is tokenized. For Gemma's 262,144 tokens that makes 236,000 merges in place of 514,000.
//
// mergeable[i] is 0 for tokens that merging must never produce: control, unknown, byte and user-defined ones. Throws Error(model_format) if
// scores or mergeable have another length than tokens, if a score is not a number, or if a token is not UTF-8.
std::vector<Merge> spm_merges(std::span<const std::string_view> tokens, std::span<const float> scores,
                              std::span<const std::uint8_t> mergeable);

}  // namespace pumice::text
