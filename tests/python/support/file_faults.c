// A library for LD_PRELOAD (file_faults.py compiles it). It counts the calls that a process makes on files below one folder, and makes one of
// them fail, or kills the process there, or changes the file just before the call.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, READ = 2, WRITE = 4, NAME = 8, SYNC = 16 };  // kinds of calls
// What happens at a call. Positive numbers are errno.
enum { KILL_BEFORE = -1, KILL_AFTER = -2, SHORT = -3, INTERRUPT = -4, CUT = -5, REMOVE = -6, REPLACE = -7, REWRITE = -8, KILL_WITHIN = -9 };

static char folder[1024], other[1024];
static int kinds, action, part;
static long chosen;
static atomic_long calls, done;

// Counts calls of the given kinds on files below `in`. Call number `call` (from 0) gets the action. SHORT and INTERRUPT also apply to all
// later calls. `with` is the file that REPLACE puts in the place of the one that is being read. `percent` is the share of its bytes that a
// call moves before KILL_WITHIN.
void file_faults_watch(const char* in, int which, long call, int what, const char* with, int percent) {
  kinds = 0;
  snprintf(folder, sizeof folder, "%s", in);
  snprintf(other, sizeof other, "%s", with);
  action = what, chosen = call, part = percent, calls = 0, done = 0;
  kinds = which;
}
long file_faults_calls(void) { return calls; }
long file_faults_done(void) { return done; }  // how many calls got the action

static void path_of(int fd, char* path, size_t size) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, size - 1);
  path[length < 0 ? 0 : length] = 0;
}

static int below(int fd, const char* name, char* path, size_t size) {
  if (name && name[0] == '/') {
    snprintf(path, size, "%s", name);
  } else if (fd == AT_FDCWD) {
    return 0;
  } else {
    path_of(fd, path, size);
    if (name) {
      const size_t length = strlen(path);
      snprintf(path + length, size - length, "/%s", name);
    }
  }
  return strncmp(path, folder, strlen(folder)) == 0;
}

// Returns what happens to this call: 0 for nothing.
static int next(int kind, int fd, const char* name) {
  char path[4096];
  if ((kinds & kind) == 0) return 0;
  const int kept = errno;
  const int ours = below(fd, name, path, sizeof path);
  errno = kept;
  if (!ours) return 0;
  if (action == INTERRUPT && kind == NAME) return 0;  // the kernel does not interrupt these
  const long call = calls++;
  const int later = action == SHORT || action == INTERRUPT;
  if (later ? call < chosen : call != chosen) return 0;
  if (action == INTERRUPT && call % 2 == 0) return 0;
  ++done;
  if (action == KILL_BEFORE) kill(getpid(), SIGKILL);
  if (action == CUT) truncate(path, 9);
  if (action == REMOVE) syscall(SYS_unlinkat, AT_FDCWD, path, 0);
  if (action == REPLACE) syscall(SYS_renameat2, AT_FDCWD, other, AT_FDCWD, path, 0);
  if (action == REWRITE) {
    const int to = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC);
    for (long at = 0, size = lseek(to, 0, SEEK_END); at < size; at += 64) syscall(SYS_pwrite64, to, "\xff\xff\xff\xff", 4L, at);
    syscall(SYS_close, to);
  }
  if (action <= CUT && action != KILL_WITHIN) return 0;
  return action;
}

// Makes the call. If it is to fail, sets errno and returns `bad`.
#define MAKE(kind, fd, path, bad, call)                                    \
  do {                                                                     \
    const int what = next(kind, fd, path);                                 \
    if (what > 0 || what == INTERRUPT) {                                   \
      errno = what > 0 ? what : EINTR;                                     \
      return bad;                                                          \
    }                                                                      \
    const __typeof__(call) result = call;                                  \
    if (what == KILL_AFTER || what == KILL_WITHIN) kill(getpid(), SIGKILL); \
    return result;                                                         \
  } while (0)
// The same for calls that move `size` bytes, of which a short one moves one.
#define MOVE(kind, fd, call)                                               \
  do {                                                                     \
    const int what = next(kind, fd, 0);                                    \
    if (what > 0 || what == INTERRUPT) {                                   \
      errno = what > 0 ? what : EINTR;                                     \
      return -1;                                                           \
    }                                                                      \
    if (what == SHORT && size > 1) size = size > 7 ? 7 : 1;                \
    if (what == KILL_WITHIN) size = size * part / 100;                     \
    const ssize_t result = call;                                           \
    if (what == KILL_AFTER || what == KILL_WITHIN) kill(getpid(), SIGKILL); \
    return result;                                                         \
  } while (0)

ssize_t read(int fd, void* to, size_t size) { MOVE(READ, fd, syscall(SYS_read, fd, to, size)); }
ssize_t pread(int fd, void* to, size_t size, off_t at) { MOVE(READ, fd, syscall(SYS_pread64, fd, to, size, at)); }
ssize_t pread64(int fd, void* to, size_t size, off64_t at) { MOVE(READ, fd, syscall(SYS_pread64, fd, to, size, at)); }
ssize_t write(int fd, const void* from, size_t size) { MOVE(WRITE, fd, syscall(SYS_write, fd, from, size)); }
ssize_t pwrite(int fd, const void* from, size_t size, off_t at) { MOVE(WRITE, fd, syscall(SYS_pwrite64, fd, from, size, at)); }
ssize_t pwrite64(int fd, const void* from, size_t size, off64_t at) { MOVE(WRITE, fd, syscall(SYS_pwrite64, fd, from, size, at)); }
int ftruncate(int fd, off_t size) { MAKE(WRITE, fd, 0, -1, syscall(SYS_ftruncate, fd, size)); }
int ftruncate64(int fd, off64_t size) { MAKE(WRITE, fd, 0, -1, syscall(SYS_ftruncate, fd, size)); }
int fallocate(int fd, int mode, off_t at, off_t size) { MAKE(WRITE, fd, 0, -1, syscall(SYS_fallocate, fd, mode, at, size)); }
int fallocate64(int fd, int mode, off64_t at, off64_t size) { MAKE(WRITE, fd, 0, -1, syscall(SYS_fallocate, fd, mode, at, size)); }
static int reserve(int fd, off64_t at, off64_t size) {
  MAKE(WRITE, fd, 0, errno, syscall(SYS_fallocate, fd, 0, at, size) == 0 ? 0 : errno);
}
int posix_fallocate(int fd, off_t at, off_t size) { return reserve(fd, at, size); }
int posix_fallocate64(int fd, off64_t at, off64_t size) { return reserve(fd, at, size); }
int fsync(int fd) { MAKE(SYNC, fd, 0, -1, syscall(SYS_fsync, fd)); }
int fdatasync(int fd) { MAKE(SYNC, fd, 0, -1, syscall(SYS_fdatasync, fd)); }
int rename(const char* a, const char* b) { MAKE(NAME, AT_FDCWD, b, -1, syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 0)); }
int renameat(int x, const char* a, int y, const char* b) { MAKE(NAME, y, b, -1, syscall(SYS_renameat2, x, a, y, b, 0)); }
int link(const char* a, const char* b) { MAKE(NAME, AT_FDCWD, b, -1, syscall(SYS_linkat, AT_FDCWD, a, AT_FDCWD, b, 0)); }
int linkat(int x, const char* a, int y, const char* b, int flags) { MAKE(NAME, y, b, -1, syscall(SYS_linkat, x, a, y, b, flags)); }
int unlink(const char* a) { MAKE(NAME, AT_FDCWD, a, -1, syscall(SYS_unlinkat, AT_FDCWD, a, 0)); }
int unlinkat(int x, const char* a, int flags) { MAKE(NAME, x, a, -1, syscall(SYS_unlinkat, x, a, flags)); }
int mkdir(const char* a, mode_t mode) { MAKE(NAME, AT_FDCWD, a, -1, syscall(SYS_mkdirat, AT_FDCWD, a, mode)); }

#define OPENS(name, at, path)                                              \
  mode_t mode = 0;                                                         \
  va_list more;                                                            \
  va_start(more, flags);                                                   \
  if (flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) mode = va_arg(more, mode_t); \
  va_end(more);                                                            \
  MAKE(flags & (O_WRONLY | O_RDWR) ? WRITE : OPEN, at, path, -1, syscall(SYS_openat, at, path, flags | O_LARGEFILE, mode))
int open(const char* path, int flags, ...) { OPENS(open, AT_FDCWD, path); }
int open64(const char* path, int flags, ...) { OPENS(open64, AT_FDCWD, path); }
int openat(int at, const char* path, int flags, ...) { OPENS(openat, at, path); }
int openat64(int at, const char* path, int flags, ...) { OPENS(openat64, at, path); }
