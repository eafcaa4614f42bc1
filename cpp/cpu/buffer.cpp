#include "cpu/buffer.h"

#include <sys/mman.h>

#include <cstdlib>

#include "core/checked.h"
#include "os/limits.h"
#include "os/pages.h"

namespace pumice::cpu {
namespace {
constexpr std::uint64_t kMapFrom = 1 << 20;
}  // namespace

Buffer::Buffer(std::uint64_t bytes, const std::string& what) {
  if (bytes == 0) return;
  const auto fail_with_bytes = [&] { fail(ErrorKind::out_of_memory, "cpu: ", what, ": ", bytes, " bytes cannot be allocated"); };
  const bool large = bytes >= kMapFrom;
  const std::uint64_t huge_page = os::huge_page_bytes();
  const bool huge = huge_page > 0 && bytes >= huge_page;
  const auto size = checked_align(bytes, huge ? huge_page : large ? os::page_bytes() : 64);
  if (!size || *size > static_cast<std::uint64_t>(INT64_MAX) - huge_page) fail_with_bytes();
  if (!large) {
    data_ = static_cast<std::uint8_t*>(std::aligned_alloc(64, *size));
    if (!data_) fail_with_bytes();
    bytes_ = bytes;
    return;
  }
  // A huge page must begin at a multiple of its size. The code therefore maps one huge page more than it needs, and then unmaps the surplus
  // at both ends.
  const std::uint64_t slack = huge ? huge_page : 0;
  void* mapped = ::mmap(nullptr, *size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) fail_with_bytes();
  auto* begin = static_cast<std::uint8_t*>(mapped);
  if (slack > 0) {
    const std::uint64_t skip = (huge_page - reinterpret_cast<std::uintptr_t>(begin) % huge_page) % huge_page;
    if (skip > 0) ::munmap(begin, skip);
    if (slack > skip) ::munmap(begin + skip + *size, slack - skip);
    begin += skip;
    os::prefer_huge_pages(begin, *size);
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
  const os::Memory now = os::memory();
  if (now.total == 0 || bytes <= now.free) return;
  fail(ErrorKind::out_of_memory, "cpu: ", what, " needs ", bytes, " bytes, ", now.free, " of ", now.total,
       " are free; close other programs, or take a smaller model, quantization or context");
}

}  // namespace pumice::cpu
