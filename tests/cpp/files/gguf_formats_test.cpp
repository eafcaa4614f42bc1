// Every number of a GGUF format must be read, or refused by its name. Formats that are read as another one must have the weights that
// gguf-py unpacks (tests/goldens/gguf_formats.json).
#include "files/gguf_formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/finite.h"
#include "core/weights.h"
#include "files/build_files.h"
#include "files/expect_error.h"
#include "files/model_file.h"

namespace pumice::files::testing {
namespace {

struct GgufFormatsGolden {
  std::string name, packed;
  std::vector<float> floats;
};

std::vector<GgufFormatsGolden> gguf_formats_goldens() {
  std::ifstream file(PUMICE_TESTS_DIR "/goldens/gguf_formats.json");
  const auto bytes = [](const std::string& hex) {
    std::string out;
    for (std::size_t i = 0; i < hex.size(); i += 2) out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    return out;
  };
  std::vector<GgufFormatsGolden> goldens;
  const nlohmann::json all = nlohmann::json::parse(file);
  for (const auto& golden : all.at("cases")) {
    const std::string floats = bytes(golden.at("floats"));
    goldens.push_back({golden.at("format"), bytes(golden.at("packed")), std::vector<float>(floats.size() / 4)});
    std::memcpy(goldens.back().floats.data(), floats.data(), floats.size());
  }
  return goldens;
}

std::uint32_t gguf_id_of(std::string name) {
  name = name.substr(0, name.find(','));
  for (std::uint32_t id = 0; id < 64; ++id) {
    const GgufFormat* format = gguf_format(id);
    if (format && format->name == name) return id;
  }
  return kNoGgufId;
}

class GgufFormats : public ::testing::Test {
 protected:
  std::shared_ptr<const ModelFile> open(const GgufBuilder& builder) {
    return ModelFile::open(folder_.write("model.gguf", builder.build().bytes));
  }
  TempFolder folder_;
};

// The names of all formats, by id (ggml.h, enum ggml_type). A star stands before those that are read.
constexpr const char* kNames[] = {
    "*F32",     "*F16",    "*Q4_0",  "*Q4_1",      "Q4_2",       "Q4_3",       "*Q5_0",   "*Q5_1",    "*Q8_0",  "Q8_1",     "*Q2_K",
    "*Q3_K",    "*Q4_K",   "*Q5_K",  "*Q6_K",      "Q8_K",       "*IQ2_XXS",   "*IQ2_XS", "*IQ3_XXS", "*IQ1_S", "*IQ4_NL",  "*IQ3_S",
    "*IQ2_S",   "*IQ4_XS", "I8",     "I16",        "I32",        "I64",        "F64",     "*IQ1_M",   "*BF16",  "Q4_0_4_4", "Q4_0_4_8",
    "Q4_0_8_8", "*TQ1_0",  "*TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "*MXFP4",  "*NVFP4",   "*Q1_0",  "*Q2_0"};

TEST_F(GgufFormats, EveryIdIsReadOrRefusedByName) {
  for (std::uint32_t id = 0; id < std::size(kNames) + 5; ++id) {
    SCOPED_TRACE(id);
    // 256 weights of zero bytes are zeros in every format. Other formats' numbers of bytes are too few or too many.
    const auto format = format_from_gguf(id);
    const GgufFormat* other = gguf_format(id);
    if (id >= std::size(kNames)) {
      EXPECT_FALSE(format || other);
      expect_error(ErrorKind::model_format, "unknown format number", [&] { open(GgufBuilder().tensor("w", {256}, id, pattern(64, 1))); });
      continue;
    }
    ASSERT_NE(format.has_value(), other != nullptr);
    const std::int64_t bytes = format ? row_bytes(*format, 256) : 256 / other->block * other->block_bytes;
    const std::string name = kNames[id];
    const auto model = open(GgufBuilder().tensor("w", {256}, id, std::string(static_cast<std::size_t>(bytes), '\0')));
    const TensorInfo& tensor = *model->find("w");
    if (name[0] == '*') {
      EXPECT_EQ(tensor.format_name, name.substr(1));
      EXPECT_EQ(model->read_floats(tensor), std::vector<float>(256)) << "zeros";
    } else {
      EXPECT_EQ(tensor.format_name, name);
      const Error error = expect_error(ErrorKind::unsupported_model, name, [&] { model->read_floats(tensor); });
      EXPECT_EQ(error.field(), "tensor w");
    }
  }
}

TEST_F(GgufFormats, WeightsAreThoseOfGgufPy) {
  std::set<std::string> seen;
  for (const GgufFormatsGolden& golden : gguf_formats_goldens()) {
    SCOPED_TRACE(golden.name);
    seen.insert(golden.name);
    const std::uint32_t id = gguf_id_of(golden.name);
    const GgufFormat& format = golden.name.ends_with("128") ? wide_q2_0() : *gguf_format(id);
    const std::size_t blocks = golden.packed.size() / static_cast<std::size_t>(format.block_bytes);
    const std::size_t cols = golden.floats.size() / 2;
    ASSERT_EQ(blocks * static_cast<std::size_t>(format.block), golden.floats.size());
    std::string many;  // a large tensor too, so that the space of wide Q2_0 is not that of its padding
    for (int i = 0; i < 64; ++i) many += golden.packed;
    const auto model = open(GgufBuilder().tensor("two", {cols, 2}, id, golden.packed).tensor("many", {cols, 2, 64}, id, many));
    const TensorInfo& two = *model->find("two");
    EXPECT_EQ(two.format, format.as);
    EXPECT_EQ(two.bytes, static_cast<std::uint64_t>(2 * row_bytes(*format.as, static_cast<std::int64_t>(cols))));
    ASSERT_TRUE(two.made);
    EXPECT_EQ(two.made->packing, format.name);
    EXPECT_EQ(two.made->not_exact, "");
    const std::vector<float> all = model->read_floats(two);
    ASSERT_EQ(all.size(), golden.floats.size());
    for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], golden.floats[i]) << "weight " << i;
    const std::vector<float> repeated = model->read_floats(*model->find("many"));
    for (std::size_t i = 0; i < repeated.size(); ++i) ASSERT_EQ(repeated[i], golden.floats[i % all.size()]) << "weight " << i;
    // Row 1 alone, and the bytes from the middle of row 0 to the middle of row 1.
    std::vector<std::uint8_t> bytes(two.bytes), part(two.bytes / 2);
    model->read(two, 0, two.bytes, bytes.data());
    for (const std::uint64_t from : {two.bytes / 2, two.bytes / 4 + 1}) {
      model->read(two, from, part.size(), part.data());
      EXPECT_EQ(part, std::vector<std::uint8_t>(bytes.begin() + static_cast<std::ptrdiff_t>(from),
                                                bytes.begin() + static_cast<std::ptrdiff_t>(from + part.size())));
    }
  }
  EXPECT_EQ(seen.size(), 13u) << "every format that is read as another one has a golden, Q2_0 two";
}

TEST_F(GgufFormats, TruncatedQ2_0IsNotTakenForWideGroups) {
  const std::string whole =
      GgufBuilder().tensor("a", {1024, 8}, 42, pattern(2304, 1)).tensor("b", {1024, 8}, 42, pattern(2304, 2)).build().bytes;
  const auto shortened = [&](std::size_t by) { return folder_.write("short.gguf", whole.substr(0, whole.size() - by)); };
  for (const std::size_t by : {1, 32, 2304 - 2176, 2304}) {
    SCOPED_TRACE(by);
    expect_error(ErrorKind::model_format, "truncated", [&] { ModelFile::open(shortened(by)); });
  }
  // Rows of 64 weights are never wide, whatever the space.
  expect_error(ErrorKind::model_format, "bytes", [&] { open(GgufBuilder().tensor("a", {64, 128}, 42, pattern(2176, 1))); });
}

TEST_F(GgufFormats, Nvfp4HasFactors) {
  std::string block = pattern(36, 7);
  for (int i = 0; i < 4; ++i) block[static_cast<std::size_t>(i)] = static_cast<char>(40 + i);
  const auto plain = [&] {
    const auto model = open(GgufBuilder().tensor("w", {64}, 40, block));
    return model->read_floats(*model->find("w"));
  }();
  std::string rows;
  for (int i = 0; i < 6; ++i) rows += block;
  const auto with = [&](const std::string& name, const std::vector<std::uint64_t>& dims, std::uint32_t format, const std::string& data) {
    return GgufBuilder()
        .tensor("e.weight", {64, 2, 3}, 40, rows)
        .tensor(name, dims, format, data)
        .tensor("e.input_scale", {1}, 0, floats({2}));
  };
  const std::map<std::vector<float>, std::vector<float>> cases = {{{0.5f}, {0.5f, 0.5f, 0.5f}}, {{0.3f, -2, 7}, {0.3f, -2, 7}}};
  for (const auto& [factors, of_expert] : cases) {
    const auto model = open(with("e.scale", {factors.size()}, 0, floats(factors)));
    ASSERT_EQ(model->tensors().size(), 1u) << "factors and scales of activations are no tensors of the model";
    const std::vector<float> values = model->read_floats(*model->find("e.weight"));
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_FLOAT_EQ(values[i], plain[i % 64] * of_expert[i / 128]) << "weight " << i;
  }
  const auto without = open(with("other.scale", {1}, 0, floats({2})));
  EXPECT_EQ(without->tensors().size(), 2u);
  EXPECT_EQ(without->read_floats(*without->find("e.weight"))[7], plain[7]);

  const auto refused = [&](const std::vector<std::uint64_t>& dims, std::uint32_t format, const std::string& data) {
    EXPECT_EQ(expect_error(ErrorKind::model_format, "e.weight", [&] { open(with("e.scale", dims, format, data)); }).field(),
              "tensor e.scale");
  };
  refused({2}, 0, floats({1, 2}));
  refused({4}, 0, floats({1, 2, 3, 4}));
  refused({2}, 1, pattern(4, 1));
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const auto model = open(with("e.scale", {1}, 0, floats({bad})));
    expect_error(ErrorKind::numeric, "e.weight", [&] { model->read_floats(*model->find("e.weight")); });
  }
}

TEST_F(GgufFormats, NanScalesAreNamed) {
  // A block whose scale is a NaN, of each format that has such scales.
  const std::map<std::uint32_t, std::pair<int, std::string>> nans = {{16, {0, "\xff\x7f"}},  {19, {0, "\xff\x7f"}},  {21, {0, "\xff\x7f"}},
                                                                     {34, {52, "\xff\x7f"}}, {35, {64, "\xff\x7f"}}, {40, {2, "\x7f"}},
                                                                     {41, {0, "\xff\x7f"}},  {42, {0, "\xff\x7f"}}};
  for (const auto& [id, nan] : nans) {
    SCOPED_TRACE(id);
    const GgufFormat& format = *gguf_format(id);
    std::string data(static_cast<std::size_t>(256 / format.block * format.block_bytes), '\1');
    data.replace(static_cast<std::size_t>(nan.first), nan.second.size(), nan.second);
    const auto model = open(GgufBuilder().tensor("w", {256}, id, data));
    expect_error(ErrorKind::numeric, "tensor w", [&] { model->read_floats(*model->find("w")); });
    std::vector<std::uint8_t> row(model->find("w")->bytes);
    model->read(*model->find("w"), 0, row.size(), row.data());
    const Matrix matrix{.name = "w", .format = *format.as, .rows = 1, .cols = 256, .read = {}};
    expect_error(ErrorKind::numeric, "'w'", [&] { check_finite(matrix, 0, 1, row.data()); });
  }
}

}  // namespace
}  // namespace pumice::files::testing
