// A token filter that ends a model's reasoning after a given number of tokens.
//
// A model marks its reasoning with texts such as "<think>" and "</think>". The filter reads the bytes of the tokens and finds the markers
// as the parser of answers does, however they are cut into tokens. Tokens before the budget is used up are those that come without it. Then
// the filter allows only the tokens that spell the closing marker, one after another. So they are tokens like all others: grammars accept
// them, guesses that differ from them are dropped, and their log-probabilities are those of the model. From then on, no token is allowed
// that would begin reasoning again.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/token_bytes.h"
#include "engine/token_filter.h"

namespace pumice::engine {

// A text that is looked for in text that arrives byte by byte (Knuth, Morris and Pratt 1977).
class Marker {
 public:
  explicit Marker(std::string_view text = {});
  std::size_t size() const { return text_.size(); }
  std::span<const std::uint8_t> text() const { return text_; }
  // Returns how many of the marker's first bytes the text ends with after `byte`, if it ended with `matched` of them before. `matched` is
  // less than size().
  std::size_t after(std::size_t matched, std::uint8_t byte) const;
  // Returns the next smaller number of the marker's first bytes with which a text ends that ends with the first `matched`, at least one.
  std::size_t shorter(std::size_t matched) const { return shorter_[matched - 1]; }

 private:
  std::vector<std::uint8_t> text_;
  std::vector<std::size_t> shorter_;  // for each number of matched bytes, the next smaller number that matches too
};

// How the answers of a model mark reasoning. Requests share it. Special tokens are spelled without their byte 0xFF.
struct ReasoningMarks {
  std::shared_ptr<const TokenBytes> tokens;
  Marker open, close;
  std::vector<std::int32_t> close_ids;  // the tokens that spell `close`
  Marker call = Marker();               // begins a tool call, after which no reasoning comes; empty: none
  // Consecutive ids that begin reasoning although they are only a part of `open`, because no other part of an answer begins so; or empty.
  std::vector<std::int32_t> again = {};
  std::vector<std::int32_t> openers = {};  // tokens_with(open, tokens)
  bool leads = false;  // reasoning can only be the first part of an answer; later texts that look like a marker are none
};

// Returns the tokens that contain a marker whole.
std::vector<std::int32_t> tokens_with(const Marker& marker, const TokenBytes& tokens);

// Returns a filter that ends the reasoning of an answer after `most` tokens. Tokens of all parts of the reasoning count, without those that
// complete a marker. The filter lets the model complete a character of UTF-8, for at most three more tokens, because grammars allow
// no marker inside of one. opened: the prompt has already opened the reasoning.
std::unique_ptr<TokenFilter> reasoning_budget(std::shared_ptr<const ReasoningMarks> marks, std::int64_t most, bool opened);

}  // namespace pumice::engine
