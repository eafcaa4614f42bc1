// Token filters decide which tokens are allowed next in a sequence. Grammars, bad words, a minimum length and a budget for reasoning are
// token filters.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace pumice::engine {

// Each sequence has filters of its own, and calls their accept() with each token that it takes. If a filter throws an Error, only the
// request of its sequence ends.
class TokenFilter {
 public:
  virtual ~TokenFilter() = default;
  virtual void mask(std::span<std::uint32_t> words) = 0;   // sets bit i if token i is allowed next, else clears it; accept() is as before
  virtual bool accept(std::int32_t id) = 0;                // takes a token. Returns false if no token can follow it (Finish::grammar)
  virtual std::unique_ptr<TokenFilter> clone() const = 0;  // used for the samples of one prompt, and to try guessed tokens
  virtual bool open() const { return false; }              // returns true if all tokens are allowed next; mask() is then not called
  // Returns the place in the answer of the first token that ends the reasoning because its budget is used up, or -1. The token may not have
  // been taken yet.
  virtual std::int64_t reasoning_cut() const { return -1; }

  // foreseen() gets the mask of the next token. If all tokens that the mask allows are beginnings of one text (for example, of a JSON key
  // that must come next), foreseen() returns the longest of these tokens, which is a good guess. Otherwise it returns -1.
  virtual bool foresees() const { return false; }  // returns whether foreseen() ever returns a token
  virtual std::int32_t foreseen(std::span<const std::uint32_t>) const { return -1; }
};

}  // namespace pumice::engine
