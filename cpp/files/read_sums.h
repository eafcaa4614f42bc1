// Checksums of the bytes that were read, one for each tensor of a file. The checksums identify the weights of a loaded model, even if its
// file changes later.
#pragma once

#include <atomic>
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

// Returns a checksum of `bytes`, which are a part of longer data and begin at byte `offset` of the data. The checksums of all parts add up
// to the checksum of the data, however the data are cut into parts. The checksum detects accidents, not attacks: a change of one word of 4
// bytes always changes it, and changes of several words do so too unless they were chosen to cancel out. The speed is about 12 GB/s on a
// core of 2023.
WideSum wide_sum(std::uint64_t offset, std::span<const std::uint8_t> bytes);

// The checksums of all tensors of a file. If a byte of a tensor is added several times, it counts once. Bytes may be added in any order, in
// pieces of any length, from any thread.
class ReadSums {
 public:
  explicit ReadSums(std::size_t tensors) : tensors_(new Tensor[tensors]) {}
  void add(std::size_t tensor, std::uint64_t offset, std::span<const std::uint8_t> bytes);
  // After this call, add() does nothing and takes no lock. A lock that is taken while the process forks would stay taken in the child.
  void finish() { finished_.store(true); }
  std::uint64_t bytes(std::size_t tensor) const;  // returns how many bytes of the tensor were added
  WideSum sum(std::size_t tensor) const;

 private:
  struct Tensor {
    std::mutex mutex;
    WideSum sum;
    std::map<std::uint64_t, std::uint64_t> read;  // begin and end of each range of bytes that was added; ranges neither overlap nor touch
  };
  std::unique_ptr<Tensor[]> tensors_;
  std::atomic<bool> finished_{false};
};

}  // namespace pumice::files
