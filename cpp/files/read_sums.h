// Sums of the bytes that were read of each tensor of a file. They identify the weights of a model, whatever its file holds later.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>

namespace pumice::files {

struct WideSum {  // a number of 128 bits
  std::uint64_t low = 0, high = 0;
  bool operator==(const WideSum&) const = default;
};
WideSum operator+(WideSum a, WideSum b);

// The sum of `bytes`, which stand at `offset` of something longer. The sums of its parts add up to that of the whole, however it is cut.
// Against accidents, not against people: one changed word of 4 bytes always shows, and several do unless they were chosen not to. About
// 12 GB/s on a core of 2023.
WideSum wide_sum(std::uint64_t offset, std::span<const std::uint8_t> bytes);

// Each byte of a tensor counts once: in any order, in pieces of any length, from any thread, however often it is read.
class ReadSums {
 public:
  explicit ReadSums(std::size_t tensors) : tensors_(new Tensor[tensors]) {}
  void add(std::size_t tensor, std::uint64_t offset, std::span<const std::uint8_t> bytes);
  std::uint64_t bytes(std::size_t tensor) const;  // how many of them were read
  WideSum sum(std::size_t tensor) const;

 private:
  struct Tensor {
    std::mutex mutex;
    WideSum sum;
    std::map<std::uint64_t, std::uint64_t> read;  // stretches of bytes, begin to end; no two of them touch
  };
  std::unique_ptr<Tensor[]> tensors_;
};

}  // namespace pumice::files
