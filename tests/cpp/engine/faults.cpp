#include "engine/faults.h"

#include <malloc.h>
#include <sys/mman.h>
#include <sys/types.h>

#include <cerrno>
#include <cstdlib>
#include <new>

namespace pumice::faults {

Faults allocations, reads;

bool fails(Faults& faults) {
  const std::int64_t call = faults.calls.fetch_add(1, std::memory_order_relaxed);
  if (call < faults.first.load(std::memory_order_relaxed) || call >= faults.last.load(std::memory_order_relaxed)) return false;
  faults.failed.fetch_add(1, std::memory_order_relaxed);
  void (*const instead)() = faults.instead.load(std::memory_order_relaxed);
  if (instead) instead();
  return !instead;
}

}  // namespace pumice::faults

namespace {

using pumice::faults::allocations;
using pumice::faults::fails;

void* counted(void* memory) {
  if (memory) allocations.held += static_cast<std::int64_t>(::malloc_usable_size(memory));
  return memory;
}

}  // namespace

void* operator new(std::size_t size) {
  void* memory = fails(allocations) ? nullptr : counted(std::malloc(size));
  if (!memory) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto to = static_cast<std::size_t>(alignment);
  void* memory = fails(allocations) ? nullptr : counted(std::aligned_alloc(to, (size + to - 1) / to * to));
  if (!memory) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return fails(allocations) ? nullptr : counted(std::malloc(size)); }
void* operator new[](std::size_t size) { return operator new(size); }
void* operator new[](std::size_t size, const std::nothrow_t& nothrow) noexcept { return operator new(size, nothrow); }
void operator delete(void* memory) noexcept {
  if (memory) allocations.held -= static_cast<std::int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { operator delete(memory); }
void operator delete[](void* memory) noexcept { operator delete(memory); }
void operator delete[](void* memory, std::size_t) noexcept { operator delete(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { operator delete(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { operator delete(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { operator delete(memory); }

extern "C" {
void* __real_aligned_alloc(std::size_t alignment, std::size_t size);
void* __wrap_aligned_alloc(std::size_t alignment, std::size_t size) {
  return fails(allocations) ? nullptr : __real_aligned_alloc(alignment, size);
}
void* __real_mmap(void* at, std::size_t size, int protection, int flags, int file, off_t offset);
void* __wrap_mmap(void* at, std::size_t size, int protection, int flags, int file, off_t offset) {
  return fails(allocations) ? (errno = ENOMEM, MAP_FAILED) : __real_mmap(at, size, protection, flags, file, offset);
}
}
