#include "files/byte_reader.h"

namespace pumice::files {
namespace {

// Numbers of bytes that the first read and each later read take from the file. The first read is small, because many headers are small.
// Later reads are larger, but their bytes still fit into a second-level cache.
constexpr std::uint64_t kFirstRead = 64u << 10, kNextRead = 256u << 10;

}  // namespace

void ByteReader::expect(std::uint64_t count, std::uint64_t least, const char* what) {
  if (count <= remaining() / least) return;
  fail(position(), "announces ", count, " ", what, " of at least ", least, " bytes each, but only ", remaining(), " bytes follow",
       end_ < file_.size() ? " within the largest header allowed" : "; the file is truncated or damaged");
}

void ByteReader::refill(std::uint64_t n) {
  const std::uint64_t at = position();
  if (n > end_ - at) {
    fail(at, "needs ", n, " bytes, but only ", end_ - at, " bytes follow",
         end_ < file_.size() ? " within the largest header allowed" : "; the file is truncated or damaged");
  }
  const std::uint64_t read = std::min(end_ - at, std::max(n, at == 0 ? kFirstRead : kNextRead));
  window_.erase(0, next_);
  const std::size_t kept = window_.size();
  window_.resize(static_cast<std::size_t>(read));
  file_.read(at + kept, window_.size() - kept, window_.data() + kept);
  start_ = at;
  next_ = 0;
}

}  // namespace pumice::files
