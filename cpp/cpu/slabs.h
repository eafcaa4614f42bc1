// Memory for units of one size, which are reserved over time and never move: pages of caches, and states.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cpu/buffer.h"

namespace pumice::cpu {

class Slabs {
 public:
  // `what` and `unit` are for errors: "the kv cache", "pages".
  Slabs(std::uint64_t unit_bytes, std::string what, std::string unit);

  // Brings count() to at least `units`. Throws out_of_memory.
  void reserve(std::int32_t units);
  std::int32_t count() const { return count_.load(std::memory_order_acquire); }
  std::uint64_t unit_bytes() const { return unit_bytes_; }
  // Returns the address of a unit; `id` must be below count(). May run concurrently with reserve().
  std::uint8_t* at(std::int32_t id) const {
    if (unit_bytes_ == 0) return nullptr;
    return slabs_[static_cast<std::size_t>(id >> bits_)].data() + static_cast<std::uint64_t>(id & ((1 << bits_) - 1)) * unit_bytes_;
  }
  void require_unit(std::int32_t id) const;  // throws invalid_argument if `id` is not below count()

 private:
  const std::uint64_t unit_bytes_;
  const std::string what_, unit_;
  int bits_ = 0;  // a slab holds 2^bits_ units, as many as make about 16 MiB
  std::mutex lock_;
  std::vector<Buffer> slabs_;  // allocated at full length, so that the vector never moves under a reader
  std::atomic<std::int32_t> count_{0};
};

}  // namespace pumice::cpu
