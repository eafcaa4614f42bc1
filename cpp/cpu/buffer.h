// A Buffer owns memory that is aligned to 64 bytes. A large Buffer is mapped from the system and requests huge pages. Only its used pages
// take physical memory.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace pumice::cpu {

class Buffer {
 public:
  Buffer() = default;
  // Throws out_of_memory if the memory cannot be allocated. `what` says in the error message what the memory is for.
  Buffer(std::uint64_t bytes, const std::string& what);
  ~Buffer() { release(); }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }

  std::uint8_t* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  void release() noexcept;
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_, other.mapped_);
  }
  std::uint8_t* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::uint64_t mapped_ = 0;  // number of bytes to unmap; 0 if the buffer is from the heap
};

// Throws out_of_memory if the system has less than `bytes` bytes of memory left. The message says what needs the memory (`what`), how many
// bytes it needs and how many are left. Without this check, Linux would grant the memory and later kill the process.
void check_memory(std::uint64_t bytes, const std::string& what);

}  // namespace pumice::cpu
