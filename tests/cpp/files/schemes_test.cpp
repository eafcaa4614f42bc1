// Folders that other libraries packed: rows must be those that the library itself expands (tests/goldens/packed), and a folder that lacks
// a tensor, or has a wrong one, must be refused by the name of that tensor.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "files/build_files.h"
#include "files/contents.h"
#include "files/expect_error.h"
#include "files/made_tensor.h"
#include "files/model_file.h"

namespace pumice::files::testing {
namespace {

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream all;
  all << file.rdbuf();
  return std::move(all).str();
}

struct Golden {
  std::string name;
  nlohmann::json config;
  std::vector<SafeTensor> tensors;
  SafeTensor exact;  // the weights, or every third row of them

  SafeTensor& tensor(const std::string& suffix) { return *std::ranges::find(tensors, "m." + suffix, &SafeTensor::name); }
  nlohmann::json& settings() { return config[config.contains("quantization") ? "quantization" : "quantization_config"]; }
};

std::vector<Golden> goldens() {
  std::vector<Golden> all;
  for (const auto& entry : std::filesystem::directory_iterator(PUMICE_TESTS_DIR "/goldens/packed")) {
    if (entry.path().extension() != ".safetensors") continue;
    Golden golden{.name = entry.path().stem().string(), .config = {}, .tensors = {}, .exact = {}};
    golden.config = nlohmann::json::parse(bytes_of(std::filesystem::path(entry.path()).replace_extension(".config.json")));
    const std::string bytes = bytes_of(entry.path());
    std::uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    const auto tensors = nlohmann::json::parse(bytes.substr(8, header));
    for (const auto& [name, tensor] : tensors.items()) {
      const std::size_t begin = tensor.at("data_offsets")[0], end = tensor.at("data_offsets")[1];
      SafeTensor read{name, tensor.at("dtype"), tensor.at("shape"), bytes.substr(8 + header + begin, end - begin)};
      if (name == "exact") {
        golden.exact = std::move(read);
      } else {
        golden.tensors.push_back(std::move(read));
      }
    }
    all.push_back(std::move(golden));
  }
  std::ranges::sort(all, {}, &Golden::name);
  return all;
}

Golden golden_of(const std::string& name) {
  const std::vector<Golden> all = goldens();
  return *std::ranges::find(all, name, &Golden::name);
}

// The tensor that is made of a golden's: its only one.
const TensorInfo& made_in(const ModelFile& model) { return model.tensors().front(); }

class Schemes : public ::testing::Test {
 protected:
  std::shared_ptr<const ModelFile> open(const Golden& golden) {
    folder_.write("config.json", golden.config.dump());
    folder_.write("model.safetensors", safetensors(golden.tensors).bytes);
    return ModelFile::open(folder_.path());
  }
  std::vector<float> weights(const Golden& golden) {
    const auto model = open(golden);
    return model->read_floats(made_in(*model));
  }
  Error refused(const Golden& golden, const std::string& text, ErrorKind kind = ErrorKind::model_format) {
    SCOPED_TRACE(golden.name);
    return expect_error(kind, text, [&] { weights(golden); });
  }
  TempFolder folder_;
};

// How each golden is read, in the order of their names.
const std::map<std::string, std::string> kFormatOf = {
    {"awq_128", "A4"},
    {"awq_32", "Q5_0"},
    {"awq_64", "Q5_0"},
    {"bitsandbytes_fp4", "F32"},
    {"bitsandbytes_int8", "F32"},
    {"bitsandbytes_nf4", "BF16"},
    {"bitsandbytes_nf4_f16", "F16"},
    {"compressed_2", "Q4_0"},
    {"compressed_2_sym", "Q4_0"},
    {"compressed_3", "Q4_0"},
    {"compressed_3_sym", "Q4_0"},
    {"compressed_3_unused_bits", "Q4_0"},
    {"compressed_4", "Q5_0"},
    {"compressed_4_act_order", "F32"},
    {"compressed_4_bf16", "Q4_0"},
    {"compressed_4_rows", "Q5_0"},
    {"compressed_4_sym", "Q4_0"},
    {"compressed_5", "F32"},
    {"compressed_5_sym", "Q5_0"},
    {"compressed_8", "F32"},
    {"compressed_8_sym", "Q8_0"},
    {"compressed_bytes", "Q8_0"},
    {"compressed_bytes_f32", "F32"},
    {"compressed_bytes_zeros", "F32"},
    {"compressed_float_block", "F32"},
    {"compressed_float_channel", "F32"},
    {"compressed_float_tensor", "F32"},
    {"fp8_blocks", "F32"},
    {"fp8_fbgemm", "F32"},
    {"fp8_fbgemm_stack", "F8_E4M3"},
    {"fp8_fbgemm_wide", "F8_E4M3"},
    {"fp8_modelopt_rows", "F32"},
    {"fp8_modelopt_stack", "F8_E4M3"},
    {"fp8_modelopt_wide", "F8_E4M3"},
    {"fp8_one", "F32"},
    {"fp8_powers", "BF16"},
    {"fp8_powers_f32", "BF16"},
    {"fp8_rows", "F32"},
    {"fp8_wide_blocks", "F8_E4M3"},
    {"fp8_wide_powers", "F8_E4M3"},
    {"fp8_wide_rows", "F8_E4M3"},
    {"gptq_2", "Q4_0"},
    {"gptq_2_sym", "Q4_0"},
    {"gptq_3", "Q4_0"},
    {"gptq_3_sym", "Q4_0"},
    {"gptq_3_v2_sym", "Q4_0"},
    {"gptq_4", "Q5_0"},
    {"gptq_4_act_order", "F32"},
    {"gptq_4_one_group", "Q5_0"},
    {"gptq_4_partial", "Q4_0"},
    {"gptq_4_sym", "Q4_0"},
    {"gptq_4_v2", "Q5_0"},
    {"gptq_8", "F32"},
    {"gptq_8_sym", "Q8_0"},
    {"mlx_2_bf16", "Q4_1"},
    {"mlx_2_f16", "Q4_1"},
    {"mlx_3_bf16", "Q4_1"},
    {"mlx_3_f16", "Q4_1"},
    {"mlx_4_bf16", "Q4_1"},
    {"mlx_4_f16", "Q4_1"},
    {"mlx_5_bf16", "Q5_1"},
    {"mlx_5_f16", "Q5_1"},
    {"mlx_6_bf16", "F32"},
    {"mlx_6_f16", "F32"},
    {"mlx_8_bf16", "F32"},
    {"mlx_8_f16", "F32"},
    {"mxfp4_compressed", "MXFP4"},
    {"nvfp4_compressed", "NVFP4_E"},
    {"nvfp4_compressed_48", "F32"},
    {"nvfp4_modelopt", "NVFP4_E"},
    {"nvfp4_modelopt_stack", "NVFP4_E"},
};

bool of_experts(const Golden& golden) { return golden.name.ends_with("_stack"); }

bool of_fp4(const Golden& golden) { return golden.name.starts_with("nvfp4") || golden.name.starts_with("mxfp4"); }

// Whether a matrix is packed as floats with factors, and not as integers in groups of columns.
bool of_floats(const Golden& golden) {
  return golden.name.starts_with("fp8") || golden.name.starts_with("compressed_float") || golden.name.starts_with("bitsandbytes") ||
         of_fp4(golden);
}

TEST_F(Schemes, RowsAreThoseOfTheLibrary) {
  const std::vector<Golden> all = goldens();
  ASSERT_EQ(all.size(), kFormatOf.size());
  for (const Golden& golden : all) {
    SCOPED_TRACE(golden.name);
    const auto model = open(golden);
    ASSERT_EQ(model->tensors().size(), 1u);
    const TensorInfo& tensor = made_in(*model);
    EXPECT_EQ(tensor.name, of_experts(golden) ? "m.experts.up.weight" : "m.weight");
    ASSERT_TRUE(tensor.made);
    EXPECT_EQ(tensor.format_name, kFormatOf.at(golden.name));
    // Weights that are defined as float32 numbers.
    const bool floats = golden.name == "bitsandbytes_fp4" || golden.name.starts_with("fp8") || golden.name.starts_with("compressed_float");
    const bool holds = tensor.format_name != "F32" || floats;
    EXPECT_EQ(tensor.made->not_exact.empty(), holds) << tensor.made->not_exact;
    ASSERT_EQ(tensor.shape.size(), of_experts(golden) ? 3u : 2u);
    ASSERT_EQ(tensor.shape.back(), golden.exact.shape[1]);
    const std::int64_t rows = of_experts(golden) ? tensor.shape[0] * tensor.shape[1] : tensor.shape[0];
    const std::size_t cols = static_cast<std::size_t>(tensor.shape.back()), step = golden.exact.shape[0] == rows ? 1 : 3;
    const std::vector<float> weights = model->read_floats(tensor);
    std::vector<float> exact(golden.exact.data.size() / sizeof(float));
    std::memcpy(exact.data(), golden.exact.data.data(), golden.exact.data.size());
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const std::size_t row = i / cols * step, col = i % cols;
      ASSERT_EQ(weights[row * cols + col], exact[i])  // equal bits, but for the sign of 0, which libraries lose in a sum
          << "row " << row << ", column " << col << ": " << weights[row * cols + col] << " instead of " << exact[i];
    }
  }
}

TEST_F(Schemes, PartsOfRowsAreReadAsTheWhole) {
  for (const Golden& golden : goldens()) {
    SCOPED_TRACE(golden.name);
    const auto model = open(golden);
    const TensorInfo& tensor = made_in(*model);
    std::vector<std::uint8_t> whole(tensor.bytes), part(tensor.bytes);
    model->read(tensor, 0, tensor.bytes, whole.data());
    for (std::uint64_t offset = 0; offset < tensor.bytes; offset += 101) {
      const std::uint64_t count = std::min<std::uint64_t>(tensor.bytes - offset, 1 + offset % 307);
      model->read(tensor, offset, count, part.data());
      ASSERT_TRUE(
          std::equal(part.begin(), part.begin() + static_cast<std::ptrdiff_t>(count), whole.begin() + static_cast<std::ptrdiff_t>(offset)))
          << offset;
    }
  }
}

// The tests below take apart the goldens of every scheme, so each scheme must have some.
TEST_F(Schemes, EverySchemeHasGoldens) {
  std::set<std::string> seen;
  for (const Golden& golden : goldens()) seen.insert(open(golden)->scheme());
  const std::set<std::string> all = {
#define PUMICE_SCHEME(name, library, method) library,
#include "files/schemes/schemes.def"
#undef PUMICE_SCHEME
  };
  EXPECT_EQ(seen, all);
}

// AWQ keeps a column together, so rows are read in slices of 64 if they are as long as this.
TEST_F(Schemes, SlicesOfALargeMatrix) {
  constexpr std::int64_t kRows = 136, kCols = 5 << 16, kGroup = kCols / 2, kWords = kRows / 8;
  Golden golden = golden_of("awq_32");
  golden.settings()["group_size"] = kGroup;
  golden.tensors = {{"m.qweight", "I32", {kCols, kWords}, pattern(kCols * kWords * 4, 1)},
                    {"m.qzeros", "I32", {2, kWords}, pattern(2 * kWords * 4, 2)},
                    {"m.scales", "F16", {2, kRows}, pattern(2 * kRows * 2, 3)}};
  const auto model = open(golden);
  const TensorInfo& tensor = *model->find("m.weight");
  const auto nibble = [](const std::string& data, std::int64_t word, int k) {
    return static_cast<unsigned char>(data[static_cast<std::size_t>(word * 4 + k / 2)]) >> (k % 2 * 4) & 15;
  };
  const auto row_bytes = static_cast<std::size_t>(pumice::row_bytes(Format::A4, kCols));
  const auto check = [&](std::int64_t first, std::int64_t count) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count) * row_bytes);
    model->read(tensor, static_cast<std::uint64_t>(first) * row_bytes, bytes.size(), bytes.data());
    std::vector<float> row(kCols);
    for (std::int64_t r = first; r < first + count; ++r) {
      unpack(Format::A4, bytes.data() + static_cast<std::size_t>(r - first) * row_bytes, kCols, row.data());
      constexpr int kPlace[] = {0, 4, 1, 5, 2, 6, 3, 7};  // of output r % 8 in its word
      for (const std::int64_t col : {std::int64_t{0}, std::int64_t{31}, kGroup - 1, kGroup, kCols - 1}) {
        std::uint16_t scale = 0;
        std::memcpy(&scale, golden.tensors[2].data.data() + (col / kGroup * kRows + r) * 2, 2);
        const int code = nibble(golden.tensors[0].data, col * kWords + r / 8, kPlace[r % 8]);
        const int zero = nibble(golden.tensors[1].data, col / kGroup * kWords + r / 8, kPlace[r % 8]);
        EXPECT_EQ(row[static_cast<std::size_t>(col)], f16_to_f32(scale) * static_cast<float>(code - zero)) << r << ", " << col;
      }
    }
  };
  check(0, 1);
  check(60, 10);  // two slices
  check(127, 9);  // the last slice has 8 rows
  std::thread other([&] { check(120, 3); });
  check(5, 3);
  other.join();
}

TEST_F(Schemes, ATensorThatIsMissing) {
  for (const Golden& golden : goldens()) {
    for (std::size_t i = 0; i < golden.tensors.size(); ++i) {
      Golden less = golden;
      less.tensors.erase(less.tensors.begin() + static_cast<std::ptrdiff_t>(i));
      if (golden.tensors[i].name == "m.weight_format") continue;  // need not be there
      // Without desc_act, neighbouring columns are a group, and the index says no more than that.
      if (golden.tensors[i].name == "m.g_idx" && !less.settings()["desc_act"]) {
        EXPECT_EQ(weights(less), weights(golden)) << golden.name;
      } else {
        refused(less, golden.tensors[i].name + ": is missing");
      }
    }
  }
}

// A folder with any bytes changed, or any value of its JSON, is read or refused by a proper error.
TEST_F(Schemes, AnythingChanged) {
  const char* const asked = std::getenv("PUMICE_FUZZ");
  const int rounds = asked ? std::atoi(asked) : 24;
  std::mt19937_64 random(27);
  const auto below = [&](std::size_t end) { return static_cast<std::size_t>(random() % end); };
  const std::vector<nlohmann::json> hostile = {
      nullptr, true,   -1,  0,  1,           2,   7,  31,       33,        std::int64_t{1} << 31, std::int64_t{1} << 62,
      1e300,   -1e-30, 0.5, "", "f\xC3\xBC", "8", {}, {1, "x"}, {{"a", 1}}};
  const auto change_json = [&](const std::string& text) {
    nlohmann::json flat = nlohmann::json::parse(text).flatten();
    auto at = flat.begin();
    std::advance(at, below(flat.size()));
    if (below(4) == 0) {
      flat.erase(at);
    } else {
      *at = below(3) == 0 && at->is_number_integer() ? nlohmann::json(at->get<std::int64_t>() + static_cast<std::int64_t>(below(5)) - 2)
                                                     : hostile[below(hostile.size())];
    }
    nlohmann::json changed = nlohmann::json::object();
    for (const auto& [path, value] : flat.items()) {
      try {
        changed[nlohmann::json::json_pointer(path)] = value;
      } catch (const nlohmann::json::exception&) {  // an entry before this one is gone, or is no object any more
      }
    }
    return changed.dump();
  };
  for (const Golden& golden : goldens()) {
    const std::string config = golden.config.dump(), file = safetensors(golden.tensors).bytes;
    std::uint64_t header = 0;
    std::memcpy(&header, file.data(), sizeof header);
    for (int round = 0; round < rounds; ++round) {
      std::string new_config = config, new_file = file;
      const auto change_bytes = [&](std::string& bytes) {
        for (std::size_t edits = 1 + below(4); edits > 0; --edits) {
          const std::size_t at = below(bytes.size()), kind = below(5);
          if (kind < 3) bytes[at] = static_cast<char>(kind == 0 ? random() : kind == 1 ? bytes[at] ^ (1 << below(8)) : -1);
          if (kind == 3 && bytes.size() > 64) bytes.erase(at, 1 + below(8));
          if (kind == 4 && below(4) == 0 && bytes.size() > 64) bytes.resize(32 + below(bytes.size() - 32));
        }
      };
      switch (below(5)) {
        case 0:
          new_config = change_json(config);
          break;
        case 1:
          change_bytes(new_config);
          break;
        case 2: {
          const std::string changed = change_json(file.substr(8, header));
          const std::uint64_t size = changed.size();
          new_file = std::string(8, '\0') + changed + file.substr(8 + header);
          std::memcpy(new_file.data(), &size, sizeof size);
          break;
        }
        case 3:
          new_config = change_json(config);
          [[fallthrough]];
        default:
          change_bytes(new_file);
      }
      folder_.write("config.json", new_config);
      folder_.write("model.safetensors", new_file);
      std::string unsound;
      load(folder_.path(), &unsound);
      ASSERT_EQ(unsound, "") << golden.name << ", round " << round;
    }
  }
}

TEST_F(Schemes, ATensorOfAnotherDtype) {
  const std::map<std::string, std::vector<std::string>> kOthers = {{"I32", {"U32", "F32"}},
                                                                   {"U32", {"I32", "F32"}},
                                                                   {"I64", {"U64", "F64"}},
                                                                   {"I8", {"U8", "F8_E4M3"}},
                                                                   {"F16", {"I16"}},
                                                                   {"BF16", {"U16"}},
                                                                   {"F32", {"I32"}},
                                                                   {"U8", {"I8", "BOOL"}},
                                                                   {"F8_E4M3", {"F8_E5M2", "F8_E4M3FNUZ", "U8"}},
                                                                   {"F8_E8M0", {"U8", "F8_E4M3"}}};
  for (const Golden& golden : goldens()) {
    for (std::size_t i = 0; i < golden.tensors.size(); ++i) {
      for (const std::string& dtype : kOthers.at(golden.tensors[i].dtype)) {
        Golden other = golden;
        other.tensors[i].dtype = dtype;
        SCOPED_TRACE(golden.name + ", " + golden.tensors[i].name + " as " + dtype);
        // Floats of 8 bits with scales are a packing that is known and not read.
        const bool known = golden.tensors[i].name == "m.weight" && golden.name.starts_with("compressed") && dtype != "F8_E4M3";
        refused(other, golden.tensors[i].name, known ? ErrorKind::unsupported_model : ErrorKind::model_format);
      }
    }
  }
}

TEST_F(Schemes, ATensorOfAnotherShape) {
  for (const Golden& golden : goldens()) {
    if (of_floats(golden)) continue;  // FloatsOfAnotherShape
    const std::vector<float> whole = weights(golden);
    for (std::size_t i = 0; i < golden.tensors.size(); ++i) {
      const SafeTensor& right = golden.tensors[i];
      std::int64_t values = 1;
      for (const std::int64_t length : right.shape) values *= length;
      const std::size_t each = right.data.size() / static_cast<std::size_t>(values);
      std::vector<std::vector<std::int64_t>> shapes = {{},
                                                       {values},
                                                       {1, values},
                                                       {values, 1},
                                                       {1, 1, values},
                                                       {values, 0},
                                                       {0, values},
                                                       {0},
                                                       {0, std::int64_t{1} << 62},
                                                       {std::int64_t{1} << 62, 0}};
      if (right.shape.size() == 2) {
        const std::int64_t first = right.shape[0], second = right.shape[1];
        shapes.insert(shapes.end(), {{second, first}, {first + 1, second}, {first, second + 1}, {first * 2, second}, {first, second * 2}});
        if (first > 1) shapes.insert(shapes.end(), {{first - 1, second}, {first / 2, second}});
        if (second > 1) shapes.insert(shapes.end(), {{first, second - 1}, {first, second / 2}});
      }
      for (const std::vector<std::int64_t>& shape : shapes) {
        if (shape == right.shape) continue;
        Golden other = golden;
        std::int64_t wanted = 1;
        for (const std::int64_t length : shape) wanted *= length;
        other.tensors[i].shape = shape;
        other.tensors[i].data.resize(static_cast<std::size_t>(wanted) * each, '\x11');
        std::string text = golden.name + ", " + right.name + " [";
        for (const std::int64_t length : shape) text += std::to_string(length) + ",";
        SCOPED_TRACE(text);
        // One scale a row may have the shape [rows] as well as [rows, 1], and one of all may have [] as well as [1].
        const bool scale = right.name == "m.weight_scale" || (right.name == "m.weight_zero_point" && right.dtype == "I8");
        if (wanted == values && scale && (shape.size() == 1 || values == 1)) {
          if (golden.config.dump().find("\"channel\"") == std::string::npos) continue;
          EXPECT_EQ(weights(other), whole);
          continue;
        }
        // The two ways in which compressed-tensors has packed codes of 3 and 5 bits differ in the width alone.
        const bool stream =
            right.name == "m.weight_packed" && (golden.name.find("_3") != std::string::npos || golden.name.find("_5") != std::string::npos);
        if (stream && wanted != values && shape.size() == 2 && shape[0] == right.shape[0]) continue;
        try {
          // A matrix of other rows or columns is refused by the model that asks for it; there must be no other numbers of the same shape.
          const auto model = open(other);
          const TensorInfo& tensor = made_in(*model);
          const auto read = model->read_floats(tensor);
          EXPECT_NE(read.size(), whole.size());
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::model_format) << error.what();
          EXPECT_NE(std::string(error.what()).find("tensor m."), std::string::npos) << error.what();
        }
      }
    }
  }
}

void set(SafeTensor& tensor, std::size_t byte, std::initializer_list<unsigned> bytes) {
  for (const unsigned value : bytes) tensor.data[byte++] = static_cast<char>(value);
}

TEST_F(Schemes, ScalesThatAreNoFiniteNumbers) {
  for (const Golden& golden : goldens()) {
    if (golden.name == "fp8_powers" || golden.name == "fp8_wide_powers" || of_fp4(golden))
      continue;  // FloatsThatAreNoNumbers, ScalesOfFloatsOf4Bits
    for (const char* suffix :
         {"scales", "biases", "weight_scale", "weight_scale_inv", "SCB", "experts.up_scale", "experts.up_weight_scale"}) {
      Golden other = golden;
      if (std::ranges::find(other.tensors, str("m.", suffix), &SafeTensor::name) == other.tensors.end()) continue;
      SafeTensor& scales = other.tensor(suffix);
      const unsigned exponent = scales.dtype == "F16" ? 0x7C : 0x7F, more = scales.dtype == "F16" ? 0 : 0x80;
      const std::size_t last = scales.data.size() - 2;  // also of F32, whose high half comes last
      if (scales.dtype == "F32") set(scales, last - 2, {0, 0});
      set(scales, last, {more, exponent});
      refused(other, str("tensor m.", suffix, ": row "));
      set(scales, last, {more, exponent | 0x80});
      refused(other, "-inf");
      set(scales, last, {more | 1, exponent});
      refused(other, "nan");
    }
  }
}

TEST_F(Schemes, ScalesThatNoHalfFloatEquals) {
  for (const char* name : {"compressed_4_bf16", "mlx_4_bf16", "mlx_5_bf16"}) {
    for (const char* suffix : {"scales", "biases", "weight_scale"}) {
      Golden golden = golden_of(name);
      if (std::ranges::find(golden.tensors, str("m.", suffix), &SafeTensor::name) == golden.tensors.end()) continue;
      set(golden.tensor(suffix), 0, {0x80, 0x30});  // 2^-30
      refused(golden, str("tensor m.", suffix, ": row 0 of the matrix: 9.31323e-10 equals no half float"));
      set(golden.tensor(suffix), 0, {0x80, 0x47});  // 65536
      refused(golden, "65536 equals no half float");
      set(golden.tensor(suffix), 0, {0x80, 0x33});  // 2^-24, the smallest half float
      EXPECT_NO_THROW(weights(golden));
    }
  }
  Golden golden = golden_of("mlx_8_bf16");  // read as floats, which hold every scale
  set(golden.tensor("scales"), 0, {0x80, 0x30});
  EXPECT_NO_THROW(weights(golden));
}

TEST_F(Schemes, ZerosOfGptq) {
  Golden golden = golden_of("gptq_4");
  const auto scale = [&] {
    std::uint16_t bits = 0;
    std::memcpy(&bits, golden.tensor("scales").data.data(), 2);
    return f16_to_f32(bits);
  }();
  const auto code = static_cast<float>(golden.tensor("qweight").data[0] & 15);  // of row 0, column 0
  const auto first_zero = [&](unsigned stored) {
    char& byte = golden.tensor("qzeros").data[0];
    byte = static_cast<char>((byte & 0xF0) | static_cast<int>(stored));
    return weights(golden)[0];
  };
  EXPECT_EQ(first_zero(0), scale * (code - 1));
  EXPECT_EQ(first_zero(14), scale * (code - 15));
  EXPECT_EQ(first_zero(15), scale * code);  // minus one, in four bits
  golden.settings()["checkpoint_format"] = "gptq_v2";
  EXPECT_EQ(first_zero(15), scale * (code - 15));
  EXPECT_EQ(first_zero(0), scale * code);
  golden.settings().erase("checkpoint_format");  // as "gptq"
  EXPECT_EQ(first_zero(0), scale * (code - 1));

  golden = golden_of("gptq_4_sym");
  const float right = weights(golden)[0];
  EXPECT_EQ(first_zero(7), right);
  EXPECT_EQ(first_zero(8), right);  // a writer that does not subtract one
  set(golden.tensor("qzeros"), 0, {0x76});
  refused(golden, "tensor m.qzeros: row 0 has the zero 6; with sym in config.json it is 8 or 7");
}

TEST_F(Schemes, IndicesThatAreNoGroups) {
  for (const auto& [name, suffix] : {std::pair("gptq_4_act_order", "g_idx"), std::pair("compressed_4_act_order", "weight_g_idx")}) {
    Golden golden = golden_of(name);
    set(golden.tensor(suffix), 12, {2, 0, 0, 0});
    refused(golden, str("tensor m.", suffix, ": says that column 3 is of group 2; there are 2 groups"));
    set(golden.tensor(suffix), 12, {255, 255, 255, 255});
    refused(golden, "of group -1");
    set(golden.tensor(suffix), 12, {255, 255, 255, 127});
    refused(golden, "of group 2147483647");
  }
}

TEST_F(Schemes, AShapeThatIsNotTheMatrix) {
  for (const std::int64_t length : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1}, std::int64_t{1} << 33,
                                    std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()}) {
    for (const std::size_t place : {0u, 8u}) {
      Golden golden = golden_of("compressed_4");
      std::memcpy(golden.tensor("weight_shape").data.data() + place, &length, sizeof length);
      refused(golden, place == 0 || length < 1 || length > 1 ? "tensor m.weight_shape: says [" : "tensor m.weight_packed: ");
    }
  }
  Golden golden = golden_of("compressed_4");
  golden.tensor("weight_shape") = {"m.weight_shape", "I32", {2}, std::string("\x05\0\0\0\x40\0\0\0", 8)};
  EXPECT_EQ(weights(golden), weights(golden_of("compressed_4")));
}

TEST_F(Schemes, SizesOfGroupsThatCannotBe) {
  for (const Golden& golden : goldens()) {
    if (of_floats(golden)) continue;
    for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-7}, std::int64_t{1} << 62, std::numeric_limits<std::int64_t>::min()}) {
      Golden other = golden;
      auto& settings = other.settings();
      (settings.contains("config_groups") ? settings["config_groups"]["group_0"]["weights"] : settings)["group_size"] = size;
      refused(other, "group_size: is ");
    }
    Golden other = golden;
    auto& settings = other.settings();
    (settings.contains("config_groups") ? settings["config_groups"]["group_0"]["weights"] : settings)["group_size"] = 16;
    refused(other, "scale");
  }
}

TEST_F(Schemes, KeysOfWrongTypes) {
  const std::vector<nlohmann::json> values = {"text", 1.5, nlohmann::json::array({1, "x"}), nlohmann::json::object({{"a", 1}})};
  for (const char* name : {"gptq_4", "awq_32", "compressed_4", "mlx_4_f16"}) {
    const Golden golden = golden_of(name);
    const auto keys = [](Golden& of) -> nlohmann::json& {
      auto& settings = of.settings();
      return settings.contains("config_groups") ? settings["config_groups"]["group_0"]["weights"] : settings;
    };
    Golden copy = golden;
    for (const auto& [key, right] : keys(copy).items()) {
      if (key == "quant_method" || key == "strategy") continue;
      for (const nlohmann::json& value : values) {
        if (value.is_string() && right.is_string()) continue;
        if (key == "actorder" && value.is_string()) continue;  // "text" is an order that needs no index
        Golden other = golden;
        keys(other)[key] = value;
        SCOPED_TRACE(str(name, " ", key, " ", value.dump()));
        try {
          weights(other);
          ADD_FAILURE() << "read";
        } catch (const Error& error) {
          EXPECT_TRUE(error.kind() == ErrorKind::model_format || error.kind() == ErrorKind::unsupported_model) << error.what();
          EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
        }
      }
    }
  }
}

TEST_F(Schemes, KindsThatAreNotRead) {
  const auto unsupported = [&](const char* name, const char* key, const nlohmann::json& value, const std::string& text) {
    Golden golden = golden_of(name);
    golden.settings()[key] = value;
    refused(golden, text, ErrorKind::unsupported_model);
  };
  unsupported("gptq_4", "checkpoint_format", "marlin", "checkpoint_format: is 'marlin'; gptq and gptq_v2 are read");
  unsupported("awq_32", "version", "gemv_fast", "version: is 'gemv_fast'; gemm is read");
  unsupported("awq_32", "bits", 8, "bits: is 8; AWQ is read with 4");
  unsupported("awq_32", "zero_point", false, "zero_point: is false");
  unsupported("compressed_4", "format", "marlin-24", "format: is 'marlin-24'");
  unsupported("compressed_4", "sparsity_config", {{"format", "sparse-24-bitmask"}}, "sparsity_config.format: is 'sparse-24-bitmask'");
  unsupported("compressed_4", "transform_config", {{"config_groups", {{"R1", {{"type", "hadamard"}}}}}}, "transform_config: rotates");
  unsupported("mlx_4_f16", "mode", "mxfp4", "mode: is 'mxfp4'; affine is read");
  unsupported("mlx_4_f16", "bits", 9, "bits: is 9; 2 to 8 are read");
  unsupported("mlx_4_f16", "m", {{"bits", 1}}, "m.bits: is 1; 2 to 8 are read");

  // Two groups of config.json that the tensors do not tell apart.
  Golden golden = golden_of("compressed_4");
  auto& groups = golden.settings()["config_groups"];
  groups["group_1"] = groups["group_0"];
  EXPECT_NO_THROW(weights(golden));
  groups["group_1"]["weights"]["symmetric"] = true;
  refused(golden, "config_groups: has two groups that m.weight_packed can be of", ErrorKind::unsupported_model);

  golden = golden_of("mlx_4_f16");  // experts
  for (SafeTensor& tensor : golden.tensors) tensor.shape.insert(tensor.shape.begin(), 1);
  refused(golden, "has all experts in m.weight", ErrorKind::unsupported_model);
}

// A module of compressed-tensors is of the group whose targets name it: by its name, else by an expression, else by its class.
TEST_F(Schemes, FloatsOfAnotherShape) {
  for (const Golden& golden : goldens()) {
    if (!of_floats(golden)) continue;
    const std::vector<float> whole = weights(golden);
    for (std::size_t i = 0; i < golden.tensors.size(); ++i) {
      const SafeTensor& right = golden.tensors[i];
      if (right.name.find("quant_state") != std::string::npos || right.name == "m.weight_format") continue;  // a text, a number
      std::int64_t values = 1;
      for (const std::int64_t length : right.shape) values *= length;
      const std::size_t each = right.data.size() / static_cast<std::size_t>(values);
      for (const std::vector<std::int64_t>& shape :
           {std::vector<std::int64_t>{values + 1}, {1, values + 1}, {values, 2}, {0}, {0, 0}, {1, 1, values}}) {
        Golden other = golden;
        std::int64_t wanted = 1;
        for (const std::int64_t length : shape) wanted *= length;
        other.tensors[i].shape = shape;
        other.tensors[i].data.resize(static_cast<std::size_t>(wanted) * each, ' ');
        SCOPED_TRACE(str(golden.name, ", ", right.name, ", ", wanted));
        try {
          EXPECT_NE(weights(other).size(), whole.size());
        } catch (const Error& error) {
          EXPECT_TRUE(error.kind() == ErrorKind::model_format || error.kind() == ErrorKind::unsupported_model) << error.what();
          EXPECT_NE(std::string(error.what()).find("m."), std::string::npos) << error.what();
        }
      }
    }
  }
}

TEST_F(Schemes, FloatsThatAreNoNumbers) {
  Golden golden = golden_of("fp8_blocks");
  for (const unsigned nan : {0x7Fu, 0xFFu}) {
    set(golden.tensor("weight"), 3 * 80 + 5, {nan});
    refused(golden, str("tensor m.weight: row 3, column 5 is NaN (code ", nan, ")"));
  }
  golden = golden_of("fp8_wide_blocks");
  for (const unsigned nan : {0x7Fu, 0xFFu}) {
    set(golden.tensor("weight"), 9 * 256 + 255, {nan});
    refused(golden, str("tensor m.weight: row 9, column 255 is NaN (code ", nan, ")"));
  }
  golden = golden_of("fp8_wide_powers");
  set(golden.tensor("weight_scale_inv"), 3, {0xFF});
  refused(golden, "tensor m.weight_scale_inv: row 4 of the matrix: block 1 has the scale nan");
  set(golden.tensor("weight_scale_inv"), 3, {127 + 64});
  refused(golden, "block 1 has the scale 1.84467e+19; sizes below 2^64 are read");
  set(golden.tensor("weight_scale_inv"), 3, {0});  // 2^-127: products are rounded to subnormal numbers
  EXPECT_NO_THROW(weights(golden));
  golden = golden_of("fp8_powers");
  set(golden.tensor("weight_scale_inv"), 4, {0xFF});
  refused(golden, "tensor m.weight_scale_inv: row 4 of the matrix: block 1 has the scale nan");
  set(golden.tensor("weight_scale_inv"), 4, {127 + 119});
  refused(golden, "block 1 has the scale 6.64614e+35; powers of two from 2^-117 to 2^118 are needed");
  golden = golden_of("fp8_powers_f32");
  set(golden.tensor("weight_scale_inv"), 0, {1});
  refused(golden, "tensor m.weight_scale_inv: row 0 of the matrix: block 0 has the scale");
  golden = golden_of("bitsandbytes_nf4");
  set(golden.tensor("weight.nested_absmax"), 0, {0, 0, 0x80, 0x7F});
  refused(golden, "tensor m.weight.absmax: row 0 of the matrix: block 0 has the factor");
  golden = golden_of("bitsandbytes_nf4");
  set(golden.tensor("weight.quant_map"), 0, {0, 0, 0x80, 0x7F});
  refused(golden, "tensor m.weight.quant_map: value 0 is inf");
}

TEST_F(Schemes, ScalesOfFloatsOf4Bits) {
  const auto with = [](const char* name, const char* suffix, std::size_t byte, std::initializer_list<unsigned> bytes) {
    Golden golden = golden_of(name);
    set(golden.tensor(suffix), byte, bytes);
    return golden;
  };
  for (const char* name : {"nvfp4_compressed", "nvfp4_compressed_48"}) {
    const std::size_t groups = std::string_view(name).ends_with("48") ? 3 : 4;
    for (const unsigned nan : {0x7Fu, 0xFFu})
      refused(with(name, "weight_scale", 2 * groups + 1, {nan}),
              str("tensor m.weight_scale: row 2 of the matrix: group 1 has the scale nan (code ", nan, ")"));
  }
  const std::string exponents = "tensor m.weight_scale: row 0 of the matrix: group 1 has the scale 2^(253 - 127)";
  EXPECT_NO_THROW(weights(with("mxfp4_compressed", "weight_scale", 1, {252})));
  EXPECT_NO_THROW(weights(with("mxfp4_compressed", "weight_scale", 1, {0})));
  refused(with("mxfp4_compressed", "weight_scale", 1, {253}), exponents);
  refused(with("mxfp4_compressed", "weight_scale", 1, {255}), "255 is NaN");
  for (const auto& [name, suffix] : {std::pair("nvfp4_compressed", "weight_global_scale"), std::pair("nvfp4_modelopt", "weight_scale_2")}) {
    const std::string tensor = str("tensor m.", suffix, ": is ");
    refused(with(name, suffix, 0, {0, 0, 0, 0}), tensor + "0; a finite number that is not 0 is needed");
    refused(with(name, suffix, 0, {0, 0, 0, 0x80}), tensor + "-0");
    refused(with(name, suffix, 0, {0, 0, 0x80, 0x7F}), tensor + "inf");
    refused(with(name, suffix, 0, {0, 0, 0x80, 0xFF}), tensor + "-inf");
    refused(with(name, suffix, 0, {1, 0, 0x80, 0x7F}), tensor + "nan");
    refused(with(name, suffix, 0, {0, 0, 0, 0x02}), "sizes from 2^-125 to 2^125 are read");  // 2^-123
    refused(with(name, suffix, 0, {0, 0, 0, 0x7E}), "sizes from 2^-125 to 2^125 are read");  // 2^125
  }
}

TEST_F(Schemes, SettingsOfFloatsOf4Bits) {
  const auto weights_of = [](Golden& golden) -> nlohmann::json& { return golden.settings()["config_groups"]["group_0"]["weights"]; };
  Golden golden = golden_of("nvfp4_compressed");
  weights_of(golden)["group_size"] = 32;
  refused(golden, "tensor m.weight_scale: is F8_E4M3; U8 is needed");
  weights_of(golden)["group_size"] = 64;
  refused(golden, "weights.group_size: is 64 for floats of 4 bits; 16 (NVFP4) and 32 (MXFP4) are read", ErrorKind::unsupported_model);
  weights_of(golden)["group_size"] = nullptr;
  refused(golden, "weights.group_size: says no sizes");
  golden = golden_of("mxfp4_compressed");
  weights_of(golden)["group_size"] = 16;
  refused(golden, "tensor m.weight_scale: is U8; F8_E4M3 is needed");
  golden = golden_of("nvfp4_compressed");
  weights_of(golden)["symmetric"] = false;
  refused(golden, "has zero points", ErrorKind::unsupported_model);
  golden = golden_of("nvfp4_compressed");
  golden.tensors.push_back({"m.weight_zero_point", "I8", {5, 4}, pattern(20, 5)});
  refused(golden, "tensor m.weight_zero_point: is there, and config.json says that the weights are symmetric");
  golden = golden_of("nvfp4_compressed");
  weights_of(golden)["type"] = "int";
  refused(golden, "tensor m.weight_packed: is U8, and its group in config.json says type int");
  golden = golden_of("nvfp4_compressed");
  golden.settings()["ignore"] = {"re:.*m"};
  refused(golden, "tensor m.weight_packed: is packed, and quantization_config.ignore");
  golden = golden_of("nvfp4_compressed");  // groups that are not whole
  golden.tensor("weight_packed") = {"m.weight_packed", "U8", {5, 28}, pattern(140, 5)};
  refused(golden, "tensor m.weight_packed: has rows of 56 codes, which do not divide into groups of 16");
}

// Scales of activations and of a cache of 8 bits are not used.
TEST_F(Schemes, ScalesThatAreNotUsed) {
  Golden golden = golden_of("nvfp4_compressed");
  golden.tensors.push_back({"m.input_global_scale", "F32", {1}, floats({2})});
  EXPECT_EQ(open(golden)->tensors().size(), 1u);
  golden = golden_of("nvfp4_modelopt");
  for (const char* name : {"m.input_scale", "m.k_scale", "n.v_scale"}) golden.tensors.push_back({name, "F32", {}, floats({2})});
  EXPECT_EQ(open(golden)->tensors().size(), 1u);
}

TEST_F(Schemes, SettingsOfModelopt) {
  const Golden right = golden_of("nvfp4_modelopt");
  Golden golden = right;
  golden.settings()["quant_algo"] = "W4A16_NVFP4";
  EXPECT_EQ(weights(golden), weights(right));
  golden.settings()["quant_algo"] = "FP8";
  refused(golden, "tensor m.weight: is U8; F8_E4M3 is needed");
  golden.settings()["quant_algo"] = "W4A16_AWQ";
  refused(
      golden,
      "quantization_config.quant_algo: is 'W4A16_AWQ'; NVFP4, W4A16_NVFP4, FP8, FP8_PER_CHANNEL_PER_TOKEN, and MIXED_PRECISION of these "
      "are read",
      ErrorKind::unsupported_model);
  golden = golden_of("fp8_modelopt_wide");
  golden.settings()["quant_algo"] = "NVFP4";
  refused(golden, "tensor m.weight: is F8_E4M3; U8 is needed");
  golden = right;
  golden.settings()["config_groups"]["group_0"]["weights"]["group_size"] = 32;
  refused(golden, "config_groups.group_0.weights.group_size: is 32; 16 is read", ErrorKind::unsupported_model);
  golden = right;
  golden.tensors.push_back({"m.pre_quant_scale", "F32", {96}, pattern(384, 5)});
  refused(golden, "has m.pre_quant_scale", ErrorKind::unsupported_model);
  for (const char* name : {"m", "*", "m*"}) {
    golden = right;
    golden.settings()["ignore"] = {name};
    refused(golden, "tensor m.weight: is packed, and the list of modules that are not packed has m");
  }
  for (const char* name : {"lm_head", "m.*", "*x", ".", "[m"}) {
    golden = right;
    golden.settings()["ignore"] = {name};
    EXPECT_EQ(weights(golden), weights(right)) << name;
  }
}

// Each module is packed as quantized_layers says.
TEST_F(Schemes, MixedModulesOfModelopt) {
  Golden golden = golden_of("nvfp4_modelopt");
  for (SafeTensor tensor : golden_of("fp8_modelopt_wide").tensors) {
    tensor.name.replace(0, 1, "n");
    golden.tensors.push_back(std::move(tensor));
  }
  for (const SafeTensor& tensor : golden_of("nvfp4_modelopt_stack").tensors) golden.tensors.push_back(tensor);
  golden.settings()["quant_algo"] = "MIXED_PRECISION";
  auto& layers = golden.settings()["quantized_layers"];
  layers = {{"m", {{"quant_algo", "NVFP4"}, {"group_size", 16}}},
            {"n", {{"quant_algo", "FP8"}}},
            {"m.experts", {{"quant_algo", "W4A16_NVFP4"}, {"group_size", 16}}}};
  const std::vector<float> expected[] = {weights(golden_of("nvfp4_modelopt")), weights(golden_of("fp8_modelopt_wide")),
                                         weights(golden_of("nvfp4_modelopt_stack"))};
  const auto model = open(golden);
  EXPECT_EQ(model->tensors().size(), 3u);
  EXPECT_EQ(model->read_floats(*model->find("m.weight")), expected[0]);
  EXPECT_EQ(model->read_floats(*model->find("n.weight")), expected[1]);
  EXPECT_EQ(model->read_floats(*model->find("m.experts.up.weight")), expected[2]);
  layers["m"]["group_size"] = 32;
  refused(golden, "quantized_layers.m.group_size: is 32; 16 is read", ErrorKind::unsupported_model);
  layers["m"]["quant_algo"] = "W8A16";
  refused(golden, "quantized_layers.m.quant_algo: is 'W8A16'", ErrorKind::unsupported_model);
  layers.erase("m");
  refused(golden, "tensor m.weight: is packed, and quantization_config.quantized_layers does not have m");
}

// The matrices of all experts in one tensor. Llama 4 has them turned, as the golden; a factor may be that of all experts or of each.
TEST_F(Schemes, StacksOfFloatsOf4Bits) {
  const Golden turned = golden_of("nvfp4_modelopt_stack");
  const std::vector<float> expected = weights(turned);
  Golden plain = turned;
  for (const char* suffix : {"experts.up", "experts.up_weight_scale"}) {
    SafeTensor& tensor = plain.tensor(suffix);
    const std::string from = tensor.data;
    const auto width = static_cast<std::size_t>(tensor.shape[1]), rows = static_cast<std::size_t>(tensor.shape[2]);
    std::swap(tensor.shape[1], tensor.shape[2]);
    for (std::size_t i = 0; i < from.size(); ++i) {
      const std::size_t expert = i / (width * rows), at = i % (width * rows);
      tensor.data[(expert * rows + at % rows) * width + at / rows] = from[i];
    }
  }
  EXPECT_EQ(weights(plain), expected);
  EXPECT_EQ(made_in(*open(plain)).name, "m.experts.up");

  float factor = 0;
  std::memcpy(&factor, turned.tensors[2].data.data(), sizeof factor);
  ASSERT_EQ(turned.tensors[2].name, "m.experts.up_weight_scale_2");
  Golden each = turned;
  each.tensor("experts.up_weight_scale_2") = {"m.experts.up_weight_scale_2", "F32", {3}, floats({factor, 2 * factor, factor / 4})};
  const std::vector<float> read = weights(each);
  const std::size_t size = expected.size() / 3;
  for (std::size_t i = 0; i < read.size(); ++i) ASSERT_EQ(read[i], expected[i] * (i < size ? 1 : i < 2 * size ? 2 : 0.25f)) << i;
  each.tensor("experts.up_weight_scale_2") = {"m.experts.up_weight_scale_2", "F32", {3}, floats({factor, 0, factor})};
  refused(each, "tensor m.experts.up_weight_scale_2: has the factor 0 for expert 1; a finite number that is not 0 is needed");
  each.tensor("experts.up_weight_scale_2") = {"m.experts.up_weight_scale_2", "F32", {2}, floats({factor, factor})};
  refused(each, "tensor m.experts.up_weight_scale_2: has the shape [2]; [3] is needed");
}

TEST_F(Schemes, StacksOfFloatsOf8Bits) {
  Golden golden = golden_of("fp8_modelopt_stack");
  const std::vector<float> expected = weights(golden);
  std::vector<float> scales(3);
  std::memcpy(scales.data(), golden.tensor("experts.up_weight_scale").data.data(), 12);
  std::vector<float> of_rows;
  for (const float scale : scales) of_rows.insert(of_rows.end(), 5, scale);
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{3, 5}, {3, 1, 5}, {3, 5, 1}}) {
    golden.tensor("experts.up_weight_scale") = {"m.experts.up_weight_scale", "F32", shape, floats(of_rows)};
    EXPECT_EQ(weights(golden), expected);
  }
  golden.tensor("experts.up_weight_scale") = {"m.experts.up_weight_scale", "F32", {}, floats({1})};
  const std::vector<float> plain = weights(golden);
  for (std::size_t i = 0; i < plain.size(); ++i) ASSERT_EQ(plain[i] * scales[i / (plain.size() / 3)], expected[i]);
  golden.tensor("experts.up_weight_scale") = {"m.experts.up_weight_scale", "F32", {5}, floats({1, 1, 1, 1, 1})};
  refused(golden, "tensor m.experts.up_weight_scale: has 5 numbers; 1, or 3 for the experts, or 15 for their rows are needed");
  golden = golden_of("fp8_fbgemm_stack");
  set(golden.tensor("experts.up"), (2 * 128 + 7) * 5 + 4, {0x7F});  // expert 2, column 7, row 4
  refused(golden, "tensor m.experts.up: row 14, column 7 is NaN (code 127)");
}

// A stack whose rows are read in slices of 64.
TEST_F(Schemes, SlicesOfALargeStack) {
  constexpr std::int64_t kExperts = 2, kRows = 70, kCols = 3 << 16;
  Golden golden = golden_of("fp8_modelopt_stack");
  golden.tensors = {{"m.experts.up", "F8_E4M3", {kExperts, kCols, kRows}, std::string(kExperts * kCols * kRows, '\0')},
                    {"m.experts.up_weight_scale", "F32", {}, floats({1})}};
  const auto code = [](std::int64_t expert, std::int64_t row, std::int64_t col) { return (expert * 50 + row * 3 + col * 7) % 120; };
  for (std::int64_t i = 0; i < kExperts * kCols * kRows; ++i)
    golden.tensors[0].data[static_cast<std::size_t>(i)] = static_cast<char>(code(i / (kCols * kRows), i % kRows, i / kRows % kCols));
  const auto model = open(golden);
  const TensorInfo& tensor = made_in(*model);
  const auto row_bytes = static_cast<std::size_t>(pumice::row_bytes(Format::F8_E4M3, kCols));
  std::vector<std::uint8_t> rows(12 * row_bytes);
  model->read(tensor, 60 * row_bytes, rows.size(), rows.data());  // rows 60 to 69 of expert 0, and two of expert 1
  for (std::int64_t r = 0; r < 12; ++r) {
    for (const std::int64_t col : {std::int64_t{0}, std::int64_t{127}, std::int64_t{128}, kCols - 1})
      EXPECT_EQ(rows[static_cast<std::size_t>(r) * row_bytes + static_cast<std::size_t>(col / 128 * 132 + 4 + col % 128)],
                code(r / 10, (60 + r) % kRows, col))
          << r << ", " << col;
  }
}

// ModelOpt's older folders say in a file of their own how they are packed. config.json counts first.
TEST_F(Schemes, HfQuantConfig) {
  const Golden right = golden_of("nvfp4_modelopt");
  const std::vector<float> expected = weights(right);
  Golden golden = right;
  golden.config = nlohmann::json::object();
  nlohmann::json quant = {{"producer", {{"name", "modelopt"}}},
                          {"quantization", {{"quant_algo", "NVFP4"}, {"group_size", 16}, {"exclude_modules", {"lm_head"}}}}};
  const auto write = [&] { folder_.write("hf_quant_config.json", quant.dump()); };
  write();
  EXPECT_EQ(open(golden)->scheme(), "ModelOpt");
  EXPECT_EQ(weights(golden), expected);
  quant["quantization"]["exclude_modules"] = {"m*"};
  write();
  refused(golden, "tensor m.weight: is packed, and the list");
  EXPECT_EQ(weights(right), expected);
  quant["quantization"]["quant_algo"] = "NVFP4_AWQ";
  write();
  refused(golden, "quantization.quant_algo: is 'NVFP4_AWQ'", ErrorKind::unsupported_model);
  quant["quantization"]["quant_algo"] = nullptr;  // only the cache has 8 bits
  write();
  EXPECT_EQ(open(golden)->scheme(), "");
  folder_.write("hf_quant_config.json", "{");
  refused(golden, "hf_quant_config.json");
}

// The JSON in a tensor of bitsandbytes.
TEST_F(Schemes, StateOfAMatrix) {
  const Golden right = golden_of("bitsandbytes_nf4");
  const auto with = [&](const auto& change) {
    Golden golden = right;
    SafeTensor& tensor = golden.tensor("weight.quant_state.bitsandbytes__nf4");
    auto json = nlohmann::json::parse(tensor.data);
    change(json);
    tensor.data = json.dump();
    tensor.shape = {static_cast<std::int64_t>(tensor.data.size())};
    return golden;
  };
  EXPECT_EQ(weights(with([](auto&) {})), weights(right));
  const std::string tensor = "tensor m.weight.quant_state.bitsandbytes__nf4";
  for (const char* key : {"blocksize", "nested_blocksize", "nested_offset", "shape", "dtype"}) {
    refused(with([&](auto& json) { json.erase(key); }), tensor);
    refused(with([&](auto& json) { json[key] = true; }), tensor);
    refused(with([&](auto& json) { json[key] = nlohmann::json::object(); }), tensor);
    for (const nlohmann::json& value : {nlohmann::json(-1), nlohmann::json(0), nlohmann::json(1e300)}) {
      if (std::string_view(key) == "nested_offset" && value < 1) continue;
      refused(with([&](auto& json) { json[key] = value; }), tensor);
    }
  }
  refused(with([](auto& json) { json["dtype"] = "float64"; }), "has dtype 'float64'; float32, float16 and bfloat16 are read");
  refused(with([](auto& json) { json["shape"] = {1 << 30, 1 << 30}; }), "tensor m.weight: has the shape");
  refused(with([](auto& json) { json["shape"] = {6, 75, 1}; }), "has a shape that is no matrix");
  refused(with([](auto& json) { json["blocksize"] = 32; }), "tensor m.weight.absmax: has the shape [8]; [15] is needed");
  Golden golden = right;
  golden.tensor("weight.quant_state.bitsandbytes__nf4").data.assign(golden.tensor("weight.quant_state.bitsandbytes__nf4").data.size(), '[');
  refused(golden, tensor);
  golden = golden_of("bitsandbytes_int8");
  set(golden.tensor("weight_format"), 0, {1});
  refused(golden, "tensor m.weight_format: is 1; 0, codes row by row, is read");
}

TEST_F(Schemes, BlocksOfFloats) {
  Golden golden = golden_of("fp8_blocks");
  golden.settings()["weight_block_size"] = {4, 31};
  EXPECT_NO_THROW(weights(golden));  // three blocks as well
  for (const nlohmann::json& size : {nlohmann::json{4, 40}, nlohmann::json{5, 32}, nlohmann::json(nullptr)}) {
    golden.settings()["weight_block_size"] = size;
    refused(golden, "tensor m.weight_scale_inv: has the shape [3, 3]");
  }
  for (const nlohmann::json& size :
       {nlohmann::json{4}, nlohmann::json{0, 32}, nlohmann::json{4, -1}, nlohmann::json{4, 32, 1}, nlohmann::json("x")}) {
    golden.settings()["weight_block_size"] = size;
    refused(golden, "quantization_config.weight_block_size");
  }
  // Blocks whose columns are no multiple of 128, so that a block of F8_E4M3 would have two scales.
  golden = golden_of("fp8_wide_blocks");
  const auto format = [&] { return open(golden)->find("m.weight")->format_name; };
  EXPECT_EQ(format(), "F8_E4M3");
  golden.settings()["weight_block_size"] = {4, 192};
  EXPECT_EQ(format(), "F32");
  EXPECT_NO_THROW(weights(golden));
  golden = golden_of("fp8_wide_powers");
  golden.settings()["weight_block_size"] = {4, 130};
  EXPECT_EQ(format(), "BF16");

  golden = golden_of("fp8_one");
  golden.settings()["fmt"] = "e5m2";
  refused(golden, "fmt: is 'e5m2'; e4m3 is read", ErrorKind::unsupported_model);
  golden = golden_of("compressed_float_block");
  auto& group = golden.settings()["config_groups"]["group_0"]["weights"];
  group["block_structure"] = nullptr;
  refused(golden, "weights.block_structure: says no sizes");
  group["strategy"] = "channel";
  refused(golden, "tensor m.weight_scale: has the shape [3, 3]; [10, 1] is needed");
  group["type"] = "int";
  refused(golden, "tensor m.weight: is F8_E4M3, and its group in config.json says type int");
}

TEST_F(Schemes, TargetsOfAGroup) {
  const Golden right = golden_of("compressed_4");
  const auto expected = weights(right);
  const auto targets = [&](const nlohmann::json& names) {
    Golden golden = right;
    golden.settings()["config_groups"]["group_0"]["targets"] = names;
    return golden;
  };
  for (const char* name : {"Linear", "m", "re:.*m", "re:[a-m]$", "re:(?!x)m"}) EXPECT_EQ(weights(targets({name})), expected) << name;
  for (const char* name : {"Embedding", "M", "n", "re:n", "re:.m", "re:m.", ""})
    refused(targets({name}),
            "tensor m.weight_packed: is packed, and no group of integers or of floats of 8 or 4 bits in quantization_config.config_groups");
  refused(targets(nlohmann::json::array()), "has m among its targets");
  refused(targets(nullptr), "has m among its targets");
  refused(targets({1, 2}), "config_groups.group_0.targets");

  // The group that says "Linear" has other settings, and would be wrong.
  Golden golden = targets({"re:m"});
  auto& groups = golden.settings()["config_groups"];
  groups["group_1"] = groups["group_0"];
  groups["group_1"]["targets"] = {"Linear"};
  groups["group_1"]["weights"]["symmetric"] = true;
  EXPECT_EQ(weights(golden), expected);
  groups["group_1"]["targets"] = {"m"};
  refused(golden, "tensor m.weight_zero_point: is there, and config.json says that the weights are symmetric");
  groups["group_1"]["weights"]["num_bits"] = 8;
  refused(golden, "tensor m.weight_packed: has a width that its group in config.json does not give");

  for (const char* name : {"m", "re:m", "Linear"}) {
    golden = right;
    golden.settings()["ignore"] = {"lm_head", name};
    refused(golden, "tensor m.weight_packed: is packed, and quantization_config.ignore in config.json says that m is not");
  }
  golden = golden_of("compressed_bytes");
  golden.settings()["ignore"] = {"m"};
  refused(golden, "tensor m.weight: is packed, and quantization_config.ignore");
}

TEST_F(Schemes, SettingsOfAModule) {
  Golden golden = golden_of("mlx_5_f16");  // as mlx-lm writes models of several widths
  golden.settings()["bits"] = 4;
  golden.settings()["m"] = {{"group_size", 64}, {"bits", 5}};
  EXPECT_EQ(weights(golden), weights(golden_of("mlx_5_f16")));

  golden = golden_of("gptq_8_sym");  // as GPTQModel and AutoRound
  golden.settings()["bits"] = 4;
  refused(golden, "tensor m.qzeros: has zeros of 8 bits, and config.json says bits 4");
  golden.settings()["dynamic"] = {{"+:.*m", {{"bits", 8}}}};
  EXPECT_EQ(weights(golden), weights(golden_of("gptq_8_sym")));
  golden.settings().erase("dynamic");
  golden.settings()["extra_config"] = {{"m", {{"bits", 8}}}};
  golden.settings()["quant_method"] = "auto-round";
  golden.settings()["packing_format"] = "auto_round:auto_gptq";
  EXPECT_EQ(weights(golden), weights(golden_of("gptq_8_sym")));

  golden = golden_of("compressed_4");  // the text part of a model of images and text
  golden.config = {{"text_config", golden.config}};
  EXPECT_EQ(weights(golden), weights(golden_of("compressed_4")));
}

TEST_F(Schemes, AMatrixThatIsAlsoThereUnpacked) {
  for (const char* name : {"gptq_4", "awq_32"}) {
    Golden golden = golden_of(name);
    golden.tensors.push_back({"m.weight", "F16", {32, 64}, pattern(4096, 5)});
    refused(golden, "tensor m.weight: is there beside m.scales");
  }
  Golden golden = golden_of("compressed_4");
  golden.tensors.push_back({"m.weight", "F16", {5, 64}, pattern(640, 5)});
  refused(golden, "m.weight", ErrorKind::unsupported_model);
}

// Tensors that no matrix is packed in stay as they are, also in a packed folder.
TEST_F(Schemes, OtherTensorsStay) {
  Golden golden = golden_of("awq_32");
  golden.tensors.push_back({"m.bias", "F16", {32}, pattern(64, 5)});
  golden.tensors.push_back({"norm.weight", "F32", {2}, floats({1, 2})});
  const auto model = open(golden);
  EXPECT_EQ(model->scheme(), "AWQ");
  EXPECT_EQ(model->tensors().size(), 3u);
  EXPECT_EQ(model->read_floats(*model->find("norm.weight")), (std::vector<float>{1, 2}));
  golden.config = nlohmann::json::object();  // without the key, nothing is known of the packing
  EXPECT_EQ(open(golden)->scheme(), "");
  EXPECT_EQ(open(golden)->tensors().size(), 5u);
}

}  // namespace
}  // namespace pumice::files::testing
