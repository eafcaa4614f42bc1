// Token filters decide which tokens are allowed next in a sequence. Grammars, bad words, a minimum length and a budget for reasoning are
// token filters.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace pumice::engine {

// Decides which tokens are allowed next in one sequence. accept() is called for each token that is appended to the sequence. If a filter
// throws an Error, only the request of its sequence ends.
class TokenFilter {
 public:
  virtual ~TokenFilter() = default;
  // Sets bit i of `words` if token i is allowed next, and clears the other bits. Does not change what the filter accepts.
  virtual void mask(std::span<std::uint32_t> words) = 0;
  virtual bool accept(std::int32_t id) = 0;                // appends a token; returns false if no token can follow (Finish::grammar)
  virtual std::unique_ptr<TokenFilter> clone() const = 0;  // needed for the other sequences of a prompt, and to try guesses
  virtual bool open() const { return false; }              // returns true if all tokens are allowed next, so that mask() need not be called
  // If the reasoning budget is used up, returns the index in the answer at which the filter ends the reasoning. The token at this index
  // might not have been chosen yet. Otherwise returns -1.
  virtual std::int64_t reasoning_cut() const { return -1; }

  // foreseen() guesses the next token. Its argument is the mask for this token. If all tokens that the mask allows are beginnings of one
  // text (for example, of a JSON key that must come next), it returns the longest of these tokens, otherwise -1.
  virtual bool foresees() const { return false; }  // returns false if foreseen() always returns -1
  virtual std::int32_t foreseen(std::span<const std::uint32_t>) const { return -1; }
};

}  // namespace pumice::engine
