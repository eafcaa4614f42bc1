// Opens and reads regular files. Opening never blocks. A link in a model's folder that leads out of the folder is not followed. Files are
// not mapped into memory, because a mapped file that shrinks would kill the process with SIGBUS.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pumice::files {

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// A regular file that is open for reading. Reads are thread-safe, because each read has its own offset.
class File {
 public:
  // Opens a path that the user gave, and follows links. Throws io, without blocking, if the path is a pipe, device, socket or folder.
  static File open(const std::string& path);
  // Opens a file in a model's folder. A link that leads out of the folder is an error (the rules are at Folder::open()).
  static File open_in_folder(const std::string& path);

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return static_cast<std::uint64_t>(opened_.st_size); }  // size in bytes at the time of opening

  // Reads `count` bytes, beginning at `offset`, to `out`. Throws io if the file cannot be read or has become too short.
  void read(std::uint64_t offset, std::size_t count, void* out) const;
  // Throws model_format if the file is larger than `limit` bytes.
  void require_size(std::uint64_t limit) const;
  // Returns the whole file as text. Throws model_format if it is larger than `limit` bytes.
  std::string read_all(std::uint64_t limit) const;
  // Throws io if the file's contents may have changed since it was opened. This is so if the size or the modification time differs, or if
  // the inode was changed (st_ctime) by something other than a new link, name, owner or mode. The check of st_ctime finds a file that was
  // rewritten in place and then given its old modification time.
  void require_unchanged() const;

 private:
  friend class Folder;
  File(Descriptor descriptor, std::string path);

  Descriptor descriptor_;
  std::string path_;
  struct stat opened_{};  // the file's status when it was opened
};

// A model's folder, which stays open. Its files are opened by their bare names, relative to the open folder.
class Folder {
 public:
  explicit Folder(const std::string& path);

  const std::string& path() const { return path_; }
  bool has(const std::string& name) const;
  std::vector<std::string> names() const;  // returns up to 1,000 names of the folder's entries, sorted, for error messages
  // Opens a file of the folder. A link may lead to a file in the same folder or below it (Kubernetes' config maps have ..data/), or in the
  // "blobs" folder beside "snapshots" (the layout of the Hugging Face cache). Any other link is refused, so that a downloaded folder cannot
  // make the engine open files outside of it, unless allow_links() was called for this folder.
  File open(const std::string& name) const;
  void trust_links() const;  // does what allow_links() does

 private:
  Descriptor open_link_target(const std::string& name) const;
  bool may_lead_to(int folder) const;  // returns whether a link of this folder may lead to a file in `folder`, an open folder

  Descriptor descriptor_;
  std::string path_;
};

// Lets the links in a folder lead anywhere, for as long as the process runs: the user has said that he trusts the folder.
void allow_links(const std::string& folder);

// Returns the folder and the bare name of a path: {"a", "b"} for "a/b", and {".", "b"} for "b".
std::pair<std::string, std::string> folder_and_name(const std::string& path);

// Returns whether the path is a folder; false if it cannot be inspected.
bool is_folder(const std::string& path);

// Returns the kind of a file in words, for messages: "a folder", "a pipe".
const char* kind_of(mode_t mode);

// Throws io with a message such as "model.gguf: cannot be opened: No such file or directory". `error` is a value of errno.
[[noreturn]] void fail_io(const std::string& path, const std::string& what, int error);

// Returns whether `name` is a file name without a path: not empty, not "." or "..", at most 255 bytes, and without slash and NUL.
bool is_bare_name(std::string_view name);

// The system call that File::read makes. Tests replace it by a function that fails, stalls or returns fewer bytes.
using Pread = ssize_t (*)(int fd, void* out, std::size_t count, off_t offset);
extern Pread pread_call;

}  // namespace pumice::files
