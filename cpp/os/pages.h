// Pages of memory that are mapped from the system.
#pragma once

#include <cstdint>

namespace pumice::os {

std::uint64_t page_bytes();  // returns 4 KiB on x86-64, 16 KiB on Apple silicon, and up to 64 KiB on other ARM machines
// Returns the size of a huge page, which is also its alignment. Returns 0 if the system has no huge pages of a useful size.
std::uint64_t huge_page_bytes();

// Requests huge pages for [begin, begin + bytes). This is only a hint. Without huge pages everything works, but more slowly.
void prefer_huge_pages(void* begin, std::uint64_t bytes);

}  // namespace pumice::os
