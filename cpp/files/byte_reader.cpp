#include "files/byte_reader.h"

namespace pumice::files {
namespace {

// The first read is small, for small headers; the next ones are as large as reads from disk want to be.
constexpr std::uint64_t kFirstRead = 64u << 10, kNextRead = 1u << 20;

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
  const std::uint64_t kept = window_.size() - next_;
  std::vector<std::uint8_t> window(static_cast<std::size_t>(read));
  std::copy(window_.end() - static_cast<std::ptrdiff_t>(kept), window_.end(), window.begin());
  file_.read(at + kept, std::span(window).subspan(static_cast<std::size_t>(kept)));
  window_ = std::move(window);
  start_ = at;
  next_ = 0;
}

}  // namespace pumice::files
