// Files whose header claims enormous contents that the file does not have must be refused at once, and with little memory.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <new>

#include "files/build_files.h"
#include "files/expect_error.h"
#include "files/model_file.h"

// This operator new counts allocated bytes, including bytes that are never touched. It is left out under the address sanitizer, which has
// an operator new of its own.
#if !defined(__SANITIZE_ADDRESS__)
#define PUMICE_COUNTS_MEMORY 1
namespace {
std::atomic<std::size_t> held_bytes{0}, peak_bytes{0};
}
void* operator new(std::size_t size) {
  void* memory = std::malloc(size);
  if (!memory) throw std::bad_alloc();
  const std::size_t held = held_bytes += ::malloc_usable_size(memory);
  std::size_t peak = peak_bytes;
  while (held > peak && !peak_bytes.compare_exchange_weak(peak, held)) {
  }
  return memory;
}
void operator delete(void* memory) noexcept {
  held_bytes -= ::malloc_usable_size(memory);
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }
#endif

namespace pumice::files::testing {
namespace {

struct Used {
  double milliseconds;
  std::size_t bytes;  // peak of allocated bytes during the action; 0 if bytes are not counted
};

template <class Action>
Used measure(Action&& action) {
#ifdef PUMICE_COUNTS_MEMORY
  const std::size_t before = held_bytes;
  peak_bytes = before;
#endif
  const std::clock_t start = std::clock();  // processor time, which excludes other processes
  action();
  const double milliseconds = 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
#ifdef PUMICE_COUNTS_MEMORY
  return {milliseconds, peak_bytes - before};
#else
  return {milliseconds, 0};
#endif
}

TEST(Bombs, AreRefusedAtOnce) {
  const TempFolder folder;
  folder.write("config.json", "{}");
  std::size_t bombs = 0;
  double slowest = 0;
  std::size_t largest = 0;
  const auto refused = [&](const std::string& bytes, const std::string& what) {
    const std::string path = folder.write("model.safetensors", bytes);  // a GGUF file is recognised by its first bytes under any name
    const Used used = measure([&] { expect_error(ErrorKind::model_format, "", [&] { ModelFile::open(path); }); });
    EXPECT_LT(used.milliseconds, 50) << what;
    EXPECT_LT(used.bytes, 1u << 20) << what;
    slowest = std::max(slowest, used.milliseconds);
    largest = std::max(largest, used.bytes);
    ++bombs;
  };

  // GGUF files of about 60 bytes, in which one count or length after another is set to a huge value.
  const GgufBuilder files[] = {
      GgufBuilder().tensor("w", {1}, 0, floats({1})),
      GgufBuilder().text("k", "v"),
      GgufBuilder().texts("k", {"a"}),
      GgufBuilder().array("k", 0, std::vector<std::uint8_t>{1}),
      GgufBuilder().array("k", 10, std::vector<std::uint64_t>{1}),
      GgufBuilder().array("k", 7, std::vector<std::uint8_t>{1}),
      GgufBuilder().array("k", 12, std::vector<double>{1}),
  };
  for (const GgufBuilder& builder : files) {
    const Built built = builder.build();
    for (const Field& field : built.fields) {
      if (field.size != 8 || field.name == "k element") continue;
      for (const std::uint64_t huge :
           {1ull << 20, 1ull << 24, 1ull << 31, 1ull << 32, 1ull << 40, 1ull << 60, 1ull << 62, 1ull << 63, ~0ull, ~0ull - 7, ~0ull / 8}) {
        std::string bytes = built.bytes;
        for (std::size_t i = 0; i < 8; ++i) bytes[field.offset + i] = static_cast<char>(huge >> (8 * i));
        refused(bytes, str(field.name, " = ", huge));
      }
    }
  }
  for (const std::uint64_t huge : {1ull << 62, 1ull << 63, ~0ull, 100'000'000ull, 99'999'999ull}) {
    std::string bytes = safetensors_raw("{}", "");
    for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(huge >> (8 * i));
    refused(bytes, str("header length = ", huge));
  }
  const auto tensor = [](const std::string& shape, const std::string& offsets) {
    return safetensors_raw(R"({"w":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}", "");
  };
  refused(tensor("[4611686018427387904]", "[0,9223372036854775807]"), "data of 2^63 bytes");
  refused(tensor("[2147483648,2147483648]", "[0,0]"), "2^62 values");
  refused(tensor("[1]", "[9223372036854775807,9223372036854775807]"), "offsets of 2^63");
  refused(safetensors_raw("{\"w\":" + std::string(10'000, '['), ""), "depth");
  refused(safetensors_raw("{\"w\":" + std::string(10'000, '{'), ""), "depth");
  std::cout << "  " << bombs << " bombs, slowest " << slowest << " ms, largest " << largest / 1024 << " KiB\n";
}

// A sparse file of a terabyte takes almost no disk space. Its header may claim large contents that do fit in the file, so the file's size
// is no reason to refuse it. It must still be refused, within 2 s and a bound on memory.
TEST(Bombs, SparseFilesOfATerabyte) {
  const TempFolder folder;
  folder.write("config.json", "{}");
  const auto refused = [&](const std::string& head, std::size_t most, const std::string& what) {
    const std::string path = folder.write("model.safetensors", head);
    std::error_code no_room;
    std::filesystem::resize_file(path, 1ull << 40, no_room);
    ASSERT_FALSE(no_room) << no_room.message();
    const Used used = measure([&] { expect_error(ErrorKind::model_format, "", [&] { ModelFile::open(path); }); });
#ifdef PUMICE_COUNTS_MEMORY
    EXPECT_LT(used.milliseconds, 2000) << what;
#endif
    EXPECT_LT(used.bytes, most) << what << " " << used.milliseconds << " ms";
  };
  const auto cut_after = [](const Built& built, const std::string& field) {
    for (const Field& candidate : built.fields) {
      if (candidate.name == field) return built.bytes.substr(0, candidate.offset + candidate.size);
    }
    return std::string();
  };
  const auto with = [&](Built built, const std::string& field, std::uint64_t value) {
    std::string bytes = cut_after(built, field);
    for (std::size_t i = 0; i < 8; ++i) bytes[bytes.size() - 8 + i] = static_cast<char>(value >> (8 * i));
    return bytes;
  };
  const GgufBuilder one = GgufBuilder().tensor("w", {1}, 0, floats({1}));
  // The largest allowed array has 16 Mi strings. Here all are empty. Their lengths take 128 MiB of the header, and the list of strings may
  // take as much memory.
  refused(with(GgufBuilder(one).texts("k", {"a"}).build(), "k element count", 1u << 24), 200u << 20, "16 Mi strings");
  refused(with(GgufBuilder(one).array("k", 12, std::vector<double>{1}).build(), "k element count", 1u << 24), 200u << 20, "16 Mi numbers");
  refused(with(GgufBuilder(one).text("k", "v").build(), "k length", 1u << 24), 64u << 20, "a string of 16 MiB");
  refused(with(GgufBuilder().tensor("w", {1}, 0, floats({1})).build(), "tensor_count", 1u << 20).substr(0, 16) + std::string(8, '\0'),
          256u << 20, "1 Mi tensors");
  std::string header = safetensors_raw("{", "");
  header[0] = static_cast<char>(0x00), header[1] = static_cast<char>(0xE1), header[2] = static_cast<char>(0xF5),
  header[3] = 5;  // the length is now 100,000,000
  refused(header, 256u << 20, "a header of 100 MB");
}

// Time and memory must grow linearly with the header. A header with a vocabulary as large as Gemma's must be read within 100 ms (a few
// milliseconds are usual), with at most 16 MiB of memory plus four times the header's bytes.
TEST(Bombs, RealSizesAreFast) {
  std::vector<std::string> words;
  for (int i = 0; i < 262'144; ++i) words.push_back("word" + std::to_string(i));
  const Built built = GgufBuilder()
                          .texts("tokenizer.ggml.tokens", words)
                          .array("tokenizer.ggml.scores", 6, std::vector<float>(words.size(), -1.0f))
                          .array("tokenizer.ggml.token_type", 5, std::vector<std::int32_t>(words.size(), 1))
                          .tensor("w", {1}, 0, floats({1}))
                          .build();
  const TempFolder folder;
  const std::string path = folder.write("model.gguf", built.bytes);
  std::shared_ptr<const ModelFile> model;
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    model.reset();
    const Used used = measure([&] { model = ModelFile::open(path); });
    EXPECT_LE(used.bytes, 4 * built.header_bytes + (16u << 20));
    best = std::min(best, used.milliseconds);
  }
  const auto& tokens = std::get<StringList>(*model->value("tokenizer.ggml.tokens"));
  ASSERT_EQ(tokens.size(), words.size());
  EXPECT_EQ(tokens[262'143], "word262143");
  std::cout << "  " << built.header_bytes / 1024 << " KiB of header in " << best << " ms\n";
#ifdef PUMICE_COUNTS_MEMORY
  EXPECT_LT(best, 100);
#endif
}

}  // namespace
}  // namespace pumice::files::testing
