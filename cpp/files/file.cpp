#include "files/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "core/checked.h"
#include "core/error.h"
#include "files/text.h"
#include "os/files.h"

namespace pumice::files {
namespace {

constexpr int kOpenFlags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;  // with O_NONBLOCK, opening a pipe does not wait for a writer

Descriptor open_at(int folder, const std::string& name, int flags) {
  int fd;
  do fd = ::openat(folder, name.c_str(), flags);
  while (fd < 0 && errno == EINTR);
  return Descriptor(fd);
}

bool same_inode(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

bool same_time(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

bool same_folder(int a, int b) {
  struct stat of_a, of_b;
  return ::fstat(a, &of_a) == 0 && ::fstat(b, &of_b) == 0 && same_inode(of_a, of_b);
}

constexpr int kMostHops = 8;       // number of links in a row that are followed
constexpr int kMostParents = 256;  // number of folders above a folder that are looked at

// Returns whether `folder` is `root` or a folder in its tree.
bool is_beneath(int folder, int root) {
  Descriptor at = open_at(folder, ".", os::kOpenFolder);
  for (int i = 0; at && i < kMostParents; ++i) {
    if (same_folder(at.get(), root)) return true;
    Descriptor parent = open_at(at.get(), "..", os::kOpenFolder);
    if (!parent || same_folder(parent.get(), at.get())) return false;  // the root of the file system
    at = std::move(parent);
  }
  return false;
}

// The folders in which links may lead anywhere (allow_links()).
struct TrustedFolders {
  std::mutex mutex;
  std::set<std::pair<dev_t, ino_t>> inodes;
};

TrustedFolders& trusted() {
  static TrustedFolders folders;
  return folders;
}

bool is_trusted(int folder) {
  struct stat status;
  if (::fstat(folder, &status) != 0) return false;
  const std::lock_guard lock(trusted().mutex);
  return trusted().inodes.contains({status.st_dev, status.st_ino});
}

}  // namespace

Pread pread_call = ::pread;

void fail_io(const std::string& path, const std::string& what, int error) {
  const char* advice = error == EMFILE || error == ENFILE ? "; raise the limit on open files (ulimit -n)" : "";
  fail_at(ErrorKind::io, path, "", std::nullopt, what, ": ", std::generic_category().message(error), advice);
}

const char* kind_of(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFDIR:
      return "a folder";
    case S_IFIFO:
      return "a pipe";
    case S_IFSOCK:
      return "a socket";
    case S_IFCHR:
    case S_IFBLK:
      return "a device";
    default:
      return "something else";
  }
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

File::File(Descriptor descriptor, std::string path) : descriptor_(std::move(descriptor)), path_(std::move(path)) {
  if (::fstat(descriptor_.get(), &opened_) != 0) fail_io(path_, "cannot be read", errno);
  if (!S_ISREG(opened_.st_mode)) fail_at(ErrorKind::io, path_, "", std::nullopt, "is not a regular file but ", kind_of(opened_.st_mode));
  ::fcntl(descriptor_.get(), F_SETFL, 0);  // clears O_NONBLOCK, so that a read from a network file system waits for its bytes
}

File File::open(const std::string& path) {
  if (path.find('\0') != std::string::npos) fail_at(ErrorKind::io, path, "", std::nullopt, "a path cannot hold a NUL character");
  Descriptor descriptor = open_at(AT_FDCWD, path, kOpenFlags);
  if (!descriptor) fail_io(path, "cannot be opened", errno);
  return File(std::move(descriptor), path);
}

File File::open_in_folder(const std::string& path) {
  const auto [folder, name] = folder_and_name(path);
  return Folder(folder).open(name);
}

void File::read(std::uint64_t offset, std::size_t count, void* out) const {
  std::size_t done = 0;
  while (done < count) {
    const auto at = checked_add<std::uint64_t>(offset, done);
    const auto position = at ? checked_narrow<off_t>(*at) : std::nullopt;
    if (!position) fail_at(ErrorKind::io, path_, "", offset, "is read at an offset that no file has");
    const ssize_t got = pread_call(descriptor_.get(), static_cast<char*>(out) + done, count - done, *position);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_io(path_, str("cannot be read at byte ", *at), errno);
    if (got == 0) {
      fail_at(ErrorKind::io, path_, "", *at, "ends here now, but had ", size(), " bytes when it was opened; it was changed meanwhile");
    }
    done += static_cast<std::size_t>(got);
  }
}

void File::require_size(std::uint64_t limit) const {
  if (size() > limit) fail_at(ErrorKind::model_format, path_, "", std::nullopt, "has ", size(), " bytes; at most ", limit, " are allowed");
}

std::string File::read_all(std::uint64_t limit) const {
  require_size(limit);
  std::string text(size(), '\0');
  read(0, text.size(), text.data());
  return text;
}

void File::require_unchanged() const {
  struct stat now;
  if (::fstat(descriptor_.get(), &now) != 0) fail_io(path_, "cannot be read", errno);
  const auto same_contents = [&] {
    if (now.st_size != opened_.st_size || !same_time(os::modified(now), os::modified(opened_))) return false;
    if (same_time(os::changed(now), os::changed(opened_))) return true;
    if (now.st_nlink != opened_.st_nlink || now.st_mode != opened_.st_mode || now.st_uid != opened_.st_uid || now.st_gid != opened_.st_gid)
      return true;
    struct stat named;
    // A new name changes st_ctime, too. So if the path no longer leads to this file, the file counts as only renamed.
    return ::stat(path_.c_str(), &named) != 0 || !same_inode(named, now);
  };
  if (same_contents()) return;
  fail_at(ErrorKind::io, path_, "", std::nullopt, "was changed after it was opened: load it again once it is whole");
}

Folder::Folder(const std::string& path) : path_(path.empty() ? "." : path) {
  if (path.find('\0') != std::string::npos) fail_at(ErrorKind::io, path, "", std::nullopt, "a path cannot hold a NUL character");
  descriptor_ = open_at(AT_FDCWD, path_, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
  if (!descriptor_) fail_io(path_, "cannot be opened", errno);
}

bool Folder::has(const std::string& name) const { return ::faccessat(descriptor_.get(), name.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0; }

std::vector<std::string> Folder::names() const {
  std::vector<std::string> names;
  const auto close = [](DIR* folder) { ::closedir(folder); };
  const std::unique_ptr<DIR, decltype(close)> listing(::opendir(path_.c_str()), close);
  while (listing && names.size() < 1000) {
    const dirent* entry = ::readdir(listing.get());
    if (!entry) break;
    names.emplace_back(entry->d_name);
  }
  std::ranges::sort(names);
  return names;
}

File Folder::open(const std::string& name) const {
  const std::string shown = path_ + (path_.ends_with('/') ? "" : "/") + name;
  if (!is_bare_name(name))
    fail_at(ErrorKind::model_format, path_, "", std::nullopt, quote(name), " is not the name of a file in this folder");
  Descriptor descriptor = open_at(descriptor_.get(), name, kOpenFlags | O_NOFOLLOW);
  const bool is_link = !descriptor && errno == ELOOP;
  if (is_link) descriptor = open_link_target(name);
  if (!descriptor && is_link && errno == ENOENT)
    fail_at(ErrorKind::io, shown, "", std::nullopt, "is a link to a file that does not exist; copy or download the file again");
  if (!descriptor && errno == ELOOP) {
    fail_at(ErrorKind::io, shown, "", std::nullopt, "is a link to itself, or one of more than ", kMostHops,
            " links in a row; copy the file here");
  }
  if (!descriptor) fail_io(shown, "cannot be opened", errno);
  return File(std::move(descriptor), shown);
}

Descriptor Folder::open_link_target(const std::string& name) const {
  Descriptor held;
  int base = descriptor_.get();
  std::string link = name;
  for (int i = 0; i < kMostHops; ++i) {
    std::array<char, 4096> buffer;
    const ssize_t length = ::readlinkat(base, link.c_str(), buffer.data(), buffer.size());
    if (length < 0) return {};
    const std::string target(buffer.data(), static_cast<std::size_t>(length));
    const std::size_t slash = target.rfind('/');
    const std::string target_name = slash == std::string::npos ? target : target.substr(slash + 1);
    const std::string target_folder = slash == std::string::npos ? "." : target.substr(0, slash + 1);
    Descriptor leads_to = open_at(base, target_folder, os::kOpenFolder);
    if (!leads_to) return {};
    if (!is_bare_name(target_name) || static_cast<std::size_t>(length) == buffer.size() || !may_lead_to(leads_to.get())) {
      fail_at(
          ErrorKind::io, path_ + "/" + name, "", std::nullopt, "is a link to ", quote(target),
          "; links may only lead to files in the same folder or below it, or in the hub cache's own blobs folder. Copy the file here, or "
          "use load(follow_links=True) if you trust this folder");
    }
    Descriptor file = open_at(leads_to.get(), target_name, kOpenFlags | O_NOFOLLOW);
    if (file || errno != ELOOP) return file;
    held = std::move(leads_to);  // the target is a link itself
    base = held.get();
    link = target_name;
  }
  errno = ELOOP;
  return {};
}

bool Folder::may_lead_to(int folder) const {
  if (is_beneath(folder, descriptor_.get()) || is_trusted(descriptor_.get())) return true;
  // In the Hugging Face cache, snapshots/<commit>/<file> is a link to ../../blobs/<hash>. The link of a file in a subfolder of the snapshot
  // goes up one more level.
  for (const char* blobs : {"../../blobs", "../../../blobs"}) {
    const Descriptor cache = open_at(descriptor_.get(), blobs, os::kOpenFolder | O_NOFOLLOW);
    if (cache && same_folder(folder, cache.get())) return true;
  }
  return false;
}

void allow_links(const std::string& folder) {
  const Folder opened(folder);
  opened.trust_links();
}

void Folder::trust_links() const {
  struct stat status;
  if (::fstat(descriptor_.get(), &status) != 0) fail_io(path_, "cannot be read", errno);
  const std::lock_guard lock(trusted().mutex);
  trusted().inodes.insert({status.st_dev, status.st_ino});
}

std::pair<std::string, std::string> folder_and_name(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

bool is_folder(const std::string& path) {
  struct stat status;
  return path.find('\0') == std::string::npos && ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

bool is_bare_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.size() <= 255 && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

}  // namespace pumice::files
