// A SentencePiece BPE vocabulary has tokens and scores, but no merges. spm_merges() derives the merges that a BPE tokenizer needs.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace pumice::text {

struct Merge {
  std::int32_t left, right;  // token ids; their texts one after the other are the text of a third token
};

// Returns the merges of a vocabulary in order of priority: higher score first, then lower id of the merged token.
//
// A token needs only one merge, even if it can be split into two tokens in several ways. To see why, suppose that symbols x and y are
// neighbours while some text is tokenized. Each earlier merge inside the text of x and y had the highest priority in the whole text when it
// was done, and so also inside the text of x and y. Tokenizing only the text of x and y therefore does the same merges in the same order,
// and also reaches x and y. The only split of a token that ever occurs is thus the pair of symbols that remains before the last merge when
// the token's own text is tokenized. For Gemma's 262,144 tokens, this gives 236,000 merges instead of 514,000.
//
// mergeable[i] is 0 if no merge may produce token i, because it is a control, unknown, byte or user-defined token. Throws
// Error(model_format) if the length of `scores` or `mergeable` differs from that of `tokens`, if a score is not finite, or if a token with
// mergeable[i] != 0 is not UTF-8.
std::vector<Merge> spm_merges(std::span<const std::string_view> tokens, std::span<const float> scores,
                              std::span<const std::uint8_t> mergeable);

}  // namespace pumice::text
