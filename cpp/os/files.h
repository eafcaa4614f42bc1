// What systems do differently with files. All other calls on files are those of POSIX.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <ctime>
#include <optional>
#include <string>

namespace pumice::os {

// Flags of open() for a folder that is only a starting point of other paths. Linux needs no permission to list such a folder, macOS does.
extern const int kOpenFolder;

// Flag of open() for a file without a name, which vanishes with the process unless link_nameless() gives it one. Nothing where the system
// has no such files.
extern const std::optional<int> kNameless;

// Gives the open file that was made with kNameless a name in `folder`. Returns whether it could; errno says why not.
bool link_nameless(int file, int folder, const std::string& name);

// Returns whether link_nameless() can work for this open file. On Linux it needs /proc.
bool can_link_nameless(int file);

// Reserves space for `length` bytes without changing the file's size. Returns 0, or -1 with errno.
int reserve_space(int file, off_t length);

// Forces the file's bytes to the disk. Returns 0, or -1 with errno.
int sync(int file);

bool is_mount_point(int folder, const std::string& name);

timespec modified(const struct stat& status);  // when the contents were last changed
timespec changed(const struct stat& status);   // when the contents or the inode were last changed

}  // namespace pumice::os
