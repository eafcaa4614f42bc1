// Pages of memory that are mapped from the system.
#pragma once

#include <cstdint>

namespace pumice::os {

std::uint64_t page_bytes();       // 4 KiB on x86-64; 16 KiB on Apple silicon; up to 64 KiB on other ARM machines
std::uint64_t huge_page_bytes();  // bytes, and alignment, of a huge page; 0 if the system has none that are worth their size

// Asks for huge pages for [begin, begin + bytes). This is only a hint: without huge pages everything works, but more slowly.
void prefer_huge_pages(void* begin, std::uint64_t bytes);

}  // namespace pumice::os
