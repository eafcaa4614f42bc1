// Writes a file that appears at its path complete or not at all. Until it appears, an older file at that path stays.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>

#include "files/file.h"

namespace pumice::files {

class NewFile {
 public:
  // Begins a file. There must be nothing at `path`, or a plain file, which finish() replaces. Links are followed, and are not replaced
  // themselves. `bytes` is the number of bytes that will be written, for which space is reserved on the disk, or 0 if it is not known.
  // Throws io, and leaves no file behind, if `path` is a folder, pipe, socket or device, if the file is write-protected or a mount point,
  // or if the folder or the disk does not accept such a file.
  explicit NewFile(const std::string& path, std::uint64_t bytes = 0);
  ~NewFile();  // leaves no file behind if finish() has not succeeded
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::uint64_t at, std::span<const std::uint8_t> bytes);
  // Moves the file to its path. It has the permissions of any new file (umask). If `lasting` is true, its bytes are forced to the disk
  // first, so that the file survives a loss of power.
  void finish(bool lasting = true);

 private:
  void find_place();
  void refuse_what_is_there() const;
  void remove_old_parts() const;
  std::string new_part_name() const;
  void open_part();
  void reserve(std::uint64_t bytes) const;
  void take_place();

  const std::string path_;  // the path that the caller gave
  const pid_t process_;     // the process that made this object; in a child of fork(), the destructor leaves the parent's file alone
  Descriptor folder_, file_;
  std::string name_;  // name of the finished file in folder_
  std::string part_;  // name of the partial file in folder_; empty if the file has no name (such a file vanishes with the process)
};

// The system call with which NewFile makes its file. Tests replace it by a function that cannot make files without a name.
using Openat = int (*)(int folder, const char* name, int flags, mode_t mode);
extern Openat openat_call;

}  // namespace pumice::files
