// A prefix file has the first tokens of a text with their keys and values and, if the model has recurrent operations, their state after the
// last of these tokens. engine/saved_prefix.h writes and reads such files.
//
// The fields and their offsets in bytes:
//    0  "pumiceKV"
//    8  version, u32: 3
//   12  size of made_by in bytes, u32. made_by is a text with the version of pumice and the settings that computed the pages
//   16  size of the file in bytes, u64
//   24  fingerprint of the model, u64
//   32  number of tokens, u64
//   40  size of the state in bytes, u64; 0 if the model has none
//   48  size of a page in bytes, u64
//   56  checksum of the head, u64. The head is the 56 bytes before this field and the bytes from 64 to the first page
//   64  made_by; the ids of the tokens, i32 each; a checksum for each page and one for the state, u64 each; zeros up to a multiple of 64;
//       the pages, which have the keys and values of kPageTokens positions each; the state
// Numbers are little-endian. A change of a field, or of the contents of a page, needs a higher version.
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
  std::string made_by;      // pumice's version and the settings that computed the pages, because these change the bytes of the pages
  std::vector<std::int32_t> ids;
  std::uint64_t page_bytes = 0, state_bytes = 0;  // sizes in bytes; 0 if the model has no kv caches (page_bytes), no state (state_bytes)
  std::uint64_t pages() const;
};

// A prefix file that is open for reading. open() checks everything but the pages and the state. It first checks, before it allocates
// memory, that the lengths agree with the size of the file, and then the checksum of the head. read() checks the pages that it reads.
// open() and read() throw io and model_format (with the offset and the field). open() throws context_length if the file has more than
// `most_tokens` tokens.
class PrefixFile {
 public:
  static PrefixFile open(const std::string& path, std::int64_t most_tokens);
  const PrefixHead& head() const { return head_; }
  // Reads pages [first, first + out.size() / page_bytes). Throws model_format if a page is damaged.
  void read(std::uint64_t first, std::span<std::uint8_t> out) const;
  // Reads the state. Throws model_format if the state is damaged.
  void read_state(std::span<std::uint8_t> out) const;

 private:
  explicit PrefixFile(File file) : file_(std::move(file)) {}
  File file_;
  PrefixHead head_;
  std::vector<std::uint64_t> sums_;  // the checksums of the pages, then that of the state
  std::uint64_t pages_at_ = 0;       // offset of the first page in the file
};

// Writes a prefix file. At any time, the path has either the complete new file or what was there before (files/new_file.h). Throws io.
class PrefixWriter {
 public:
  PrefixWriter(const std::string& path, PrefixHead head);
  void write(std::span<const std::uint8_t> pages);        // writes the next pages
  void write_state(std::span<const std::uint8_t> state);  // writes the state; must be called after the last page was written
  std::uint64_t finish();                                 // returns the size of the file in bytes

 private:
  std::uint64_t bytes() const;
  const PrefixHead head_;
  const std::uint64_t start_;  // offset of the first page
  NewFile file_;
  std::vector<std::uint64_t> sums_;
};

}  // namespace pumice::files
