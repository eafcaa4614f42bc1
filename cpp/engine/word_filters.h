// Token filters over lists of ids: ids that wait until an answer is long enough, and rows of ids that may not come.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/token_filter.h"

namespace pumice::engine {

// `ids` may not be among the first `count` tokens.
std::unique_ptr<TokenFilter> not_before(std::span<const std::int32_t> ids, std::int64_t count);

// Runs of ids that must not come whole, none of them empty: the last id of a run is forbidden where the others stand before it.
class BadWords {
 public:
  BadWords(std::vector<std::vector<std::int32_t>> words, std::int32_t vocab);
  std::size_t longest() const { return longest_; }
  // Clears the bits of ids that would complete a run after `ids`; runs of one id are in mask().
  template <class Visit>
  void each_ending(std::span<const std::int32_t> ids, Visit&& visit) const {
    for (const std::vector<std::int32_t>& word : longer_) {
      const auto before = std::span(word).first(word.size() - 1);
      if (ids.size() >= before.size() && std::ranges::equal(ids.last(before.size()), before)) visit(word.back());
    }
  }
  std::span<const std::uint32_t> mask() const { return mask_; }  // without the words of one id; empty: there are none

 private:
  std::vector<std::vector<std::int32_t>> longer_;
  std::vector<std::uint32_t> mask_;
  std::size_t longest_ = 1;
};

// prompt: what stands before the answer, for a word may begin in it.
std::unique_ptr<TokenFilter> without(std::shared_ptr<const BadWords> words, std::span<const std::int32_t> prompt);

}  // namespace pumice::engine
