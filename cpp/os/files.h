// Operations on files that each operating system does in its own way. All other operations on files use POSIX calls.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <ctime>
#include <optional>
#include <string>

namespace pumice::os {

// Flags of open() for a folder that is used only as the starting point of other paths. On Linux, such a folder may be opened without
// permission to list it; on macOS this permission is needed.
extern const int kOpenFolder;

// Flag of open() for a file without a name. Such a file is deleted when the process ends, unless link_nameless() gives it a name. Empty if
// the system has no such files.
extern const std::optional<int> kNameless;

// Gives a name in `folder` to an open file that was made with kNameless. Returns false and sets errno if this fails.
bool link_nameless(int file, int folder, const std::string& name);

// Returns whether link_nameless() can work for this open file. On Linux link_nameless() needs /proc.
bool can_link_nameless(int file);

// Reserves space for `length` bytes without changing the file's size. Returns 0, or -1 with errno.
int reserve_space(int file, off_t length);

// Forces the file's bytes to the disk. Returns 0, or -1 with errno.
int sync(int file);

bool is_mount_point(int folder, const std::string& name);

timespec modified(const struct stat& status);  // time when the contents were last changed
timespec changed(const struct stat& status);   // time when the contents or the inode were last changed

}  // namespace pumice::os
