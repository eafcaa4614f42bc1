// Counts the allocations of this test program, and makes one or all from the Nth on fail, or calls a function at the Nth.
//
// Allocations are operator new, aligned_alloc and mmap (CMakeLists.txt wraps the last two). Those of llguidance, which is Rust, are not
// counted.
#pragma once

#include <atomic>
#include <cstdint>

namespace pumice::faults {

struct Faults {
  // Makes calls number `call` to call + count - 1 fail, counted from now, or has them call `in_place` and not fail. Calls of all threads
  // count.
  void arm(std::int64_t call, std::int64_t count = 1, void (*in_place)() = nullptr) {
    failed = 0;
    calls = 0;
    instead = in_place;
    last = count > INT64_MAX - call ? INT64_MAX : call + count;
    first = call;
  }
  void disarm() {
    first = last = INT64_MAX;
    instead = nullptr;
  }

  std::atomic<std::int64_t> calls{0}, first{INT64_MAX}, last{INT64_MAX};  // calls number first to last - 1 fail
  std::atomic<std::int64_t> failed{0}, held{0};                           // held: bytes that are allocated and not freed
  std::atomic<void (*)()> instead{nullptr};                               // if set, these calls call it and do not fail
};
extern Faults allocations, reads;

// Counts a call. Returns whether it must fail.
bool fails(Faults& faults);

}  // namespace pumice::faults
