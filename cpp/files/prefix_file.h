// The file of a prefix: the first tokens of a text with their keys and values. engine/saved_prefix.h writes and reads it.
//
//    0  "pumiceKV"               48  bytes of a page, u64
//    8  version, u32 (2)         56  checksum of the head: its first 56 bytes, then all from 64 on
//   12  bytes of `made_by`, u32  64  made_by; ids, i32 each; a checksum for each page, u64; zeros up to a multiple of 64
//   16  bytes of the file, u64       pages of kPageTokens positions
//   24  the model, u64
//   32  tokens, u64
//   40  0, u64
// Little-endian. A change of a field, or of the contents of a page, needs a higher version.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "files/file.h"
#include "files/new_file.h"

namespace pumice::files {

struct PrefixHead {
  std::uint64_t model = 0;  // engine::Model::fingerprint()
  std::string made_by;      // all that the pages' bytes depend on beside the model, in words
  std::vector<std::int32_t> ids;
  std::uint64_t page_bytes = 0;
  std::uint64_t pages() const;
};

// Opened and checked as a whole but for the pages, which are checked as they are read: lengths against the file's before anything is
// allocated, then the head's checksum. Throws io, model_format (byte and field say where), context_length beyond `most_tokens`.
class PrefixFile {
 public:
  static PrefixFile open(const std::string& path, std::int64_t most_tokens);
  const PrefixHead& head() const { return head_; }
  // Pages [first, first + out.size() / page_bytes). Throws model_format where one is damaged.
  void read(std::uint64_t first, std::span<std::uint8_t> out) const;

 private:
  explicit PrefixFile(File file) : file_(std::move(file)) {}
  File file_;
  PrefixHead head_;
  std::vector<std::uint64_t> sums_;
  std::uint64_t pages_at_ = 0;
};

// Writes a prefix file. Its path then has either the whole new file or what was there before (files/new_file.h). Throws io.
class PrefixWriter {
 public:
  PrefixWriter(const std::string& path, PrefixHead head);
  void write(std::span<const std::uint8_t> pages);  // the next ones
  std::uint64_t finish();                           // bytes of the file

 private:
  std::uint64_t bytes() const;
  const PrefixHead head_;
  const std::uint64_t start_;  // offset of the first page
  NewFile file_;
  std::vector<std::uint64_t> sums_;
};

}  // namespace pumice::files
