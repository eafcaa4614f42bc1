// A library for LD_PRELOAD (allocation_faults.py compiles it): operator new fails at a chosen call from pumice's module, or from the C++
// library on its behalf. Allocations of Python and of Rust packages do not count.
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

struct Range {
  std::uintptr_t begin = 0, end = 0;
  bool has(const void* at) const { return begin <= reinterpret_cast<std::uintptr_t>(at) && reinterpret_cast<std::uintptr_t>(at) < end; }
};
Range module, library;
// pybind11 enters each new object in a map after its try block, so that a failure there ends the process (pybind11 3.0, cpp_function's
// dispatcher: init_instance()). Nodes of this map have 24 bytes. Allocations of that size do not fail here.
constexpr std::size_t kNode = 24;
std::atomic<long> calls{0}, first{-1}, last{-1}, failed{0};
std::atomic<bool> watches{false};

int find(dl_phdr_info* info, std::size_t, void*) {
  Range* to = std::strstr(info->dlpi_name, "/_core.") ? &module : std::strstr(info->dlpi_name, "libstdc++") ? &library : nullptr;
  if (!to) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    const std::uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    to->begin = to->begin == 0 ? begin : std::min(to->begin, begin);
    to->end = std::max(to->end, begin + part.p_memsz);
  }
  return 0;
}

void* allocate(std::size_t size, std::size_t alignment, const void* from) {
  if (watches.load(std::memory_order_relaxed) && size != kNode && (module.has(from) || library.has(from))) {
    const long call = calls++;
    if (call >= first && call < last) {
      ++failed;
      return nullptr;
    }
  }
  return alignment == 0 ? std::malloc(size) : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void allocation_faults_watch(long call, long count) {
  watches = false;
  if (module.begin == 0) dl_iterate_phdr(find, nullptr);
  calls = 0, failed = 0, first = call, last = call + count;
  watches = call >= 0;
}
extern "C" __attribute__((visibility("default"))) long allocation_faults_failed() { return failed; }
extern "C" __attribute__((visibility("default"))) long allocation_faults_calls() { return calls; }

void* operator new(std::size_t size) {
  void* made = allocate(size, 0, __builtin_return_address(0));
  if (!made) throw std::bad_alloc();
  return made;
}
void* operator new[](std::size_t size) {
  void* made = allocate(size, 0, __builtin_return_address(0));
  if (!made) throw std::bad_alloc();
  return made;
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size, 0, __builtin_return_address(0)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  void* made = allocate(size, static_cast<std::size_t>(alignment), __builtin_return_address(0));
  if (!made) throw std::bad_alloc();
  return made;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
