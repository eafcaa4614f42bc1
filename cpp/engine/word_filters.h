// Token filters for lists of ids: not_before() forbids some ids until an answer is long enough, and without() forbids bad words.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/token_filter.h"

namespace pumice::engine {

// Returns a filter that forbids `ids` among the first `count` tokens of an answer.
std::unique_ptr<TokenFilter> not_before(std::span<const std::int32_t> ids, std::int64_t count);

// A list of bad words. A word is a list of one or more consecutive ids that must not be generated completely. So the last id of a word is
// forbidden if the text ends with the other ids of the word.
class BadWords {
 public:
  BadWords(std::vector<std::vector<std::int32_t>> words, std::int32_t vocab);
  std::size_t longest() const { return longest_; }
  // Calls visit() with each id that would complete a word after `ids`. Words of one id are left out, because mask() forbids them.
  template <class Visit>
  void each_ending(std::span<const std::int32_t> ids, Visit&& visit) const {
    for (const std::vector<std::int32_t>& word : longer_) {
      const auto before = std::span(word).first(word.size() - 1);
      if (ids.size() >= before.size() && std::ranges::equal(ids.last(before.size()), before)) visit(word.back());
    }
  }
  // Returns the mask of allowed tokens, which forbids the words that have only one id. Returns an empty span if there are no such words.
  std::span<const std::uint32_t> mask() const { return mask_; }

 private:
  std::vector<std::vector<std::int32_t>> longer_;
  std::vector<std::uint32_t> mask_;
  std::size_t longest_ = 1;
};

// Returns a filter that forbids `words`. `prompt` is the text before the answer. It is needed because a word may begin in the prompt.
std::unique_ptr<TokenFilter> without(std::shared_ptr<const BadWords> words, std::span<const std::int32_t> prompt);

}  // namespace pumice::engine
