// Writes a file that appears whole, or not at all. The file that was there before stays until then.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>

#include "files/file.h"

namespace pumice::files {

class NewFile {
 public:
  // `path` leads to nothing, or to a plain file, which finish() replaces. Links are followed, and stay. `bytes`: how many will be written,
  // where that is known; the disk reserves them. Throws io before anything is made: for a folder, pipe, socket or device, for a file that
  // is write-protected or a mount point, and where the folder or the disk takes no such file.
  explicit NewFile(const std::string& path, std::uint64_t bytes = 0);
  ~NewFile();  // without finish(), leaves no file behind
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::uint64_t at, std::span<const std::uint8_t> bytes);
  // Moves the file to its path, with the permissions of any new file (umask). `lasting`: its bytes are forced to the disk first, so that it
  // survives a loss of power.
  void finish(bool lasting = true);

 private:
  void find_place();
  void refuse_what_is_there() const;
  void remove_old_parts() const;
  std::string new_part_name() const;
  void open_part();
  void reserve(std::uint64_t bytes) const;
  void take_place();

  const std::string path_;  // as given: for messages
  const pid_t process_;     // a child that fork() makes removes nothing
  Descriptor folder_, file_;
  std::string name_;  // in the folder
  std::string part_;  // the name until finish(); empty: the file has no name, and ends with the process
};

// The system call that makes the file; tests put one here that knows no files without a name.
using Openat = int (*)(int folder, const char* name, int flags, mode_t mode);
extern Openat openat_call;

}  // namespace pumice::files
