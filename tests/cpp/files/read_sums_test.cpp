// Tests of the checksums of the bytes that were read. Each byte must count once, in whatever pieces and however often it is read, and any
// change of the bytes must change the sum.
#include "files/read_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "files/build_files.h"
#include "files/expect_error.h"
#include "files/model_file.h"

namespace pumice::files::testing {
namespace {

std::vector<std::uint8_t> random_bytes(std::size_t count) {
  std::mt19937 random(5);
  std::vector<std::uint8_t> bytes(count);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

std::span<const std::uint8_t> stretch(const std::vector<std::uint8_t>& bytes, std::size_t begin, std::size_t end) {
  return std::span(bytes).subspan(begin, end - begin);
}

WideSum whole(const std::vector<std::uint8_t>& bytes) { return wide_sum(0, bytes); }

TEST(ReadSums, DoNotDependOnHowBytesAreCut) {
  const auto bytes = random_bytes(5000);
  for (const std::size_t piece : {1, 2, 3, 4, 5, 7, 8, 34, 63, 512, 513, 612, 1024, 4999}) {
    WideSum sum;
    for (std::size_t at = 0; at < bytes.size(); at += piece)
      sum = sum + wide_sum(at, stretch(bytes, at, std::min(at + piece, bytes.size())));
    EXPECT_EQ(sum, whole(bytes)) << piece;
  }
}

TEST(ReadSums, CountEachByteOnceInAnyOrderFromAnyThread) {
  const auto bytes = random_bytes(20'000);
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::pair<std::size_t, std::size_t>> pieces;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t end = std::min(bytes.size(), at + 1 + random() % 900);
      pieces.emplace_back(at, end);
      at = end;
    }
    for (int i = 0; i < 30; ++i) {  // pieces that overlap the pieces above, so that bytes are read again
      const std::size_t begin = random() % bytes.size();
      pieces.emplace_back(begin, begin + random() % (bytes.size() - begin));
    }
    std::ranges::shuffle(pieces, random);
    ReadSums sums(2);
    std::vector<std::thread> threads;
    for (std::size_t thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&, thread] {
        for (std::size_t i = thread; i < pieces.size(); i += 3)
          sums.add(1, pieces[i].first, stretch(bytes, pieces[i].first, pieces[i].second));
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(sums.sum(1), whole(bytes));
    EXPECT_EQ(sums.bytes(1), bytes.size());
    EXPECT_EQ(sums.sum(0), WideSum{});
    EXPECT_EQ(sums.bytes(0), 0u);
  }
}

TEST(ReadSums, EveryChangeShows) {
  auto bytes = random_bytes(3001);
  const WideSum sum = whole(bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (const int bit : {0, 7}) {
      bytes[i] = static_cast<std::uint8_t>(bytes[i] ^ 1 << bit);
      EXPECT_NE(whole(bytes), sum) << i;
      bytes[i] = static_cast<std::uint8_t>(bytes[i] ^ 1 << bit);
    }
  }
  // Accidental changes that a weak sum might miss: two weights change their signs, and two runs of bytes swap places.
  for (std::size_t i = 3; i < bytes.size(); i += 4) {
    for (std::size_t j = i + 4; j < bytes.size(); j += 4) {
      bytes[i] ^= 0x80, bytes[j] ^= 0x80;
      ASSERT_NE(whole(bytes), sum) << i << " " << j;
      bytes[i] ^= 0x80, bytes[j] ^= 0x80;
    }
  }
  for (const std::size_t size : {4, 64, 512, 1024}) {
    auto changed = bytes;
    std::swap_ranges(changed.begin(), changed.begin() + static_cast<std::ptrdiff_t>(size), changed.begin() + 1500);
    EXPECT_NE(whole(changed), sum) << size;
  }
  EXPECT_NE(wide_sum(4, bytes), sum);  // the same bytes at another offset
}

TEST(ReadSums, AreThoseOfAnyMachine) {
  const std::vector<std::uint8_t> bytes = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(whole(bytes).low, 0xaa9521423a281e3bu);
  EXPECT_EQ(whole(bytes).high, 0x000e778ac5fe29ccu);
}

TEST(SummedFiles, SumWhatIsReadOfEachTensor) {
  const TempFolder folder;
  const auto file = ModelFile::open(folder.write("a.gguf", sample_gguf(3).build()));
  EXPECT_EQ(file->sums(), nullptr);
  const auto view = file->summed(), other = file->summed();
  const TensorInfo& tensor = view->tensors()[1];
  std::vector<std::uint8_t> bytes(tensor.bytes);
  view->read(tensor, 0, tensor.bytes, bytes.data());
  view->read(tensor, 3, 5, bytes.data() + 3);
  EXPECT_EQ(view->sums()->sum(1), whole(bytes));
  EXPECT_EQ(view->sums()->bytes(1), tensor.bytes);
  EXPECT_EQ(other->sums()->bytes(1), 0u);  // each summed() view counts only its own reads
  EXPECT_EQ(view->sums()->bytes(0), 0u);
}

TEST(SummedFiles, SeeThatAFileWasChanged) {
  const TempFolder folder;
  const std::string path = folder.write("a.gguf", sample_gguf(3).build());
  const auto file = ModelFile::open(path)->summed();
  file->require_unchanged();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // before Linux 6.13, modification times have steps of up to 10 ms
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(-1, std::ios::end).put('x');
  expect_error(ErrorKind::io, "was changed after it was opened", [&] { file->require_unchanged(); });
  const auto replaced = ModelFile::open(path);
  std::filesystem::rename(folder.write("b.gguf", "another file"), path);
  replaced->require_unchanged();  // another file now has the name, but the open file is unchanged
}

TEST(SummedFiles, SeeAFileThatWasRewrittenWithItsOldTime) {
  const TempFolder folder;
  const std::string path = folder.write("a.gguf", sample_gguf(3).build());
  const auto file = ModelFile::open(path);
  const auto time = std::filesystem::last_write_time(path);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(-1, std::ios::end).put('x');
  std::filesystem::last_write_time(path, time);
  expect_error(ErrorKind::io, "was changed after it was opened", [&] { file->require_unchanged(); });
}

TEST(SummedFiles, MayGetOtherNamesLinksAndModes) {
  const TempFolder folder;
  const std::string path = folder.write("a.gguf", sample_gguf(3).build()), other = path + ".other", third = path + ".third";
  const auto changed = [&](const std::string& from, const auto& change) {
    const auto file = ModelFile::open(from);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    change();
    file->require_unchanged();
  };
  changed(path, [&] { std::filesystem::rename(path, other); });
  changed(other, [&] { std::filesystem::create_hard_link(other, third); });
  changed(other, [&] { std::filesystem::permissions(other, std::filesystem::perms::owner_read); });
  changed(other, [&] { std::filesystem::remove(other); });
}

}  // namespace
}  // namespace pumice::files::testing
