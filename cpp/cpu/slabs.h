// Memory for units of equal size (pages of caches, or states). More units can be reserved at any time, and existing units never move.
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
  // Error messages contain `what` and `unit`, for example "the kv cache" and "pages".
  Slabs(std::uint64_t unit_bytes, std::string what, std::string unit);

  // Ensures that count() is at least `units`. Throws out_of_memory.
  void reserve(std::int32_t units);
  std::int32_t count() const { return count_.load(std::memory_order_acquire); }
  std::uint64_t unit_bytes() const { return unit_bytes_; }
  // Returns the address of unit `id`, which must be below count(). May run at the same time as reserve().
  std::uint8_t* at(std::int32_t id) const {
    if (unit_bytes_ == 0) return nullptr;
    return slabs_[static_cast<std::size_t>(id >> bits_)].data() + static_cast<std::uint64_t>(id & ((1 << bits_) - 1)) * unit_bytes_;
  }
  void require_unit(std::int32_t id) const;  // throws invalid_argument if `id` is not below count()

 private:
  const std::uint64_t unit_bytes_;
  const std::string what_, unit_;
  int bits_ = 0;  // a slab has 2^bits_ units, which together take about 16 MiB
  std::mutex lock_;
  std::vector<Buffer> slabs_;  // has its full length from the start, so that the vector never moves while another thread reads it
  std::atomic<std::int32_t> count_{0};
};

}  // namespace pumice::cpu
