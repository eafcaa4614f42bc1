// What may come next in one sequence: a grammar, bad words, a shortest length.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace pumice::engine {

// A sequence has its own, and tells it of each token that it takes. Throws Error: its request ends with it, and no other does.
class TokenFilter {
 public:
  virtual ~TokenFilter() = default;
  virtual void mask(std::span<std::uint32_t> words) = 0;   // bit i: token i may come. Changes nothing that accept() sees
  virtual bool accept(std::int32_t id) = 0;                // false: complete, nothing can follow (Finish::grammar)
  virtual std::unique_ptr<TokenFilter> clone() const = 0;  // for the samples of one prompt, and for tokens that are guessed ahead
  virtual bool open() const { return false; }              // mask() would allow everything: it need not be asked

  // Where all that a mask allows are beginnings of one text (the name of a key that must come), the longest of them: a good guess.
  virtual bool foresees() const { return false; }  // foreseen() may give one
  virtual std::int32_t foreseen(std::span<const std::uint32_t>) const { return -1; }
};

}  // namespace pumice::engine
