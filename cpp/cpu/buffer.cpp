#include "cpu/buffer.h"

#include <cstdlib>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

#include "core/checked.h"
#include "cpu/system.h"

namespace pumice::cpu {
namespace {
constexpr std::uint64_t kMapFrom = 1 << 20;
constexpr std::uint64_t kHugePage = 2 << 20;
}  // namespace

Buffer::Buffer(std::uint64_t bytes, const std::string& what) {
  if (bytes == 0) return;
  const auto fail_with_bytes = [&] { fail(ErrorKind::out_of_memory, "cpu: ", what, ": ", bytes, " bytes cannot be allocated"); };
  const bool large = bytes >= kMapFrom;
  const auto size = checked_align(bytes, large && bytes >= kHugePage ? kHugePage : large ? 4096 : 64);
  if (!size || *size > static_cast<std::uint64_t>(INT64_MAX) - kHugePage) fail_with_bytes();
  if (!large) {
    data_ = static_cast<std::uint8_t*>(std::aligned_alloc(64, *size));
    if (!data_) fail_with_bytes();
    bytes_ = bytes;
    return;
  }
  // A huge page must begin at a multiple of its size. So one huge page more is mapped, and then both ends are unmapped.
  const std::uint64_t slack = *size >= kHugePage ? kHugePage : 0;
  void* mapped = ::mmap(nullptr, *size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) fail_with_bytes();
  auto* begin = static_cast<std::uint8_t*>(mapped);
  if (slack > 0) {
    const std::uint64_t skip = (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
    if (skip > 0) ::munmap(begin, skip);
    if (slack > skip) ::munmap(begin + skip + *size, slack - skip);
    begin += skip;
#if defined(MADV_HUGEPAGE)
    ::madvise(begin, *size, MADV_HUGEPAGE);  // only a hint; without huge pages everything works, but more slowly
#endif
  }
  data_ = begin;
  bytes_ = bytes;
  mapped_ = *size;
}

void Buffer::release() noexcept {
  if (mapped_ > 0) {
    ::munmap(data_, mapped_);
  } else {
    std::free(data_);
  }
}

void check_memory(std::uint64_t bytes, const std::string& what) {
  const Memory now = memory();
  if (now.total == 0 || bytes <= now.free) return;
  fail(ErrorKind::out_of_memory, "cpu: ", what, " needs ", bytes, " bytes, ", now.free, " of ", now.total,
       " are free; close other programs, or take a smaller model, quantization or context");
}

}  // namespace pumice::cpu
