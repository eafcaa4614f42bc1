// Opening and reading regular files. Nothing here blocks, follows a link out of a model's folder, or maps memory (a mapped file
// that shrinks would kill the process with SIGBUS).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <ctime>
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

// A regular file open for reading. Reads are thread-safe: they carry their own offset.
class File {
 public:
  // Opens the path that the user gave; links are followed. Pipes, devices, sockets and folders are refused without blocking.
  static File open(const std::string& path);

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }  // bytes, at the time of opening

  // Reads `count` bytes from `offset`. Throws io if the file cannot be read, or has become shorter.
  void read(std::uint64_t offset, std::size_t count, void* out) const;
  // Returns the whole file as text. Throws model_format if it is larger than `limit`.
  std::string read_all(std::uint64_t limit) const;
  // Throws io when the file was written to since it was opened, as far as its size and the time of its last change tell.
  void require_unchanged() const;

 private:
  friend class Folder;
  File(Descriptor descriptor, std::string path);

  Descriptor descriptor_;
  std::string path_;
  std::uint64_t size_ = 0;
  timespec changed_{};  // time of the last change of its bytes
};

// A model's folder. Its files are opened by bare name, relative to the folder itself.
class Folder {
 public:
  explicit Folder(const std::string& path);

  const std::string& path() const { return path_; }
  bool has(const std::string& name) const;
  std::vector<std::string> names() const;  // the first 1,000 names, sorted; for messages
  // A link may lead to a file of the same folder, or of the "blobs" folder beside "snapshots" (the layout of the Hugging Face
  // cache); any other is refused, so that a downloaded folder cannot name files outside of it.
  File open(const std::string& name) const;

 private:
  Descriptor open_link_target(const std::string& name) const;

  Descriptor descriptor_;
  std::string path_;
};

// Returns whether the path is a folder; false if it cannot be inspected.
bool is_folder(const std::string& path);

// The kind of a file, for messages: "a folder", "a pipe".
const char* kind_of(mode_t mode);

// "model.gguf: cannot be read: No space left on device", from errno.
[[noreturn]] void fail_io(const std::string& path, const std::string& what, int error);

// Is this a name without a path? Not empty, not "." or "..", without slash and NUL.
bool is_bare_name(std::string_view name);

// The system call behind File::read. Tests replace it by one that fails, stalls or returns fewer bytes.
using Pread = ssize_t (*)(int fd, void* out, std::size_t count, off_t offset);
extern Pread pread_call;

}  // namespace pumice::files
