// GGUF files must be read as they were written, and each broken rule of the format must give an error of its own.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "files/build_files.h"
#include "files/expect_error.h"
#include "files/model_file.h"

namespace pumice::files::testing {
namespace {

class Gguf : public ::testing::Test {
 protected:
  std::shared_ptr<const ModelFile> open(const std::string& bytes) { return ModelFile::open(folder_.write("model.gguf", bytes)); }
  std::shared_ptr<const ModelFile> open(const GgufBuilder& builder) { return open(builder.build().bytes); }
  Error refused(const std::string& bytes, const std::string& text, ErrorKind kind = ErrorKind::model_format) {
    return expect_error(kind, text, [&] { open(bytes); });
  }
  Error refused(const GgufBuilder& builder, const std::string& text) { return refused(builder.build().bytes, text); }
  static GgufBuilder one_tensor(GgufBuilder builder = GgufBuilder()) {
    return builder.tensor("w", {8}, 0, floats({1, 2, 3, 4, 5, 6, 7, 8}));
  }
  TempFolder folder_;
};

std::string read_all(const ModelFile& model, const TensorInfo& tensor) {
  std::vector<std::uint8_t> bytes(tensor.bytes);
  model.read(tensor, 0, tensor.bytes, bytes.data());
  return {bytes.begin(), bytes.end()};
}

TEST_F(Gguf, GivesBackWhatWasWritten) {
  for (const std::uint32_t version : {2u, 3u}) {
    const Built built = sample_gguf(version).build();
    const auto model = open(built.bytes);
    EXPECT_EQ(model->kind(), Kind::gguf);
    EXPECT_EQ(model->gguf_version(), version);
    EXPECT_EQ(model->path(), folder_.path("model.gguf"));
    EXPECT_EQ(model->size_bytes(), built.bytes.size());
    EXPECT_EQ(model->json_text(), "");
    EXPECT_EQ(model->string("general.architecture"), "llama");
    const std::pair<const char*, std::int64_t> integers[] = {
        {"t.u8", 200}, {"t.i8", -100}, {"t.u16", 60000}, {"t.i16", -30000}, {"t.u32", 4000000000}, {"t.i32", -2000000000}, {"t.i64", -5}};
    for (const auto& [key, value] : integers) EXPECT_EQ(model->integer(key), value) << key;
    EXPECT_EQ(model->number("t.f32"), 1.5);
    EXPECT_EQ(model->number("t.f64"), 2.25);
    EXPECT_EQ(model->number("t.u64"), 0x1p63);
    EXPECT_EQ(model->boolean("t.bool"), true);
    const std::pair<const char*, std::vector<std::int64_t>> lists[] = {{"a.u8", {1, 255}},  {"a.i8", {-1, 7}},       {"a.u16", {65535}},
                                                                       {"a.i16", {-32768}}, {"a.u32", {4294967295}}, {"a.i32", {3, -4}},
                                                                       {"a.u64", {8}},      {"a.i64", {-9}},         {"t.u8", {200}}};
    for (const auto& [key, value] : lists) EXPECT_EQ(model->integer_list(key), value) << key;
    EXPECT_EQ(model->number_list("a.f32"), (std::vector<double>{0.5, -0.5}));
    EXPECT_EQ(model->number_list("a.f64"), (std::vector<double>{0.125}));
    EXPECT_EQ(std::get<std::vector<bool>>(*model->value("a.bool")), (std::vector<bool>{true, false, true}));
    EXPECT_EQ(model->strings("tokenizer.ggml.tokens"), (std::vector<std::string>{"<s>", "", "\xC4\xA0the", std::string("a\0b", 3)}));
    EXPECT_FALSE(model->has("t.nothing"));
    EXPECT_EQ(model->integer("t.nothing"), std::nullopt);

    ASSERT_EQ(model->tensors().size(), 6u);
    const TensorInfo& q4 = *model->find("q4");
    EXPECT_EQ(q4.format, Format::Q4_0);
    EXPECT_EQ(q4.format_name, "Q4_0");
    EXPECT_EQ(q4.shape, (std::vector<std::int64_t>{3, 32}));  // the number of rows comes first
    EXPECT_EQ(read_all(*model, q4), pattern(3 * 18, 2));
    std::vector<std::uint8_t> row(18);
    model->read(q4, 18, 18, row.data());  // the bytes of row 1
    EXPECT_EQ(std::string(row.begin(), row.end()), pattern(3 * 18, 2).substr(18, 18));
    EXPECT_EQ(model->find("q6_k")->shape, (std::vector<std::int64_t>{2, 1, 256}));
    EXPECT_EQ(model->read_floats(*model->find("norm")), (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}));
    EXPECT_EQ(model->read_floats(q4).size(), 96u);
    EXPECT_EQ(model->find("nothing"), nullptr);
  }
}

TEST_F(Gguf, ForeignFormatsAreNamedWhenTheyAreUsed) {
  const auto model = open(sample_gguf(3));
  const TensorInfo& foreign = *model->find("foreign");
  EXPECT_EQ(foreign.format, std::nullopt);
  EXPECT_EQ(foreign.bytes, 292u);
  EXPECT_EQ(read_all(*model, foreign), pattern(292, 4));
  const Error error = expect_error(ErrorKind::unsupported_model, "Q8_K", [&] { model->read_floats(foreign); });
  EXPECT_NE(std::string(error.what()).find("foreign"), std::string::npos);
  EXPECT_NE(std::string(error.what()).find("Q4_K"), std::string::npos);  // the message lists the supported formats
}

TEST_F(Gguf, ReadsInsideOfATensorOnly) {
  const auto model = open(sample_gguf(3));
  TensorInfo tensor = *model->find("norm");
  std::uint8_t out[64];
  expect_error(ErrorKind::invalid_argument, "32 bytes", [&] { model->read(tensor, 0, 33, out); });
  expect_error(ErrorKind::invalid_argument, "32 bytes", [&] { model->read(tensor, 33, 0, out); });
  expect_error(ErrorKind::invalid_argument, "32 bytes", [&] { model->read(tensor, 8, std::numeric_limits<std::uint64_t>::max(), out); });
  tensor.file = 7;
  expect_error(ErrorKind::invalid_argument, "another model", [&] { model->read(tensor, 0, 1, out); });
}

TEST_F(Gguf, GettersNameKeyAndTypes) {
  const auto model = open(sample_gguf(3).key("t.nan", 6, std::numeric_limits<float>::quiet_NaN()).text("t.bad", "\xFF"));
  const Error error = expect_error(ErrorKind::model_format, "t.f32: is a number; an integer is needed", [&] { model->integer("t.f32"); });
  EXPECT_EQ(error.field(), "t.f32");
  EXPECT_EQ(error.file(), model->path());
  expect_error(ErrorKind::model_format, "is an integer; a string", [&] { model->string("t.u8"); });
  expect_error(ErrorKind::model_format, "is an integer; true or false", [&] { model->boolean("t.u8"); });
  expect_error(ErrorKind::model_format, "is a list of 4 strings; a number", [&] { model->number("tokenizer.ggml.tokens"); });
  expect_error(ErrorKind::model_format, "below 2^63", [&] { model->integer("t.u64"); });
  expect_error(ErrorKind::model_format, "nan", [&] { model->number("t.nan"); });
  expect_error(ErrorKind::model_format, "nan", [&] { model->number_list("t.nan"); });
  expect_error(ErrorKind::model_format, "UTF-8", [&] { model->string("t.bad"); });
  expect_error(ErrorKind::model_format, "a list of 2 numbers; an integer", [&] { model->integer_list("a.f32"); });
  expect_error(ErrorKind::model_format, "a list of 3 booleans; a number", [&] { model->number_list("a.bool"); });
}

TEST_F(Gguf, NonFiniteWeightsAreNamed) {
  const auto model = open(GgufBuilder().tensor("norm.weight", {2}, 0, floats({1, std::numeric_limits<float>::infinity()})));
  expect_error(ErrorKind::numeric, "norm.weight: value 1 is inf", [&] { model->read_floats(*model->find("norm.weight")); });
}

TEST_F(Gguf, NotAModel) {
  const std::pair<std::string, const char*> files[] = {
      {"", "it is empty"},
      {"GG", "begins with 'GG'"},
      {std::string("PK\x03\x04", 4), "pickle"},
      {"\x80\x02}q", "pickle"},
      {"version https://git-lfs.github", "git lfs pull"},
      {"<!DOCTYPE html>", "web page"},
      {"{\"a\": 1}", "JSON"},
      {"tjgg....", "before GGUF"},
      {"hello, world", "a GGUF file begins with 'GGUF'"},
  };
  for (const auto& [bytes, text] : files) refused(bytes, text);
}

TEST_F(Gguf, Versions) {
  const auto with_version = [](std::uint32_t version) { return one_tensor(GgufBuilder(version)).build().bytes; };
  refused(with_version(1), "version 1", ErrorKind::unsupported_model);
  refused(with_version(0x03000000), "big-endian", ErrorKind::unsupported_model);
  refused(with_version(4), "is 4; versions 2 and 3");
  refused(with_version(0), "is 0; versions 2 and 3");
  refused(GgufBuilder().text("general.architecture", "llama").build().bytes, "no tensors", ErrorKind::unsupported_model);
}

TEST_F(Gguf, EveryTruncationSaysSo) {
  const Built built = one_tensor(GgufBuilder().text("general.architecture", "llama")).build();
  for (std::size_t size = 4; size < built.header_bytes; ++size) {
    const Error error = refused(built.bytes.substr(0, size), "truncated");
    EXPECT_FALSE(error.field().empty());
    EXPECT_TRUE(error.offset().has_value() && *error.offset() <= size);
  }
  refused(built.bytes.substr(0, built.bytes.size() - 1), "tensor w: its 32 bytes");
  EXPECT_EQ(open(built.bytes + std::string(31, 'x'))->tensors().size(), 1u);  // up to 31 bytes of padding may follow the last tensor
  refused(built.bytes + std::string(32, 'x'), "the last tensor ends here, but 32 bytes follow");
}

TEST_F(Gguf, KeysAndNames) {
  refused(one_tensor(GgufBuilder().text("", "x")), "empty key");
  refused(one_tensor(GgufBuilder().text("a\xFF", "x")), "not UTF-8");
  const Error twice = refused(one_tensor(GgufBuilder().text("a", "x").text("a", "y")), "comes twice");
  EXPECT_EQ(twice.field(), "a");
  refused(one_tensor(one_tensor()), "tensor w: comes twice");
  refused(GgufBuilder().tensor("", {1}, 0, floats({1})), "empty name");
  refused(GgufBuilder().tensor(std::string(65, 'x'), {1}, 0, floats({1})), "65 bytes");
  EXPECT_EQ(open(GgufBuilder().tensor(std::string(64, 'x'), {1}, 0, floats({1})))->tensors()[0].name, std::string(64, 'x'));
}

TEST_F(Gguf, Alignment) {
  for (const std::uint32_t alignment : {1u, 8u, 64u, 65536u}) {
    const auto model = open(GgufBuilder().align(alignment).tensor("a", {3}, 1, pattern(6, 1)).tensor("b", {1}, 0, floats({7})));
    EXPECT_EQ(model->find("b")->offset % alignment, 0u);
    EXPECT_EQ(model->read_floats(*model->find("b")), std::vector<float>{7});
  }
  for (const std::uint32_t alignment : {0u, 3u, 131072u, 0x80000000u, 0xFFFFFFFFu}) {
    refused(one_tensor(GgufBuilder().key("general.alignment", 4, alignment)), "power of two");
  }
  refused(one_tensor(GgufBuilder().text("general.alignment", "32")), "is a string");
  Built shifted = GgufBuilder().tensor("a", {1}, 0, floats({1})).tensor("b", {1}, 0, floats({2})).build();
  for (const Field& field : shifted.fields) {
    if (field.name == "tensor b offset") shifted.bytes[field.offset] = 36;
  }
  refused(shifted.bytes, "tensor b: its offset 36 is not a multiple of the alignment 32");
}

TEST_F(Gguf, Shapes) {
  const auto dims = [](const std::vector<std::uint64_t>& extents, std::uint32_t format = 0) {
    return GgufBuilder().tensor("w", extents, format, floats({1}));
  };
  constexpr std::uint64_t k32 = std::uint64_t{1} << 32, k63 = std::uint64_t{1} << 63;
  refused(dims({}), "0 dimensions");
  refused(dims({1, 1, 1, 1, 1}), "5 dimensions");
  refused(dims({0}), "dimension 0 is 0");
  refused(dims({1, 0}), "dimension 1 is 0");
  refused(dims({k63}), "above 2^63 - 1");
  refused(dims({k32, k32}), "more than 2^63 - 1 values");      // in 64 bits the product wraps around to 0
  refused(dims({(1ull << 42) + 1, 1ull << 22}), "more than");  // the product wraps around to a small number
  refused(dims({k63 - 1}), "more than 2^64 - 1 bytes");        // the number of values fits, the number of bytes does not
  refused(dims({k63 / 8}), "end of the file");                 // the number of bytes fits in 64 bits, but the file is shorter
  refused(dims({33}, 2), "rows of 33 values; Q4_0 needs a multiple of 32");
  refused(dims({16, 2}, 2), "rows of 16 values");  // 32 values in all, but a Q4_0 block of 32 must lie in one row
}

TEST_F(Gguf, Formats) {
  for (const std::uint32_t id : {43u, 1000u, 0xFFFFFFFFu}) {
    const Error error = refused(GgufBuilder().tensor("w", {256}, id, pattern(64, 1)), "unknown format number");
    EXPECT_EQ(error.field(), "tensor w");
  }
}

TEST_F(Gguf, ValueTypes) {
  refused(one_tensor(GgufBuilder().key("k", 13, std::uint8_t{0})), "unknown value type 13");
  refused(one_tensor(GgufBuilder().key("k", 7, std::uint8_t{2})), "boolean of value 2");
  refused(one_tensor(GgufBuilder().array("k", 9, std::vector<std::uint8_t>{1})), "array of arrays");
  refused(one_tensor(GgufBuilder().array("k", 99, std::vector<std::uint8_t>{1})), "unknown value type 99");
  refused(one_tensor(GgufBuilder().array("k", 10, std::vector<std::uint64_t>{1, ~0ull})), "below 2^63");
  EXPECT_EQ(open(one_tensor(GgufBuilder().texts("k", {})))->strings("k"), std::vector<std::string>{});
  EXPECT_EQ(open(one_tensor(GgufBuilder().texts("k", {})))->integer_list("k"), std::vector<std::int64_t>{});
}

TEST_F(Gguf, TensorsMayLeaveHolesButNotShareBytes) {
  Built built =
      GgufBuilder().tensor("a", {16}, 0, pattern(64, 1)).tensor("b", {8}, 0, pattern(32, 2)).tensor("c", {8}, 0, pattern(32, 3)).build();
  const auto with_offset_of_b = [&](char offset) {
    std::string bytes = built.bytes;
    for (const Field& field : built.fields) {
      if (field.name == "tensor b offset") bytes[field.offset] = offset;
    }
    return bytes;
  };
  refused(with_offset_of_b(32), "shares bytes with tensor 'a'");
  refused(with_offset_of_b(0), "shares bytes with tensor");
  refused(with_offset_of_b(96), "shares bytes with tensor");
  built.bytes += std::string(32, 'x');
  // Tensor b now lies after c, and the bytes where it was are a hole.
  const auto moved = open(with_offset_of_b(static_cast<char>(128)));
  EXPECT_EQ(read_all(*moved, *moved->find("b")), std::string(32, 'x'));
}

TEST_F(Gguf, TensorsInAnyOrderOfTheirBytes) {
  Built built = GgufBuilder().tensor("a", {8}, 0, pattern(32, 1)).tensor("b", {8}, 0, pattern(32, 2)).build();
  for (const Field& field : built.fields) {
    if (field.name == "tensor a offset") built.bytes[field.offset] = 32;
    if (field.name == "tensor b offset") built.bytes[field.offset] = 0;
  }
  const auto model = open(built.bytes);
  EXPECT_EQ(read_all(*model, *model->find("a")), pattern(32, 2));
  EXPECT_EQ(model->tensors()[0].name, "a");  // tensors() keeps the order of the header's list
}

// ---------------------------------------------------------------- split files

class SplitGguf : public ::testing::Test {
 protected:
  static GgufBuilder part(int number, int count, int tensors) {
    GgufBuilder builder;
    if (number == 0) builder.text("general.architecture", "llama");
    builder.key("split.no", 2, static_cast<std::uint16_t>(number)).key("split.count", 2, static_cast<std::uint16_t>(count));
    builder.key("split.tensors.count", 5, std::int32_t{tensors});
    return builder;
  }
  static std::string name(int number, int count) {
    const std::string digits[] = {"00001", "00002", "00003", "00004"};
    return "model-" + digits[number] + "-of-" + digits[count - 1] + ".gguf";
  }
  std::string write(int number, int count, const GgufBuilder& builder) { return folder_.write(name(number, count), builder.build().bytes); }
  void write_three() {
    write(0, 3, part(0, 3, 3));  // the first part may hold metadata and no tensors
    write(1, 3, part(1, 3, 3).tensor("a", {8}, 0, pattern(32, 1)).tensor("b", {4}, 0, pattern(16, 2)));
    write(2, 3, part(2, 3, 3).tensor("c", {8}, 0, pattern(32, 3)));
  }
  TempFolder folder_;
};

TEST_F(SplitGguf, AnyPartOpensAll) {
  write_three();
  for (int number = 0; number < 3; ++number) {
    const auto model = ModelFile::open(folder_.path(name(number, 3)));
    ASSERT_EQ(model->tensors().size(), 3u);
    EXPECT_EQ(read_all(*model, *model->find("a")), pattern(32, 1));
    EXPECT_EQ(read_all(*model, *model->find("b")), pattern(16, 2));
    EXPECT_EQ(read_all(*model, *model->find("c")), pattern(32, 3));
    EXPECT_EQ(model->string("general.architecture"), "llama");
    EXPECT_EQ(model->integer("split.no"), 0);
  }
}

TEST_F(SplitGguf, APartIsNotTakenForTheWhole) {
  const std::string path = write(0, 3, GgufBuilder().key("split.tensors.count", 5, std::int32_t{3}).tensor("a", {8}, 0, pattern(32, 1)));
  expect_error(ErrorKind::model_format, "is 3, but this file holds 1 tensors", [&] { ModelFile::open(path); });
}

TEST_F(SplitGguf, PartsThatDoNotBelongTogether) {
  const std::string first = folder_.path(name(0, 3));
  const auto refused = [&](ErrorKind kind, const std::string& text) {
    const Error error = expect_error(kind, text, [&] { ModelFile::open(first); });
    write_three();
    return error;
  };
  write_three();
  std::filesystem::remove(folder_.path(name(2, 3)));
  refused(ErrorKind::io, "model-00003-of-00003.gguf: cannot be opened: No such file");
  write(1, 3, part(2, 3, 3).tensor("a", {8}, 0, pattern(32, 1)));
  refused(ErrorKind::model_format, "split.no: is 2; 1 is needed for part 2 of 3");
  write(1, 3, part(1, 4, 3).tensor("a", {8}, 0, pattern(32, 1)));
  refused(ErrorKind::model_format, "split.count: is 4; 3 is needed");
  write(2, 3, part(2, 3, 9).tensor("c", {8}, 0, pattern(32, 1)));
  refused(ErrorKind::model_format, "split.tensors.count: is 9; 3 is needed");
  write(2, 3, part(2, 3, 3));
  refused(ErrorKind::model_format, "the 3 parts hold 2 tensors");
  write(2, 3, part(2, 3, 3).tensor("a", {8}, 0, pattern(32, 1)));
  refused(ErrorKind::model_format, "tensor a: comes twice");
  write(2, 3, GgufBuilder().tensor("c", {8}, 0, pattern(32, 1)));
  refused(ErrorKind::model_format, "split.no: is missing");
  write(2, 3, part(2, 3, 3).text("general.architecture", "gemma2").tensor("c", {8}, 0, pattern(32, 1)));
  refused(ErrorKind::model_format, "model-00003-of-00003.gguf: general.architecture: differs from the value in the first part");
  write(2, 3, part(2, 3, 3).text("general.architecture", "llama").text("general.name", "x").tensor("c", {8}, 0, pattern(32, 1)));
  EXPECT_EQ(ModelFile::open(first)->tensors().size(), 3u);  // a part may repeat a key of the first part, and may have other keys
  folder_.write(name(1, 3), "hello");
  refused(ErrorKind::model_format, "model-00002-of-00003.gguf: magic");
  ASSERT_EQ(ModelFile::open(first)->tensors().size(), 3u);

  const std::string renamed = folder_.write("renamed.gguf", part(0, 3, 3).build().bytes);
  expect_error(ErrorKind::model_format, "found by names as in model-00001-of-00003.gguf", [&] { ModelFile::open(renamed); });
  const std::string many = folder_.write("m-00001-of-60000.gguf", part(0, 60000, 3).build().bytes);
  expect_error(ErrorKind::model_format, "At most 4096 parts", [&] { ModelFile::open(many); });
}

}  // namespace
}  // namespace pumice::files::testing
