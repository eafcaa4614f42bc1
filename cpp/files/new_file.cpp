#include "files/new_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>

#include "core/checked.h"
#include "core/error.h"
#include "files/text.h"
#include "os/files.h"

namespace pumice::files {
namespace {

constexpr int kMostLinks = 40;  // number of links that are followed; Linux has the same limit
constexpr const char* kUnwritable = "cannot be written";

template <class Call>
auto without_interruption(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Returns the beginning of the names of partial files: "NAME.". Partial files are called NAME.PID-NUMBER.part. A long NAME is cut, so that
// the name of the partial file is not too long for the file system.
std::string part_stem(const std::string& name) { return name.substr(0, 200) + "."; }

// Returns the id of the process that writes (or wrote) the partial file `entry`. The id is in the file's name. Returns nothing if `entry`
// is not the name of a partial file.
std::optional<pid_t> writer_of(std::string_view entry, std::string_view stem) {
  constexpr std::string_view kEnd = ".part";
  if (!entry.starts_with(stem) || !entry.ends_with(kEnd) || entry.size() < stem.size() + kEnd.size()) return std::nullopt;
  entry = entry.substr(stem.size(), entry.size() - stem.size() - kEnd.size());
  const char* const last = entry.data() + entry.size();
  pid_t process = 0;
  unsigned number = 0;
  const auto [dash, error] = std::from_chars(entry.data(), last, process);
  if (error != std::errc{} || process <= 0 || dash == last || *dash != '-') return std::nullopt;
  const auto [end, other_error] = std::from_chars(dash + 1, last, number);
  return other_error == std::errc{} && end == last ? std::optional(process) : std::nullopt;
}

}  // namespace

Openat openat_call = [](int folder, const char* name, int flags, mode_t mode) { return ::openat(folder, name, flags, mode); };

NewFile::NewFile(const std::string& path, std::uint64_t bytes) : path_(path), process_(::getpid()) {
  if (path.empty()) fail(ErrorKind::io, "the path of a new file is empty");
  if (path.find('\0') != std::string::npos) fail_at(ErrorKind::io, path, "", std::nullopt, "a path cannot hold a NUL character");
  find_place();
  refuse_what_is_there();
  remove_old_parts();
  open_part();
  try {
    if (bytes > 0) reserve(bytes);
  } catch (...) {
    if (!part_.empty()) ::unlinkat(folder_.get(), part_.c_str(), 0);
    throw;
  }
}

NewFile::~NewFile() {
  if (!part_.empty() && process_ == ::getpid()) ::unlinkat(folder_.get(), part_.c_str(), 0);
}

// Follows links, and sets folder_ and name_. The folder is kept open, so that the file is written to this folder even if folders are
// renamed meanwhile.
void NewFile::find_place() {
  std::string path = path_;
  for (int links = 0; links <= kMostLinks; ++links) {
    const std::size_t slash = path.rfind('/');
    name_ = slash == std::string::npos ? path : path.substr(slash + 1);
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    if (!is_bare_name(name_)) {
      fail_at(ErrorKind::io, path_, "", std::nullopt, kUnwritable, ": ", is_folder(path_) ? "it is a folder" : "this names no file");
    }
    Descriptor next(without_interruption([&] { return ::openat(folder_ ? folder_.get() : AT_FDCWD, folder.c_str(), os::kOpenFolder); }));
    if (!next) fail_io(path_, kUnwritable, errno);
    folder_ = std::move(next);
    std::array<char, 4096> target;
    const ssize_t length = ::readlinkat(folder_.get(), name_.c_str(), target.data(), target.size());
    if (length < 0) return;  // folder_/name_ is not a link
    path.assign(target.data(), static_cast<std::size_t>(length));
  }
  fail_io(path_, kUnwritable, ELOOP);
}

void NewFile::refuse_what_is_there() const {
  struct stat found;
  // Uses stat(), because it also follows links to a target without a path (/dev/stdout). find_place() cannot follow such links.
  if (::stat(path_.c_str(), &found) != 0) {
    if (errno != ENOENT) fail_io(path_, kUnwritable, errno);
    return;
  }
  if (!S_ISREG(found.st_mode)) {
    fail_at(ErrorKind::io, path_, "", std::nullopt, "is ", kind_of(found.st_mode),
            "; a file is written to a new name, or in the place of a plain file");
  }
  // Only checks that the file name_ exists. This need not be the file that stat() found, because another writer may have replaced it.
  if (::fstatat(folder_.get(), name_.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0)
    fail_at(ErrorKind::io, path_, "", std::nullopt, "leads to a file that has no name, which cannot be replaced");
  if (os::is_mount_point(folder_.get(), name_))
    fail_at(ErrorKind::io, path_, "", std::nullopt, "is a mount point, which cannot be replaced");
  if (::faccessat(folder_.get(), name_.c_str(), W_OK, AT_EACCESS) != 0) fail_io(path_, kUnwritable, errno);
}

// Removes the partial files of processes that were killed. A process on another machine or in another container looks as if it were killed,
// because its id is not known here. Its partial file is kept, because that process holds a lock on the file.
void NewFile::remove_old_parts() const {
  const int listed = ::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const auto close = [](DIR* folder) { ::closedir(folder); };
  const std::unique_ptr<DIR, decltype(close)> listing(listed < 0 ? nullptr : ::fdopendir(listed), close);
  const std::string stem = part_stem(name_);
  while (const dirent* entry = listing ? ::readdir(listing.get()) : nullptr) {
    const auto writer = writer_of(entry->d_name, stem);
    if (!writer || ::kill(*writer, 0) == 0 || errno != ESRCH) continue;
    const Descriptor part(::openat(folder_.get(), entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat status;
    if (!part || ::fstat(part.get(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    if (::flock(part.get(), LOCK_EX | LOCK_NB) == 0) ::unlinkat(folder_.get(), entry->d_name, 0);
  }
}

void NewFile::open_part() {
  // If the file system supports it, the file is made without a name, and take_place() gives it its name.
  if (os::kNameless) {
    const int flags = *os::kNameless | O_WRONLY | O_CLOEXEC;
    file_ = Descriptor(without_interruption([&] { return openat_call(folder_.get(), ".", flags, 0666); }));
    if (file_ && os::can_link_nameless(file_.get())) return;
  }
  part_ = new_part_name();
  file_ = Descriptor(without_interruption(
      [&] { return openat_call(folder_.get(), part_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0666); }));
  if (!file_) {
    part_.clear();
    fail_io(path_, kUnwritable, errno);
  }
  ::flock(file_.get(), LOCK_EX | LOCK_NB);
}

std::string NewFile::new_part_name() const {
  static std::atomic<unsigned> count{0};
  return str(part_stem(name_), process_, "-", ++count, ".part");
}

// Reserves space, so that a full disk is noticed before the work. If the file system cannot reserve space, write() notices a full disk.
void NewFile::reserve(std::uint64_t bytes) const {
  const auto length = checked_narrow<off_t>(bytes);
  if (!length) fail_io(path_, kUnwritable, EFBIG);
  if (without_interruption([&] { return os::reserve_space(file_.get(), *length); }) == 0) return;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) fail_io(path_, kUnwritable, errno);
}

void NewFile::write(std::uint64_t at, std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = without_interruption([&] { return ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at)); });
    if (done <= 0) fail_io(path_, kUnwritable, done < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    at += static_cast<std::uint64_t>(done);
  }
}

void NewFile::finish(bool lasting) {
  if (lasting && without_interruption([&] { return os::sync(file_.get()); }) != 0) fail_io(path_, kUnwritable, errno);
  refuse_what_is_there();
  take_place();
  if (!lasting) return;
  // Forces the new name to the disk too. Errors are ignored, because some file systems cannot open or sync a folder.
  if (const Descriptor folder(::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)); folder) ::fsync(folder.get());
}

void NewFile::take_place() {
  if (part_.empty()) {
    const auto link = [&](const std::string& name) { return os::link_nameless(file_.get(), folder_.get(), name); };
    if (link(name_)) return;
    if (errno != EEXIST) fail_io(path_, kUnwritable, errno);
    std::string part = new_part_name();
    if (!link(part)) fail_io(path_, kUnwritable, errno);
    part_ = std::move(part);
  }
  if (::renameat(folder_.get(), part_.c_str(), folder_.get(), name_.c_str()) != 0) fail_io(path_, "cannot be replaced", errno);
  part_.clear();
}

}  // namespace pumice::files
