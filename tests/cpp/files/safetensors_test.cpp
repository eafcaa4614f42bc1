// safetensors files and folders must be read as they were written, and each broken rule of the format must give an error of its own.
#include <gtest/gtest.h>

#include "files/build_files.h"
#include "files/expect_error.h"
#include "files/model_file.h"

namespace pumice::files::testing {
namespace {

constexpr char kConfig[] = R"({"model_type": "bert", "hidden_size": 32})";

class Safetensors : public ::testing::Test {
 protected:
  Safetensors() { folder_.write("config.json", kConfig); }
  std::shared_ptr<const ModelFile> open(const std::string& bytes) {
    folder_.write("model.safetensors", bytes);
    return ModelFile::open(folder_.path());
  }
  Error refused(const std::string& bytes, const std::string& text) {
    return expect_error(ErrorKind::model_format, text, [&] { open(bytes); });
  }
  Error refused_header(const std::string& header, const std::string& text, const std::string& data = std::string(8, 'x')) {
    return refused(safetensors_raw(header, data), text);
  }
  Error refused_index(const std::string& index, const std::string& text, ErrorKind kind = ErrorKind::model_format) {
    folder_.write("model.safetensors.index.json", index);
    return expect_error(kind, text, [&] { ModelFile::open(folder_.path()); });
  }
  TempFolder folder_;
};

std::string read_all(const ModelFile& model, const std::string& name) {
  const TensorInfo& tensor = *model.find(name);
  std::vector<std::uint8_t> bytes(tensor.bytes);
  model.read(tensor, 0, tensor.bytes, bytes.data());
  return {bytes.begin(), bytes.end()};
}

TEST_F(Safetensors, GivesBackWhatWasWritten) {
  const Built built = safetensors(sample_tensors());
  open(built.bytes);
  for (const std::string& path : {folder_.path(), folder_.path() + "/", folder_.path("model.safetensors")}) {
    const auto model = ModelFile::open(path);
    EXPECT_EQ(model->kind(), Kind::safetensors);
    EXPECT_EQ(model->path(), path);
    EXPECT_EQ(model->size_bytes(), built.bytes.size());
    EXPECT_EQ(model->json_text(), kConfig);
    EXPECT_EQ(model->integer("hidden_size"), 32);
    ASSERT_EQ(model->tensors().size(), sample_tensors().size());
    for (const SafeTensor& tensor : sample_tensors()) {
      EXPECT_EQ(model->find(tensor.name)->format_name, tensor.dtype);
      EXPECT_EQ(model->find(tensor.name)->shape, tensor.shape);
      EXPECT_EQ(read_all(*model, tensor.name), tensor.data);
    }
    EXPECT_EQ(model->find("weight")->format, Format::F32);
    EXPECT_EQ(model->read_floats(*model->find("weight")), (std::vector<float>{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(model->read_floats(*model->find("brain")).size(), 4u);
    EXPECT_EQ(model->read_floats(*model->find("empty")).size(), 0u);
    expect_error(ErrorKind::unsupported_model, "position_ids: has the format I64",
                 [&] { model->read_floats(*model->find("position_ids")); });
  }
}

TEST_F(Safetensors, LengthsThatLookLikeOtherFiles) {
  // A safetensors file begins with the length of its header, low byte first. These lengths begin like an HTML file ('<'), a pickle
  // ("\x80\x02") and a JSON file ('{'). The files must load nevertheless.
  for (const std::size_t length : {0x3Cu, 0x280u, 0x7Bu}) {
    std::string header = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    header.resize(length, ' ');
    EXPECT_EQ(open(safetensors_raw(header, floats({2})))->tensors().size(), 1u);
  }
}

TEST_F(Safetensors, Header) {
  refused("", "header length: needs 8 bytes");
  refused(std::string(8, '\0'), "does not begin with '{'");
  refused(std::string(7, '\xFF') + '\x7F', "at most 100000000");
  refused(std::string("\x10\0\0\0\0\0\0\0{", 9), "needs 16 bytes, but only 1");
  refused("version https://git-lfs.github.com/spec/v1", "git lfs pull");
  refused(std::string("PK\x03\x04", 4) + std::string(20, '\0'), "pickle");
  refused_header(" {}", "does not begin with '{'");
  refused_header("{", "not valid JSON");
  refused_header("{}x", "not valid JSON");
  refused_header(std::string("{}\0x", 4), "has a NUL character");
  refused_header("{\"w\":\xFF}", "not valid JSON");
  refused_header("{\"\xFF\":1}", "not valid JSON");
  refused_header("{}", "the tensors end at byte 0 of the data, which has 8 bytes");
  refused_header(R"({"w":)" + std::string(70, '[') + std::string(70, ']') + "}", "is not described as");
  expect_error(ErrorKind::unsupported_model, "no tensors", [&] { open(safetensors_raw("{}", "")); });
}

TEST_F(Safetensors, Tensors) {
  const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return "{\"w\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
  };
  EXPECT_EQ(open(safetensors_raw(entry("\"F32\"", "[2]", "[0,8]"), floats({1, 2})))->tensors().size(), 1u);
  refused_header(entry("\"F99\"", "[2]", "[0,8]"), "tensor w: has the unknown dtype 'F99'");
  refused_header(entry("5", "[2]", "[0,8]"), "is not described as");
  refused_header(entry("[\"F32\"]", "[2]", "[0,8]"), "is not described as");
  refused_header(entry("\"F32\"", "2", "[0,8]"), "is not described as");
  refused_header(entry("\"F32\"", "[[2]]", "[0,8]"), "is not described as");
  refused_header(entry("\"F32\"", "[{}]", "[0,8]"), "is not described as");
  refused_header(entry("\"F32\"", "[-2]", "[0,8]"), "integers from 0");
  refused_header(entry("\"F32\"", "[2.0]", "[0,8]"), "integers from 0");
  refused_header(entry("\"F32\"", "[true]", "[0,8]"), "integers from 0");
  refused_header(entry("\"F32\"", "[9223372036854775808]", "[0,8]"), "integers from 0");
  refused_header(entry("\"F32\"", "[99999999999999999999999]", "[0,8]"), "integers from 0");
  refused_header(entry("\"F32\"", "[1e999]", "[0,8]"), "too large");
  refused_header(entry("\"F32\"", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), "more than 8 dimensions");
  refused_header(entry("\"F32\"", "[4294967296,4294967296]", "[0,8]"), "more than 2^63 values");
  refused_header(entry("\"F32\"", "[4611686018427387904,4]", "[0,0]"), "more than 2^63 values");
  refused_header(entry("\"F32\"", "[3]", "[0,8]"), "has 8 bytes; its shape and dtype F32 ask for 12");
  refused_header(entry("\"F4\"", "[1]", "[0,8]"), "has 8 bytes");
  refused_header(entry("\"F32\"", "[2]", "[0]"), "has 1 data_offsets");
  refused_header(entry("\"F32\"", "[2]", "[0,8,8]"), "has 3 data_offsets");
  refused_header(entry("\"F32\"", "[2]", "[0,9]"), "of the data, which has 8 bytes");
  refused_header(entry("\"F32\"", "[2]", "[8,0]"), "of the data, which has 8 bytes");
  refused_header(entry("\"F32\"", "[1]", "[4,8]"), "holes and overlaps");
  refused_header(entry("\"F32\"", "[1]", "[0,4]"), "the tensors end at byte 4");
  refused_header(R"({"w":{"dtype":"F32","shape":[2]}})", "has no data_offsets");
  refused_header(R"({"w":{"dtype":"F32","data_offsets":[0,8]}})", "has no shape");
  refused_header(R"({"w":{"shape":[2],"data_offsets":[0,8]}})", "has no dtype");
  refused_header(R"({"w":{}})", "has no dtype");
  refused_header(R"({"w":1})", "is not described as");
  refused_header(R"({"w":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "has dtype twice");
  refused_header(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", "unknown key 'x'");
}

TEST_F(Safetensors, TensorsCoverTheDataOnce) {
  const auto two = [](const std::string& name, const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a + R"(},")" + name + R"(":{"dtype":"U8","shape":[4],"data_offsets":)" +
           b + "}}";
  };
  open(safetensors_raw(two("b", "[4,8]", "[0,4]"), "01234567"));  // the order of the data may differ from that of the names
  EXPECT_EQ(read_all(*ModelFile::open(folder_.path()), "a"), "4567");
  refused_header(two("b", "[0,4]", "[0,4]"), "holes and overlaps");
  refused_header(two("b", "[0,4]", "[2,6]"), "holes and overlaps");
  refused_header(two("b", "[0,4]", "[5,9]"), "of the data, which has 8 bytes");
  refused_header(two("a", "[0,4]", "[4,8]"), "tensor a: comes twice");
  refused_header(two("", "[0,4]", "[4,8]"), "a name of 0 bytes");
  refused_header(two(std::string(1025, 'x'), "[0,4]", "[4,8]"), "a name of 1025 bytes");
}

TEST_F(Safetensors, MetadataHoldsStrings) {
  const auto with = [](const std::string& metadata) { return safetensors(sample_tensors(), metadata).bytes; };
  EXPECT_EQ(open(with("{}"))->tensors().size(), 6u);
  refused(with(R"({"a":1})"), "__metadata__: may only hold strings");
  refused(with(R"({"a":"b","a":"c"})"), "has the key 'a' twice");
  refused(with(R"({"a":{"b":"c"}})"), "is not described as");
  refused(with("[]"), "is not described as");
  refused(with(R"({"a":"b"},"__metadata__":{})"), "comes twice");
}

// ---------------------------------------------------------------- folders

TEST_F(Safetensors, Shards) {
  const auto tensors = sample_tensors();
  folder_.write("model-00001-of-00002.safetensors", safetensors({tensors[0], tensors[1], tensors[2]}).bytes);
  folder_.write("model-00002-of-00002.safetensors", safetensors({tensors[3], tensors[4], tensors[5]}).bytes);
  std::string map;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name == "scalar") continue;  // a tensor that the index does not list is not part of the model
    map += (map.empty() ? "\"" : ",\"") + tensors[i].name + "\":\"model-0000" + (i < 3 ? "1" : "2") + "-of-00002.safetensors\"";
  }
  folder_.write("model.safetensors.index.json", "{\"metadata\":{\"total_size\":1,\"x\":[{}]},\"weight_map\":{" + map + "}}");
  for (const std::string& path : {folder_.path(), folder_.path("model-00002-of-00002.safetensors")}) {
    const auto model = ModelFile::open(path);
    EXPECT_EQ(model->tensors().size(), 5u);
    EXPECT_EQ(model->find("scalar"), nullptr);
    for (const SafeTensor& tensor : tensors) {
      if (model->find(tensor.name)) {
        EXPECT_EQ(read_all(*model, tensor.name), tensor.data);
      }
    }
  }
  refused_index("{\"weight_map\":{\"lost\":\"model-00001-of-00002.safetensors\"}}", "weight_map.lost: is said to be in");
  refused_index("{\"weight_map\":{\"weight\":\"model-00001-of-00002.safetensors\"}}", "has no such tensor");
  refused_index("{\"weight_map\":{\"a\":\"gone.safetensors\"}}", "gone.safetensors: cannot be opened", ErrorKind::io);
}

TEST_F(Safetensors, IndexNamesOnlyFilesOfItsFolder) {
  for (const char* name : {"", ".", "..", "../model.safetensors", "/etc/passwd", "/dev/shm/x.safetensors", "a/b.safetensors",
                           "./model.safetensors", "model.bin", "x\\u0000.safetensors", "..\\u002fx.safetensors"}) {
    refused_index(std::string("{\"weight_map\":{\"w\":\"") + name + "\"}}", "is not the name of a .safetensors file");
  }
  refused_index("{\"weight_map\":{\"w\":\"" + std::string(300, 'x') + ".safetensors\"}}", "is not the name");
  refused_index("{}", "weight_map: is missing");
  refused_index("[]", "weight_map: is missing");
  refused_index("5", "weight_map: is missing");
  refused_index("{\"weight_map\":{}}", "missing or empty");
  refused_index("{\"weight_map\":[\"a.safetensors\"]}", "is not an object");
  refused_index("{\"weight_map\":\"a.safetensors\"}", "is not an object");
  refused_index("{\"weight_map\":{\"w\":5}}", "is not an object");
  refused_index("{\"weight_map\":{\"w\":{\"x\":\"a.safetensors\"}}}", "is not an object");
  refused_index("{\"weight_map\":{\"w\":\"a.safetensors\",\"w\":\"b.safetensors\"}}", "weight_map.w: comes twice");
  refused_index("{\"weight_map\":{\"w\":\"a.safetensors\"},\"weight_map\":{}}", "comes twice");
}

TEST_F(Safetensors, FoldersWithoutAModel) {
  const auto refused_folder = [&](const std::string& text) {
    return expect_error(ErrorKind::model_format, text, [&] { ModelFile::open(folder_.path()); });
  };
  refused_folder("has no weights");
  folder_.write("other.safetensors", safetensors(sample_tensors()).bytes);
  refused_folder("(other.safetensors); give the path of one");
  EXPECT_EQ(ModelFile::open(folder_.path("other.safetensors"))->tensors().size(), 6u);
  folder_.write("pytorch_model.bin", "x");
  refused_folder("only as a pickle (pytorch_model.bin)");
  std::filesystem::remove(folder_.path("config.json"));
  refused_folder("no config.json");
  expect_error(ErrorKind::model_format, "no config.json", [&] { ModelFile::open(folder_.path("other.safetensors")); });
  folder_.write("a.gguf", "x");
  refused_folder("holds GGUF files (a.gguf); give the path of one");
}

// ---------------------------------------------------------------- config.json

class ConfigJson : public Safetensors {
 protected:
  std::shared_ptr<const ModelFile> config(const std::string& text) {
    folder_.write("config.json", text);
    return open(safetensors(sample_tensors()).bytes);
  }
  Error refused_config(const std::string& config_text, const std::string& text) {
    return expect_error(ErrorKind::model_format, text, [&] { config(config_text); });
  }
};

TEST_F(ConfigJson, DottedKeys) {
  const auto model = config(R"({"a": 1, "b": -2.5, "c": "x", "d": true, "e": null, "eos_token_id": [1, 2], "architectures": ["A", "B"],
    "rope_scaling": {"factor": 8, "rope_type": "llama3", "inner": {"deep": 3}}, "id2label": {"0": "yes"}, "mixed": [1, 2.5], "empty": [],
    "list": [{"k": 1}, {"k": 2}], "odd": [1, "x", [2, 3]], "flags": [true, false], "big": 18446744073709551615, "nothing": {}})");
  EXPECT_EQ(model->integer("a"), 1);
  EXPECT_EQ(model->number("a"), 1.0);
  EXPECT_EQ(model->number("b"), -2.5);
  EXPECT_EQ(model->string("c"), "x");
  EXPECT_EQ(model->boolean("d"), true);
  EXPECT_TRUE(model->has("e"));
  EXPECT_EQ(model->integer("e"), std::nullopt);  // for getters null is the same as a missing key, but has() returns true
  EXPECT_EQ(model->integer_list("eos_token_id"), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(model->integer_list("a"), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(model->strings("architectures"), (std::vector<std::string>{"A", "B"}));
  EXPECT_EQ(model->strings("c"), (std::vector<std::string>{"x"}));
  EXPECT_EQ(model->number("rope_scaling.factor"), 8.0);
  EXPECT_EQ(model->string("rope_scaling.rope_type"), "llama3");
  EXPECT_EQ(model->integer("rope_scaling.inner.deep"), 3);
  EXPECT_TRUE(model->has("rope_scaling") && model->has("rope_scaling.inner") && !model->has("rope") && model->has("nothing"));
  EXPECT_EQ(model->string("id2label.0"), "yes");
  EXPECT_EQ(model->number_list("mixed"), (std::vector<double>{1, 2.5}));
  EXPECT_EQ(model->strings("empty"), std::vector<std::string>{});
  EXPECT_EQ(model->integer("list.1.k"), 2);
  EXPECT_EQ(model->string("odd.1"), "x");
  EXPECT_EQ(model->integer_list("odd.2"), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(std::get<std::vector<bool>>(*model->value("flags")), (std::vector<bool>{true, false}));
  expect_error(ErrorKind::model_format,
               "odd: is a list that is not all numbers, all strings or all flags; a number or a list of numbers is",
               [&] { model->number_list("odd"); });
  expect_error(ErrorKind::model_format, "list: is a list that is not", [&] { model->integer("list"); });
  expect_error(ErrorKind::model_format, "rope_scaling: is an object; a number is needed", [&] { model->number("rope_scaling"); });
  expect_error(ErrorKind::model_format, "nothing: is an empty object; a string is needed", [&] { model->string("nothing"); });
  expect_error(ErrorKind::model_format, "below 2^63", [&] { model->integer("big"); });
  const auto unnamed = config(R"({"": "x"})");  // found by fuzzing: the message named no field
  EXPECT_EQ(expect_error(ErrorKind::model_format, R"("": is a string; an integer)", [&] { unnamed->integer_list(""); }).field(), R"("")");
  const Error error = expect_error(ErrorKind::model_format, "rope_scaling.rope_type: is a string; a number",
                                   [&] { model->number("rope_scaling.rope_type"); });
  EXPECT_EQ(error.file(), folder_.path("config.json").substr(0, folder_.path().size()) + "config.json");
}

// Python's json module writes infinities in this way. They become numbers that no range allows.
TEST_F(ConfigJson, Infinities) {
  const auto model = config(R"({"limit": [0.0, Infinity], "low": -Infinity, "Infinity": "Infinity \\\" Infinity", "last": Infinity})");
  EXPECT_EQ(model->number_list("limit"), (std::vector<double>{0, 1.79e308}));
  EXPECT_EQ(model->number("low"), -1.79e308);
  EXPECT_EQ(model->string("Infinity"), "Infinity \\\" Infinity");
  EXPECT_EQ(model->number("last"), 1.79e308);
  refused_config("{\"a\": 1Infinity}", "too large");
  refused_config("{\"a\": 0Infinity}", "not valid JSON");
  refused_config("{\"a\": Infinit}", "not valid JSON");
}

TEST_F(ConfigJson, Broken) {
  refused_config("", "not valid JSON");
  refused_config("[]", "is a JSON list");
  refused_config("5", "is not a JSON object");
  refused_config("{\"a\": NaN}", "not valid JSON");
  refused_config("{\"a\": 1e999}", "too large");
  refused_config("{\"a\": 1, \"a\": 2}", "a: this key comes twice");
  refused_config("{\"a\": {\"b\": 1}, \"a.b\": 2}", "a.b: this key comes twice");
  refused_config(R"({"": 1, "": 2})", R"("": this key comes twice)");  // found by fuzzing: the message named no field
  refused_config("{\"a\": \"\xFF\"}", "not valid JSON");
  refused_config("{\"a\": \"\\ud800\"}", "not valid JSON");
  refused_config("{\"a\": 1} {}", "not valid JSON");
  refused_config(std::string("{\"a\": 1}\0 {", 11), "has a NUL character");
  EXPECT_EQ(refused_config("{\"a\":" + std::string(100'000, '['), "nested deeper than 64").offset(), 5u + 63);
  EXPECT_EQ(refused_config("{\"[\\\"{\": [[], {}], \"b\":" + std::string(64, '['), "nested deeper than 64").offset(), 23u + 63);
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  refused_config(deep, "nested deeper than 64");
  refused_config("{\"" + std::string(5000, 'k') + "\": 1}", "a name of more than 1024 bytes");
  refused_config(std::string(17u << 20, ' '), "at most 16777216");
  std::string many = "{\"a\": [0";
  for (int i = 0; i < (1 << 20); ++i) many += ",0";
  EXPECT_EQ(refused_config(many + "]}", "more than 1048576 values").field(), "a.1048576");
  const Error error = refused_config("{\"a\": 1,\n \"b\": x}", "near");
  ASSERT_TRUE(error.offset());
  EXPECT_NEAR(static_cast<double>(*error.offset()), 15, 1);
}

}  // namespace
}  // namespace pumice::files::testing
