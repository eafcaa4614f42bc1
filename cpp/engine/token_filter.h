// Token filters say which tokens may come next in a sequence: a grammar, bad words, a shortest length.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace pumice::engine {

// Each sequence has filters of its own, and passes each token that it takes to them. An Error that a filter throws ends its request alone.
class TokenFilter {
 public:
  virtual ~TokenFilter() = default;
  virtual void mask(std::span<std::uint32_t> words) = 0;   // bit i: token i may come. Changes nothing that accept() sees
  virtual bool accept(std::int32_t id) = 0;                // returns false if it is complete: nothing can follow (Finish::grammar)
  virtual std::unique_ptr<TokenFilter> clone() const = 0;  // for the samples of one prompt, and for tokens that are guessed ahead
  virtual bool open() const { return false; }              // true if mask() would allow every token; it is then not called

  // Where all tokens that a mask allows begin the same text (a key that must come), foreseen() gives the longest of them: a good guess.
  virtual bool foresees() const { return false; }  // whether foreseen() may give a token
  virtual std::int32_t foreseen(std::span<const std::uint32_t>) const { return -1; }
};

}  // namespace pumice::engine
