// A token filter that ends a model's reasoning after a given number of tokens.
//
// A model marks its reasoning with texts such as "<think>" and "</think>". The filter searches the bytes of the tokens for these markers,
// as the parser of answers does, so a marker is found however it is divided into tokens. Until the budget is used up, the filter allows all
// tokens. Then it allows only the tokens of the closing marker, one after another. These tokens are chosen like all others: grammars must
// accept them, guesses that differ from them are dropped, and their log-probabilities are those of the model. After that, the filter
// forbids every token that would begin reasoning again.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/token_bytes.h"
#include "engine/token_filter.h"

namespace pumice::engine {

// Searches for a marker in a text that arrives byte by byte (Knuth, Morris and Pratt 1977).
class Marker {
 public:
  explicit Marker(std::string_view text = {});
  std::size_t size() const { return text_.size(); }
  std::span<const std::uint8_t> text() const { return text_; }
  // Appends `byte` to a text that ends with the first `matched` bytes of the marker. Returns how many of the marker's first bytes the
  // longer text ends with. `matched` must be less than size().
  std::size_t after(std::size_t matched, std::uint8_t byte) const;
  // Returns the largest n < matched for which every text that ends with the first `matched` bytes of the marker also ends with the first n
  // bytes of the marker. n may be 0. `matched` must be at least 1.
  std::size_t shorter(std::size_t matched) const { return shorter_[matched - 1]; }

 private:
  std::vector<std::uint8_t> text_;
  std::vector<std::size_t> shorter_;  // shorter_[i] is shorter(i + 1)
};

// How the answers of a model mark reasoning. All requests share this object. In a marker, a special token is spelt as its text, without the
// first byte 0xFF (TokenBytes).
struct ReasoningMarks {
  std::shared_ptr<const TokenBytes> tokens;
  Marker open, close;
  std::vector<std::int32_t> close_ids;  // the tokens that spell `close`
  Marker call = Marker();               // begins a tool call, after which no reasoning follows; empty if there is no such marker
  // Consecutive ids that spell only the first part of `open`, but count as the beginning of reasoning, because no other part of an answer
  // begins with them. Empty if there are no such ids.
  std::vector<std::int32_t> again = {};
  std::vector<std::int32_t> openers = {};  // tokens that contain all of `open`: the result of tokens_with(open, tokens)
  bool leads = false;  // true if only the first part of an answer can be reasoning, so that later markers are plain text
};

// Returns the tokens that contain all bytes of a marker.
std::vector<std::int32_t> tokens_with(const Marker& marker, const TokenBytes& tokens);

// Returns a filter that ends the reasoning of an answer after `most` tokens. If an answer has several parts with reasoning, the tokens of
// all these parts count, but tokens that complete a marker do not. If the budget ends in the middle of a UTF-8 character, the filter first
// allows up to three more tokens to complete the character, because grammars allow no marker inside of a character. `opened` is true if the
// prompt ends inside of reasoning.
std::unique_ptr<TokenFilter> reasoning_budget(std::shared_ptr<const ReasoningMarks> marks, std::int64_t most, bool opened);

}  // namespace pumice::engine
