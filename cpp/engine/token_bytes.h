// The bytes of a vocabulary's tokens. Grammars and the reasoning budget need the bytes that each token adds to an answer.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "core/error.h"

namespace pumice::engine {

// The bytes of each token of a vocabulary. All users of a model's vocabulary share one object, which never changes.
class TokenBytes {
 public:
  // `bytes` holds the bytes of all tokens one after another. `lengths` holds the number of bytes of each token, or 0 for an id that stands
  // for no token. The bytes of a special token begin with 0xFF, which occurs in no text. Throws invalid_argument if the sum of the lengths
  // is not the number of bytes.
  TokenBytes(std::span<const std::uint32_t> lengths, std::vector<std::uint8_t> bytes)
      : first_(lengths.size() + 1), bytes_(std::move(bytes)) {
    require(!lengths.empty() && lengths.size() <= std::numeric_limits<std::int32_t>::max(), "a vocabulary has at least one token");
    std::uint64_t total = 0;
    for (std::size_t id = 0; id < lengths.size(); ++id) {
      total += lengths[id];
      first_[id + 1] = static_cast<std::uint32_t>(total);
    }
    require(total == bytes_.size() && total <= std::numeric_limits<std::uint32_t>::max(), "lengths of tokens sum to ", total,
            ", and there are ", bytes_.size(), " bytes");
  }

  std::size_t size() const { return first_.size() - 1; }
  std::span<const std::uint8_t> of(std::size_t id) const { return std::span(bytes_).subspan(first_[id], first_[id + 1] - first_[id]); }
  std::span<const std::uint8_t> all() const { return bytes_; }

 private:
  std::vector<std::uint32_t> first_;  // offset in bytes_ of each token's first byte, and the size of bytes_ as the last element
  std::vector<std::uint8_t> bytes_;
};

}  // namespace pumice::engine
