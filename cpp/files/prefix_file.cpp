#include "files/prefix_file.h"

#include <algorithm>

#include "core/checked.h"
#include "core/checksum.h"
#include "core/kinds.h"
#include "files/byte_reader.h"

namespace pumice::files {
namespace {

constexpr std::string_view kMagic = "pumiceKV";
constexpr std::uint32_t kVersion = 3;
constexpr std::uint64_t kFixed = 64, kMostMadeBy = 4096, kMostBytes = std::uint64_t{1} << 40;

// Returns the offset of the first page, or nothing if the offset would overflow.
std::optional<std::uint64_t> head_bytes(std::uint64_t made_by, std::uint64_t tokens, std::uint64_t pages) {
  const auto ids = checked_mul<std::uint64_t>(tokens, 4), sums = checked_mul<std::uint64_t>(pages + 1, 8);
  if (!ids || !sums) return {};
  const auto some = checked_add<std::uint64_t>(*ids, *sums);
  const auto all = some ? checked_add<std::uint64_t>(*some, kFixed + made_by) : std::nullopt;
  return all ? checked_align(*all, 64) : std::nullopt;
}

std::uint64_t pages_of(std::uint64_t tokens) { return tokens / kPageTokens + (tokens % kPageTokens != 0); }

std::span<const std::uint8_t> bytes_of(std::string_view text) { return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}; }

std::uint64_t head_checksum(std::string_view head) {
  return checksum(bytes_of(head.substr(kFixed)), checksum(bytes_of(head.substr(0, kFixed - 8))));
}

template <class T>
void append(std::string& to, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) to += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i));
}

}  // namespace

std::uint64_t PrefixHead::pages() const { return pages_of(ids.size()); }

PrefixFile PrefixFile::open(const std::string& path, std::int64_t most_tokens) {
  PrefixFile file(File::open(path));
  const std::uint64_t size = file.file_.size();
  const auto wrong = [&](const char* field, std::uint64_t at, const auto&... parts) {
    fail_at(ErrorKind::model_format, path, field, at, parts...);
  };
  if (size < kFixed) wrong("", size, "is no saved prefix: it has ", size, " bytes, the head alone has ", kFixed, " and more");
  std::string head(kFixed, '\0');
  file.file_.read(0, kFixed, head.data());
  const auto number = [&]<class T>(std::size_t at, T) { return from_little_endian<T>(std::string_view(head).substr(at, sizeof(T))); };
  if (!head.starts_with(kMagic))
    wrong("", 0, "is no saved prefix: it begins with ", quote(head.substr(0, 8)), ", not with ", quote(kMagic));
  const auto version = number(8, std::uint32_t{});
  if (version != kVersion) wrong("version", 8, "is ", version, "; this version reads ", kVersion, ". Save the prefix again");
  const std::uint64_t made_by = number(12, std::uint32_t{}), bytes = number(16, std::uint64_t{}), tokens = number(32, std::uint64_t{}),
                      state_bytes = number(40, std::uint64_t{}), page_bytes = number(48, std::uint64_t{});
  if (made_by > kMostMadeBy) wrong("made_by", 12, "has ", made_by, " bytes; at most ", kMostMadeBy, " are allowed");
  if (state_bytes > kMostBytes) wrong("state_bytes", 40, "is ", state_bytes, "; a state has at most ", kMostBytes);
  if (page_bytes > kMostBytes || page_bytes + state_bytes == 0)
    wrong("page_bytes", 48, "is ", page_bytes, "; a page has 1 to ", kMostBytes, ", or 0 where there is a state");
  if (tokens < 1) wrong("tokens", 32, "is 0; a prefix has at least one");
  const std::uint64_t pages = pages_of(tokens);
  const auto start = head_bytes(made_by, tokens, pages);
  const auto of_pages = checked_mul(pages, page_bytes), body = of_pages ? checked_add(*of_pages, state_bytes) : std::nullopt,
             needed = start && body ? checked_add(*start, *body) : std::nullopt;
  if (!needed || *needed != bytes)
    wrong("bytes", 16, "is ", bytes, ", which ", tokens, " tokens in pages of ", page_bytes, " bytes and a state of ", state_bytes,
          " are not");
  if (size != bytes)
    wrong("", std::min(size, bytes), size < bytes ? "is cut: it has " : "has more bytes than it was written with: ", size,
          ", needed: ", bytes);
  if (tokens > static_cast<std::uint64_t>(std::max<std::int64_t>(0, most_tokens)))
    fail_at(ErrorKind::context_length, path, "", std::nullopt, "has ", tokens, " tokens; the context holds ", most_tokens,
            " and one more: load the model with a larger n_ctx=");
  head.resize(static_cast<std::size_t>(*start));
  file.file_.read(kFixed, head.size() - kFixed, head.data() + kFixed);
  if (head_checksum(head) != number(56, std::uint64_t{}))
    wrong("", 0, "is damaged: the checksum of its first ", *start, " bytes is wrong. Save the prefix again");
  PrefixHead& found = file.head_;
  found.model = number(24, std::uint64_t{});
  found.page_bytes = page_bytes;
  found.state_bytes = state_bytes;
  found.made_by = head.substr(kFixed, made_by);
  std::size_t at = kFixed + made_by;
  for (std::uint64_t i = 0; i < tokens; ++i, at += 4) found.ids.push_back(number(at, std::int32_t{}));
  for (std::uint64_t i = 0; i <= pages; ++i, at += 8) file.sums_.push_back(number(at, std::uint64_t{}));
  file.pages_at_ = *start;
  return file;
}

void PrefixFile::read(std::uint64_t first, std::span<std::uint8_t> out) const {
  const std::uint64_t page = head_.page_bytes, at = pages_at_ + first * page;
  if (page == 0 && out.empty()) return;
  require(page > 0 && out.size() % page == 0 && first + out.size() / page <= head_.pages(), "a saved prefix of ", head_.pages(),
          " pages of ", page, " bytes: ", out.size(), " bytes are asked for from page ", first);
  file_.read(at, out.size(), out.data());
  for (std::uint64_t i = 0; i * page < out.size(); ++i) {
    if (checksum(out.subspan(i * page, page)) == sums_[first + i]) continue;
    fail_at(ErrorKind::model_format, file_.path(), str("page ", first + i), at + i * page, "is damaged: its checksum is wrong (tokens ",
            (first + i) * kPageTokens, " and after). Save the prefix again");
  }
}

void PrefixFile::read_state(std::span<std::uint8_t> out) const {
  require(out.size() == head_.state_bytes, "a saved state of ", head_.state_bytes, " bytes does not go into ", out.size());
  const std::uint64_t at = pages_at_ + head_.pages() * head_.page_bytes;
  file_.read(at, out.size(), out.data());
  if (checksum(out) != sums_.back())
    fail_at(ErrorKind::model_format, file_.path(), "state", at, "is damaged: its checksum is wrong. Save the prefix again");
}

PrefixWriter::PrefixWriter(const std::string& path, PrefixHead head)
    : head_(std::move(head)), start_(head_bytes(head_.made_by.size(), head_.ids.size(), head_.pages()).value()), file_(path, bytes()) {
  require(head_.made_by.size() <= kMostMadeBy, "made_by has ", head_.made_by.size(), " bytes");
}

std::uint64_t PrefixWriter::bytes() const { return start_ + head_.pages() * head_.page_bytes + head_.state_bytes; }

void PrefixWriter::write(std::span<const std::uint8_t> pages) {
  file_.write(start_ + sums_.size() * head_.page_bytes, pages);
  for (std::size_t at = 0; at < pages.size(); at += head_.page_bytes) sums_.push_back(checksum(pages.subspan(at, head_.page_bytes)));
}

void PrefixWriter::write_state(std::span<const std::uint8_t> state) {
  if (head_.page_bytes == 0) sums_.resize(head_.pages());  // write() is not called for pages of 0 bytes, so their checksums are set to 0
  require(sums_.size() == head_.pages() && state.size() == head_.state_bytes, "a prefix of ", head_.pages(), " pages was given ",
          sums_.size(), " and a state of ", state.size(), " bytes, not ", head_.state_bytes);
  file_.write(bytes() - head_.state_bytes, state);
  sums_.push_back(checksum(state));
}

std::uint64_t PrefixWriter::finish() {
  if (head_.state_bytes == 0) write_state({});
  require(sums_.size() == head_.pages() + 1, "a prefix of ", head_.pages(), " pages was given ", sums_.size(), " sums");
  std::string head(kMagic);
  append(head, kVersion);
  append(head, static_cast<std::uint32_t>(head_.made_by.size()));
  append(head, bytes());
  append(head, head_.model);
  append(head, static_cast<std::uint64_t>(head_.ids.size()));
  append(head, head_.state_bytes);
  append(head, head_.page_bytes);
  append(head, std::uint64_t{0});
  head += head_.made_by;
  for (const std::int32_t id : head_.ids) append(head, id);
  for (const std::uint64_t sum : sums_) append(head, sum);
  head.resize(static_cast<std::size_t>(start_), '\0');
  std::string sum;
  append(sum, head_checksum(head));
  head.replace(kFixed - 8, 8, sum);
  file_.write(0, bytes_of(head));
  file_.finish();
  return bytes();
}

}  // namespace pumice::files
