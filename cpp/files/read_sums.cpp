#include "files/read_sums.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

namespace pumice::files {
namespace {

// The data are cut into words of kWordBytes bytes, and these into blocks of kWords words.
constexpr std::uint64_t kWordBytes = 4, kWords = 128;

// Returns a pseudo-random number for each x. This is splitmix64 (Steele, Lea and Flood 2014).
constexpr std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The numbers by which the words of a block are multiplied. They are odd, so that none is 0. They have 25 bits, so that 128 products with
// words of 32 bits add up to less than 2^64.
constexpr auto kFactors = [] {
  std::array<std::uint32_t, kWords> factors{};
  for (std::uint64_t i = 0; i < kWords; ++i) factors[i] = static_cast<std::uint32_t>(mixed(i) >> 39) | 1;
  return factors;
}();

// Returns the sum of `count` words of a block, beginning with word `first`. Word i of a block is multiplied by kFactors[i]. Words are read
// as little-endian numbers, so every machine gets the same sums.
std::uint64_t sum_of_words(const std::uint8_t* bytes, std::uint64_t first, std::uint64_t count) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint32_t word;
    std::memcpy(&word, bytes + kWordBytes * i, kWordBytes);
    if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap32(word);
    sum += std::uint64_t{word} * kFactors[first + i];
  }
  return sum;
}

// Returns a word that has bytes[0] to bytes[count - 1] at its byte positions `skipped` to skipped + count - 1. Its other bytes are 0.
std::uint64_t part_of_word(const std::uint8_t* bytes, std::uint64_t skipped, std::uint64_t count) {
  std::uint64_t word = 0;
  for (std::uint64_t i = 0; i < count; ++i) word |= std::uint64_t{bytes[i]} << (8 * (skipped + i));
  return word;
}

}  // namespace

// Returns the sum over all blocks, modulo 2^128. A block's term is its sum_of_words(), times an odd number of 64 bits that depends on the
// index of the block.
WideSum wide_sum(std::uint64_t offset, std::span<const std::uint8_t> bytes) {
  using Wide = unsigned __int128;
  const std::uint8_t* at = bytes.data();
  std::uint64_t left = bytes.size(), word = offset / kWordBytes;
  Wide sum = 0;
  const auto add = [&](std::uint64_t of_block) { sum += Wide{of_block} * (mixed(~(word / kWords)) | 1); };
  const auto add_part = [&](std::uint64_t skipped, std::uint64_t count) {
    add(part_of_word(at, skipped, count) * kFactors[word % kWords]);
    at += count;
    left -= count;
    ++word;
  };
  if (const std::uint64_t skipped = offset % kWordBytes; skipped != 0) add_part(skipped, std::min(left, kWordBytes - skipped));
  while (left >= kWordBytes) {
    const std::uint64_t first = word % kWords, count = std::min(left / kWordBytes, kWords - first);
    add(count == kWords ? sum_of_words(at, 0, kWords) : sum_of_words(at, first, count));  // a constant count is faster
    at += kWordBytes * count;
    left -= kWordBytes * count;
    word += count;
  }
  if (left > 0) add_part(0, left);
  return {static_cast<std::uint64_t>(sum), static_cast<std::uint64_t>(sum >> 64)};
}

WideSum operator+(WideSum a, WideSum b) {
  const std::uint64_t low = a.low + b.low;
  return {low, a.high + b.high + (low < a.low ? 1 : 0)};
}

void ReadSums::add(std::size_t tensor, std::uint64_t offset, std::span<const std::uint8_t> bytes) {
  if (bytes.empty() || finished_.load()) return;
  Tensor& t = tensors_[tensor];
  std::uint64_t begin = offset, end = offset + bytes.size();
  std::vector<std::pair<std::uint64_t, std::uint64_t>> fresh;
  {
    const std::lock_guard lock(t.mutex);
    auto next = t.read.upper_bound(begin);
    if (next != t.read.begin() && std::prev(next)->second >= begin) --next;
    std::uint64_t known = begin;  // all bytes of this piece before `known` have been counted
    const auto first = next;
    for (; next != t.read.end() && next->first <= end; ++next) {
      if (next->first > known) fresh.emplace_back(known, next->first);
      known = std::max(known, next->second);
      begin = std::min(begin, next->first);
    }
    if (known < end) fresh.emplace_back(known, end);
    end = std::max(end, known);
    if (first != next && first->first == begin) {
      first->second = end;
      t.read.erase(std::next(first), next);
    } else {
      t.read.erase(first, next);
      t.read.emplace(begin, end);
    }
  }
  WideSum sum;
  for (const auto& [from, to] : fresh) sum = sum + wide_sum(from, bytes.subspan(from - offset, to - from));
  const std::lock_guard lock(t.mutex);
  t.sum = t.sum + sum;
}

std::uint64_t ReadSums::bytes(std::size_t tensor) const {
  Tensor& t = tensors_[tensor];
  const std::lock_guard lock(t.mutex);
  std::uint64_t sum = 0;
  for (const auto& [begin, end] : t.read) sum += end - begin;
  return sum;
}

WideSum ReadSums::sum(std::size_t tensor) const {
  Tensor& t = tensors_[tensor];
  const std::lock_guard lock(t.mutex);
  return t.sum;
}

}  // namespace pumice::files
