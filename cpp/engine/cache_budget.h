// Divides the byte budget of a model's cache between pages (keys and values of 32 positions) and states (of recurrent layers).
//
// A running sequence needs two states: the state after its computed tokens, and the state that the next step writes. Further states are
// kept in the prefix tree, so that later texts can continue from them. The number of these states follows from the number of pages. It is
// at least one for every 64 pages, because a long text leaves a state after every 2,048 positions. If states are small, there are more of
// them, namely as many as take an eighth of the pages' bytes, but at most one state per page.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/checked.h"
#include "core/error.h"

namespace pumice::engine {

struct CacheUnits {
  // Number of bytes of one page (0 if the model has no key-value caches) and of one state (0 if the model has no states).
  std::uint64_t page_bytes = 0, state_bytes = 0;

  static constexpr std::uint64_t kPagesPerState = 64, kRunningStates = 2, kSpareStates = 6;
  std::uint64_t states_for(std::uint64_t pages) const {
    if (state_bytes == 0) return 0;
    const std::uint64_t per_state =
        page_bytes == 0 ? kPagesPerState : std::clamp<std::uint64_t>(8 * state_bytes / page_bytes, 1, kPagesPerState);
    return kRunningStates + std::min(pages, kSpareStates) + pages / per_state;
  }
  // Returns the number of bytes that `pages` pages take together with their states. Throws out_of_memory if the number does not fit in 64
  // bits.
  std::uint64_t bytes_for(std::uint64_t pages) const {
    const std::uint64_t of_pages = mul_or_fail<std::uint64_t>(pages, page_bytes, "keys and values");
    const auto sum = checked_add(of_pages, mul_or_fail<std::uint64_t>(states_for(pages), state_bytes, "states"));
    if (!sum) fail(ErrorKind::out_of_memory, "the cache takes more bytes than can be addressed");
    return *sum;
  }
  // Returns the largest number of pages that fit into `bytes` with their states; 0 if not even one page fits.
  std::uint64_t pages_in(std::uint64_t bytes) const {
    constexpr std::uint64_t kMost = std::uint64_t{1} << 26;  // this many pages hold 2^31 positions
    std::uint64_t fits = 0, too_many = kMost + 1;
    const auto fit = [&](std::uint64_t pages) {
      const auto of_pages = checked_mul(pages, page_bytes), of_states = checked_mul(states_for(pages), state_bytes);
      const auto sum = of_pages && of_states ? checked_add(*of_pages, *of_states) : std::nullopt;
      return sum && *sum <= bytes;
    };
    while (too_many - fits > 1) {
      const std::uint64_t middle = fits + (too_many - fits) / 2;
      (fit(middle) ? fits : too_many) = middle;
    }
    return fits;
  }
};

}  // namespace pumice::engine
