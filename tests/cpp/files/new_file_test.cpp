// A NewFile must be written whole or not at all, must replace nothing but regular files, and must leave no other file behind.
#include "files/new_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "files/build_files.h"
#include "files/expect_error.h"

namespace pumice::files::testing {
namespace {

namespace fs = std::filesystem;

std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

void write(const std::string& path, const std::string& text, std::uint64_t reserved = 0) {
  NewFile file(path, reserved);
  file.write(0, bytes_of(text));
  file.finish();
}

// Each test runs twice: with O_TMPFILE (files without a name), and as on a file system that does not support O_TMPFILE.
class NewFiles : public ::testing::TestWithParam<bool> {
 protected:
  NewFiles() {
    if (GetParam()) return;
    openat_call = [](int at, const char* name, int flags, mode_t mode) -> int {
      if ((flags & O_TMPFILE) == O_TMPFILE) return errno = EOPNOTSUPP, -1;
      return ::openat(at, name, flags, mode);
    };
  }
  ~NewFiles() override { openat_call = usual_; }
  Openat usual_ = openat_call;
  TempFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(, NewFiles, ::testing::Bool(), [](const auto& info) { return info.param ? "WithoutAName" : "AsParts"; });

TEST_P(NewFiles, TakeTheirPlaceWhenTheyAreWhole) {
  const std::string path = folder_.path("file");
  for (const std::string text : {"first", "another"}) {
    const std::string before = fs::exists(path) ? text_of(path) : "";
    NewFile file(path, 7);
    file.write(2, bytes_of(text.substr(2)));
    file.write(0, bytes_of(text.substr(0, 2)));
    EXPECT_EQ(fs::exists(path) ? text_of(path) : "", before);
    file.finish();
    EXPECT_EQ(text_of(path), text);
    EXPECT_EQ(names_in(folder_.path()), std::set<std::string>{"file"});
  }
}

TEST_P(NewFiles, LeaveNothingBehindUnfinished) {
  const std::string path = folder_.path("file");
  {
    NewFile(path).write(0, bytes_of("some"));
  }
  EXPECT_TRUE(names_in(folder_.path()).empty());
  folder_.write("file", "before");
  {
    NewFile(path).write(0, bytes_of("some"));
  }
  EXPECT_EQ(text_of(path), "before");
  EXPECT_EQ(names_in(folder_.path()), std::set<std::string>{"file"});
}

TEST_P(NewFiles, HaveThePermissionsOfAnyNewFile) {
  const mode_t mask = ::umask(027);
  folder_.write("file", "before");
  for (const std::string name : {"file", "other"}) {
    write(folder_.path(name), "x");
    EXPECT_EQ(fs::status(folder_.path(name)).permissions(), fs::perms(0640)) << name;
  }
  ::umask(mask);
}

TEST_P(NewFiles, RefuseWhateverIsNoPlainFile) {
  const std::string pipe = folder_.path("pipe"), socket = folder_.path("socket"), inside = folder_.path("folder");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_directory(inside);
  const int server = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket.c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(server, static_cast<sockaddr*>(static_cast<void*>(&address)), sizeof address), 0);
  ::close(server);
  for (const auto& [path, kind] : std::vector<std::pair<std::string, std::string>>{
           {pipe, "a pipe"}, {socket, "a socket"}, {inside, "a folder"}, {"/dev/null", "a device"}}) {
    fs::remove(folder_.path("link"));
    fs::create_symlink(path, folder_.path("link"));
    const auto before = names_in(folder_.path());
    expect_error(ErrorKind::io, "is " + kind, [&] { NewFile{path}; });
    expect_error(ErrorKind::io, "is " + kind, [&] { NewFile{folder_.path("link")}; });
    EXPECT_EQ(names_in(folder_.path()), before);
    EXPECT_FALSE(fs::is_regular_file(path));
  }
  // A pipe that appears under the name while the new file is being written must not be replaced either.
  NewFile file(folder_.path("late"));
  ASSERT_EQ(::mkfifo(folder_.path("late").c_str(), 0600), 0);
  expect_error(ErrorKind::io, "is a pipe", [&] { file.finish(); });
  EXPECT_TRUE(fs::is_fifo(folder_.path("late")));
}

TEST_P(NewFiles, RefuseNamesThatTakeNoFile) {
  folder_.write("file", "before");
  for (const auto& [path, said] :
       std::vector<std::pair<std::string, std::string>>{{"", "is empty"},
                                                        {std::string("a\0b", 3), "NUL"},
                                                        {folder_.path("no/file"), "No such file"},
                                                        {folder_.path("file/x"), "Not a directory"},
                                                        {folder_.path("file") + "/", "this names no file"},
                                                        {folder_.path() + "/", "is a folder"},
                                                        {folder_.path(".."), "is a folder"},
                                                        {folder_.path(std::string(300, 'x')), "this names no file"}}) {
    expect_error(ErrorKind::io, said, [&, path = path] { NewFile{path}; });
  }
  write(folder_.path(std::string(255, 'x')), "a name as long as any");
  write(folder_.path(std::string(255, 'x')), "and again");
  EXPECT_EQ(names_in(folder_.path()).size(), 2u);
}

TEST_P(NewFiles, FollowLinksWhichStay) {
  folder_.write("there/file", "before");
  fs::create_symlink("there/file", folder_.path("link"));
  fs::create_symlink("link", folder_.path("second"));
  fs::create_symlink(folder_.path("there/new"), folder_.path("dangling"));
  fs::create_symlink("loop", folder_.path("loop"));
  write(folder_.path("second"), "after");
  write(folder_.path("dangling"), "made");
  EXPECT_TRUE(fs::is_symlink(folder_.path("second")) && fs::is_symlink(folder_.path("link")) && fs::is_symlink(folder_.path("dangling")));
  EXPECT_EQ(text_of(folder_.path("there/file")), "after");
  EXPECT_EQ(text_of(folder_.path("there/new")), "made");
  expect_error(ErrorKind::io, "Too many levels of symbolic links", [&] { NewFile{folder_.path("loop")}; });
  // /proc/self/fd/N is a link to an open file, and is followed too. After the file has been replaced, the open file has no name in any
  // folder, so it cannot be replaced again.
  const int open = ::open(folder_.path("there/file").c_str(), O_RDONLY);
  const std::string of_open = "/proc/self/fd/" + std::to_string(open);
  write(of_open, "by its number");
  EXPECT_EQ(text_of(folder_.path("there/file")), "by its number");
  expect_error(ErrorKind::io, "has no name", [&] { NewFile{of_open}; });  // the open file was replaced by the write above
  ::close(open);
}

TEST_P(NewFiles, StayInTheirFolder) {
  fs::create_directory(folder_.path("a"));
  NewFile file(folder_.path("a/file"));
  file.write(0, bytes_of("x"));
  fs::rename(folder_.path("a"), folder_.path("b"));
  file.finish();
  EXPECT_EQ(text_of(folder_.path("b/file")), "x");
}

TEST_P(NewFiles, RefuseWriteProtectedOnes) {
  folder_.write("file", "before");
  fs::permissions(folder_.path("file"), fs::perms(0444));
  fs::permissions(folder_.path(), fs::perms::all);
  const pid_t child = ::fork();
  if (child == 0) {  // the child drops root's rights, because root may write to every file
    if (::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(3);
    try {
      NewFile file(folder_.path("file"));
      ::_exit(1);
    } catch (const Error& error) {
      ::_exit(std::string(error.what()).find("Permission denied") == std::string::npos ? 2 : 0);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || ::getuid() != 0)) << WEXITSTATUS(status);
  EXPECT_EQ(text_of(folder_.path("file")), "before");
}

TEST_P(NewFiles, SayThatTheDiskIsFullAndLeaveNothing) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);  // Python ignores this signal too
    const rlimit limit{1 << 16, 1 << 16};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int wrong = 0;
    for (const std::uint64_t reserved : {0, 1 << 20}) {
      try {
        write(folder_.path("file"), std::string(1 << 20, 'x'), reserved);
        wrong |= 1;
      } catch (const Error& error) {
        wrong |= std::string(error.what()).find("File too large") == std::string::npos ? 2 : 0;
      }
    }
    ::_exit(wrong);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(names_in(folder_.path()).empty());
}

// A process that is killed while it writes must leave nothing behind, or only a .part file, which the next writer of the same name removes.
TEST_P(NewFiles, OfProcessesThatWereKilled) {
  const std::string path = folder_.path("file");
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    NewFile file(path);
    file.write(0, bytes_of("half"));
    if (::write(ready[1], "x", 1) == 1) ::pause();
    ::_exit(1);
  }
  char c;
  ASSERT_EQ(::read(ready[0], &c, 1), 1);
  ::close(ready[0]);
  ::close(ready[1]);
  const auto parts = names_in(folder_.path());
  EXPECT_EQ(parts.size(), GetParam() ? 0u : 1u);
  write(path, "beside it");  // must not remove the .part file of a process that is still writing
  for (const std::string& part : parts) EXPECT_TRUE(fs::exists(folder_.path(part)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const std::string old = "file." + std::to_string(child) + "-7.part";  // a name in the form that earlier versions used
  folder_.write(old, "half");
  const std::set<std::string> others = {"file.x-1.part", "file.1-1.parts", "other." + std::to_string(child) + "-1.part", "file.-1.part"};
  for (const std::string& name : others) folder_.write(name, "not ours");
  // The lock stands for a writer in another container that shares the folder. Its process is not visible here, but its lock is.
  const std::string held = "file." + std::to_string(child) + "-8.part";
  const int locked = ::open(folder_.write(held, "half").c_str(), O_RDONLY);
  ASSERT_EQ(::flock(locked, LOCK_EX), 0);
  write(path, "the next");
  std::set<std::string> left = others;
  left.insert({"file", held});
  EXPECT_EQ(names_in(folder_.path()), left);
  EXPECT_EQ(text_of(path), "the next");
  ::close(locked);
}

TEST_P(NewFiles, OfAForkedProcessAreTheParents) {
  const std::string path = folder_.path("file");
  NewFile file(path);
  file.write(0, bytes_of("whole"));
  const pid_t child = ::fork();
  if (child == 0) {
    file.~NewFile();
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  file.finish();
  EXPECT_EQ(text_of(path), "whole");
}

TEST_P(NewFiles, OfManyThreadsAreEachWhole) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 20; ++round) write(folder_.path("file"), std::string(1000, static_cast<char>('a' + i)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = text_of(folder_.path("file"));
  EXPECT_EQ(text, std::string(1000, text[0]));
  EXPECT_EQ(names_in(folder_.path()).size(), 1u);
}

}  // namespace
}  // namespace pumice::files::testing
