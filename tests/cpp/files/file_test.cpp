// Tests of opening and reading files: links, pipes and devices, failing system calls, and files that shrink.
#include "files/file.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "files/build_files.h"
#include "files/expect_error.h"
#include "files/model_file.h"
#include "files/text.h"

namespace pumice::files::testing {
namespace {

namespace fs = std::filesystem;

class Links : public ::testing::Test {
 protected:
  Links() {
    blob_ = root_.write("hub/models--a/blobs/0123", safetensors(sample_tensors()).bytes);
    root_.write("hub/models--b/blobs/0123", safetensors(sample_tensors()).bytes);
    root_.write("outside.safetensors", safetensors(sample_tensors()).bytes);
    root_.write("hub/models--a/snapshots/c0ffee/config.json", "{}");
    snapshot_ = root_.path("hub/models--a/snapshots/c0ffee");
  }
  void link(const std::string& target, const std::string& name = "model.safetensors") const {
    fs::remove(snapshot_ + "/" + name);
    fs::create_symlink(target, snapshot_ + "/" + name);
  }
  std::size_t tensors() const { return ModelFile::open(snapshot_)->tensors().size(); }
  TempFolder root_;
  std::string blob_, snapshot_;
};

TEST_F(Links, IntoTheCachesOwnBlobsAreFollowed) {
  link("../../blobs/0123");
  EXPECT_EQ(tensors(), 6u);
  link(blob_);  // the same file by its absolute path
  EXPECT_EQ(tensors(), 6u);
  fs::copy_file(blob_, snapshot_ + "/real");
  link("real");
  EXPECT_EQ(tensors(), 6u);
  root_.write("hub/models--a/blobs/4567", "{\"hidden_size\": 5}");
  link("../../blobs/4567", "config.json");
  EXPECT_EQ(ModelFile::open(snapshot_)->integer("hidden_size"), 5);
  fs::create_symlink(snapshot_, root_.path("alias"));  // the path to the folder may be a link
  EXPECT_EQ(ModelFile::open(root_.path("alias"))->integer("hidden_size"), 5);
}

TEST_F(Links, OutOfTheModelAreRefused) {
  for (const std::string& target :
       {root_.path("outside.safetensors"), std::string("../../../../outside.safetensors"), std::string("../../../models--b/blobs/0123"),
        std::string("/dev/zero"), std::string("../../blobs/../../../outside.safetensors")}) {
    link(target);
    expect_error(ErrorKind::io, "is a link to", [&] { tensors(); });
  }
  fs::create_symlink(root_.path("outside.safetensors"), root_.path("hub/models--a/blobs/hop"));
  link("../../blobs/hop");  // a link to a link
  expect_error(ErrorKind::io, "is a link to", [&] { tensors(); });
  fs::create_directory(snapshot_ + "/sub");
  fs::create_directory_symlink(root_.path("hub"), snapshot_ + "/sub/out");
  link("sub/out/../outside.safetensors");  // through a link to a folder
  expect_error(ErrorKind::io, "is a link to", [&] { tensors(); });
  link("../../blobs/gone");
  expect_error(ErrorKind::io, "is a link to a file that does not exist", [&] { tensors(); });
  link("model.safetensors");  // to itself
  expect_error(ErrorKind::io, "model.safetensors: is a link to itself", [&] { tensors(); });
  fs::rename(root_.path("hub/models--a/blobs"), root_.path("hub/models--a/kept"));
  // The blobs folder itself is a link to another model's blobs folder.
  fs::create_directory_symlink(root_.path("hub/models--b/blobs"), root_.path("hub/models--a/blobs"));
  link("../../blobs/0123");
  expect_error(ErrorKind::io, "is a link to", [&] { tensors(); });
}

TEST_F(Links, IntoTheFoldersOwnTreeAreFollowed) {
  fs::create_directories(snapshot_ + "/..2026_11_30");
  fs::copy_file(blob_, snapshot_ + "/..2026_11_30/model.safetensors");
  fs::create_directory_symlink("..2026_11_30", snapshot_ + "/..data");  // as Kubernetes mounts files
  link("..data/model.safetensors");
  EXPECT_EQ(tensors(), 6u);
  fs::create_symlink(snapshot_ + "/..data/model.safetensors", snapshot_ + "/..data/again");
  link("..data/again");  // a link to a link by its absolute path
  EXPECT_EQ(tensors(), 6u);
  std::string last = "..data/model.safetensors";
  for (int i = 0; i < 9; ++i) {
    const std::string name = "hop" + std::to_string(i);
    fs::create_symlink(last, snapshot_ + "/" + name);
    last = name;
  }
  link(last);
  expect_error(ErrorKind::io, "one of more than 8 links in a row", [&] { tensors(); });
}

TEST_F(Links, OfATrustedFolderLeadAnywhere) {
  link(root_.path("outside.safetensors"));
  expect_error(ErrorKind::io, "follow_links=True", [&] { tensors(); });
  allow_links(snapshot_);
  EXPECT_EQ(tensors(), 6u);
  EXPECT_THROW(allow_links(root_.path("none")), Error);
}

TEST_F(Links, ThatTheUserNamesAreFollowed) {
  root_.write("sample", sample_gguf(3).build().bytes);
  fs::create_symlink(root_.path("sample"), root_.path("model.gguf"));
  EXPECT_EQ(ModelFile::open(root_.path("model.gguf"))->tensors().size(), 6u);
}

TEST_F(Links, PartsOfSplitGgufLeadIntoTheBlobs) {
  const auto part = [](std::uint16_t number) {
    GgufBuilder builder;
    builder.key("split.no", 2, number).key("split.count", 2, std::uint16_t{2}).key("split.tensors.count", 5, std::int32_t{2});
    return builder.tensor("w" + std::to_string(number), {8}, 0, pattern(32, number)).build().bytes;
  };
  root_.write("hub/models--a/blobs/p1", part(0));
  root_.write("hub/models--a/blobs/p2", part(1));
  link("../../blobs/p1", "m-00001-of-00002.gguf");
  link("../../blobs/p2", "m-00002-of-00002.gguf");
  EXPECT_EQ(ModelFile::open(snapshot_ + "/m-00001-of-00002.gguf")->tensors().size(), 2u);
  fs::create_directory(snapshot_ + "/Q4");  // some repositories keep each quantization in a folder of its own
  fs::create_symlink("../../../blobs/p1", snapshot_ + "/Q4/m-00001-of-00002.gguf");
  fs::create_symlink("../../../blobs/p2", snapshot_ + "/Q4/m-00002-of-00002.gguf");
  EXPECT_EQ(ModelFile::open(snapshot_ + "/Q4/m-00002-of-00002.gguf")->tensors().size(), 2u);
}

TEST(SpecialFiles, AreRefusedWithoutBlocking) {
  const TempFolder folder;
  const std::string pipe = folder.path("pipe.gguf");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_error(ErrorKind::io, "not a regular file but a pipe", [&] { ModelFile::open(pipe); });
  expect_error(ErrorKind::io, "not a regular file but a device", [&] { ModelFile::open("/dev/zero"); });
  expect_error(ErrorKind::io, "No such file", [&] { ModelFile::open(folder.path("gone")); });
  expect_error(ErrorKind::io, "cannot be opened", [&] { ModelFile::open(""); });
  expect_error(ErrorKind::io, "NUL", [&] { ModelFile::open(std::string("/etc\0/passwd", 12)); });
  expect_error(ErrorKind::io, "File name too long", [&] { ModelFile::open("/" + std::string(5000, 'x')); });
  // Error messages escape control characters and invalid UTF-8, because they may be printed to a terminal.
  expect_error(ErrorKind::io, "\\x1b[31m\\xff", [&] { ModelFile::open("/\x1b[31m\xff"); });

  const int server = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string socket = folder.path("socket");
  std::strncpy(address.sun_path, socket.c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(server, static_cast<sockaddr*>(static_cast<void*>(&address)), sizeof address), 0);
  expect_error(ErrorKind::io, "cannot be opened", [&] { ModelFile::open(socket); });
  ::close(server);

  folder.write("config.json", "{}");
  ASSERT_EQ(::mkfifo(folder.path("model.safetensors").c_str(), 0600), 0);
  expect_error(ErrorKind::io, "a pipe", [&] { ModelFile::open(folder.path()); });
  fs::remove(folder.path("model.safetensors"));
  fs::create_directory(folder.path("model.safetensors"));
  expect_error(ErrorKind::io, "a folder", [&] { ModelFile::open(folder.path()); });
}

// ---------------------------------------------------------------- faults

// Replaces pread() during the lifetime of the object. Call number `failing` (counted from 0) fails with `fault`. Each call reads at most
// `most` bytes, and every `interrupted_every`-th call fails with EINTR (0: no call does).
class FaultyPread {
 public:
  enum Fault { none, io_error, end_of_file };
  FaultyPread(Fault fault, int failing, std::size_t most, int interrupted_every) {
    fault_ = fault, failing_ = failing, most_ = most, interrupted_every_ = interrupted_every, calls_ = 0, interrupts_ = 0;
    pread_call = [](int fd, void* out, std::size_t count, off_t offset) -> ssize_t {
      if (interrupted_every_ > 0 && ++interrupts_ % interrupted_every_ == 0) return errno = EINTR, -1;
      if (fault_ != none && calls_++ == failing_) return fault_ == io_error ? (errno = EIO, -1) : 0;
      return ::pread(fd, out, std::min(count, most_), offset);
    };
  }
  ~FaultyPread() { pread_call = ::pread; }
  static bool reached() { return calls_ > failing_; }

 private:
  static inline Fault fault_;
  static inline int failing_, interrupted_every_, calls_, interrupts_;
  static inline std::size_t most_;
};

std::string everything(const ModelFile& model) {
  std::string all;
  for (const TensorInfo& tensor : model.tensors()) {
    std::vector<std::uint8_t> bytes(tensor.bytes);
    model.read(tensor, 0, tensor.bytes, bytes.data());
    all += str(tensor.name, tensor.format_name, tensor.bytes);
    all.append(bytes.begin(), bytes.end());
  }
  for (const auto& [key, value] : model.metadata().entries()) all += key + type_name(value);
  return all;
}

TEST(Faults, ShortAndInterruptedReadsChangeNothing) {
  const TempFolder folder;
  folder.write("config.json", "{\"a\": [1, 2]}");
  folder.write("model.safetensors", safetensors(sample_tensors()).bytes);
  for (const std::string& path : {folder.write("model.gguf", sample_gguf(3).build().bytes), folder.path()}) {
    const std::string expected = everything(*ModelFile::open(path));
    for (const std::size_t most : {1, 3, 100}) {
      const FaultyPread faulty(FaultyPread::none, 0, most, 2);
      EXPECT_EQ(everything(*ModelFile::open(path)), expected);
    }
  }
}

TEST(Faults, EveryReadThatFailsIsATypedError) {
  const TempFolder folder;
  folder.write("config.json", "{\"a\": [1, 2]}");
  folder.write("model.safetensors", safetensors(sample_tensors()).bytes);
  for (const std::string& path : {folder.write("model.gguf", sample_gguf(3).build().bytes), folder.path()}) {
    for (const auto fault : {FaultyPread::io_error, FaultyPread::end_of_file}) {
      int failing = 0;
      for (;; ++failing) {
        const FaultyPread faulty(fault, failing, 512, 0);
        const auto load = [&] { everything(*ModelFile::open(path)); };
        try {
          load();
          ASSERT_FALSE(FaultyPread::reached());
          break;
        } catch (const Error& error) {
          ASSERT_EQ(static_cast<int>(error.kind()), static_cast<int>(ErrorKind::io)) << error.what();
          ASSERT_NE(std::string(error.what()).find(fault == FaultyPread::io_error ? "Input/output error" : "changed meanwhile"),
                    std::string::npos);
        }
      }
      EXPECT_GE(failing, 7);
    }
  }
}

TEST(Faults, AFileThatShrinksWhileOpen) {
  const TempFolder folder;
  const std::string path = folder.write("model.gguf", sample_gguf(3).build().bytes);
  const auto model = ModelFile::open(path);
  fs::resize_file(path, 100);
  expect_error(ErrorKind::io, "changed meanwhile", [&] { everything(*model); });
}

TEST(Faults, ManyThreadsReadOneModel) {
  const TempFolder folder;
  const auto model = ModelFile::open(folder.write("model.gguf", sample_gguf(3).build().bytes));
  const std::string expected = everything(*model);
  std::vector<std::string> got(8);
  std::vector<std::thread> threads;
  for (auto& result : got)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) result = everything(*model);
    });
  for (auto& thread : threads) thread.join();
  for (const auto& result : got) EXPECT_EQ(result, expected);
}

// ---------------------------------------------------------------- text

TEST(Text, Utf8AsRfc3629HasIt) {
  for (const char* good :
       {"", "a", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(valid_utf8(good)) << good;
  }
  for (const char* bad : {"\x80", "\xC0\x80", "\xC1\xBF", "\xC2", "\xC2\x41", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xE2\x82",
                          "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "a\xE2\x28\xA1"}) {
    EXPECT_FALSE(valid_utf8(bad)) << printable(bad);
  }
  EXPECT_EQ(quote("a\n\xFF\xC3\xA9"), "'a\\x0a\\xff\xC3\xA9'");
  EXPECT_EQ(printable(std::string(10, 'x'), 4), "xxxx...");
}

}  // namespace
}  // namespace pumice::files::testing
