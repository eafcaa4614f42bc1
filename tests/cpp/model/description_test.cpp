#include "model/description.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "model/tiny.h"

namespace pumice::model {
namespace {

using files::testing::expect_error;

Description read(const tiny::Model& m, std::optional<Format> quantize = {}) {
  // The folders must stay, because matrices are read from the files after describe() has returned.
  static std::vector<std::unique_ptr<tiny::TempFolder>> alive;
  alive.push_back(std::make_unique<tiny::TempFolder>());
  return describe(tiny::open(m, *alive.back()), {.quantize = quantize});
}

std::vector<float> values_of(const Matrix& m) {
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(m.rows * row_bytes(m.format, m.cols)));
  m.read(0, m.rows, packed.data());
  std::vector<float> floats(static_cast<std::size_t>(m.rows * m.cols));
  for (std::int64_t r = 0; r < m.rows; ++r)
    unpack(m.format, packed.data() + r * row_bytes(m.format, m.cols), m.cols, floats.data() + r * m.cols);
  return floats;
}

bool optional_tensor(const std::string& name) {
  return name == "lm_head.weight" || name == "output.weight" || name == "classifier.weight" || name == "cls.weight" ||
         name == "cls.output.weight" || name == "token_types.weight";
}

TEST(Description, AnEncodersLayersMayBeRounded) {
  const auto rounded = [](const std::string& name, Compute compute, std::optional<Format> quantize) {
    tiny::TempFolder folder;
    std::vector<std::string> names;
    for (const Matrix& m : describe(tiny::open(tiny::make(name), folder), {.quantize = quantize, .compute = compute}).weights.matrices) {
      if (m.rounding != Rounding::none) names.push_back(m.name);
    }
    return names;
  };
  const auto names = rounded("bert", Compute::automatic, {});
  EXPECT_EQ(names.size(), 12u);  // q, k, v, attention output, up and down of two layers
  for (const std::string& name : names) EXPECT_NE(name.find("encoder.layer."), std::string::npos) << name;
  EXPECT_TRUE(rounded("bert", Compute::float32, {}).empty());
  EXPECT_EQ(rounded("bert", Compute::automatic, Format::Q8_0), names);
  EXPECT_TRUE(rounded("llama", Compute::automatic, {}).empty());
}

// With quantize="q8_0", all matrices of an encoder's layers but v may be rounded to 8-bit codes (Rounding::bytes), and a backend that
// rounds them must be able to read the original floats.
TEST(Description, AnEncodersMatricesSayHowFarTheyMayBeRounded) {
  const Description d = read(tiny::make("bert"), Format::Q8_0);
  for (std::size_t layer = 0; layer < d.layers.size(); ++layer) {
    for (const Role role : {Role::q, Role::k, Role::v, Role::attn_out, Role::up, Role::down}) {
      const Matrix& m = d.matrix(d.at(layer, role).matrix);
      EXPECT_EQ(m.rounding, role == Role::v ? Rounding::floats : Rounding::bytes) << m.name;
      ASSERT_TRUE(m.read_floats) << m.name;
      std::vector<float> floats(static_cast<std::size_t>(m.rows * m.cols)), packed = values_of(m);
      m.read_floats(0, m.rows, floats.data());
      for (std::size_t i = 0; i < floats.size(); ++i) EXPECT_NEAR(floats[i], packed[i], 0.02f) << m.name;
    }
  }
  for (const auto& quantize : {std::optional<Format>{}, std::optional{Format::Q4_0}})
    for (const Matrix& m : read(tiny::make("bert"), quantize).weights.matrices) EXPECT_FALSE(m.read_floats) << m.name;
  for (const Matrix& m : read(tiny::make("llama"), Format::Q8_0).weights.matrices) EXPECT_FALSE(m.read_floats) << m.name;
}

TEST(Description, EveryTensorIsTakenForWhatItIs) {
  for (const std::string& name : tiny::every()) {
    SCOPED_TRACE(name);
    tiny::Model m = tiny::make(name);
    const Description d = read(m);
    EXPECT_EQ(d.vocab_size, tiny::kVocab);
    EXPECT_EQ(d.labels, name == "bert" ? tiny::kLabels : 0);
    EXPECT_EQ(d.layers.size(), 2u);
    EXPECT_TRUE(d.notes.empty());
    EXPECT_EQ(d.weights.matrices.size() + d.weights.vectors.size(), m.tensors.size());
    std::uint64_t parameters = 0;
    for (const tiny::Tensor& t : m.tensors) {
      parameters += static_cast<std::uint64_t>(std::accumulate(t.shape.begin(), t.shape.end(), std::int64_t{1}, std::multiplies<>()));
    }
    EXPECT_EQ(d.parameters, parameters);
    for (const Matrix& matrix : d.weights.matrices) EXPECT_EQ(values_of(matrix), tiny::values(m.tensor(matrix.name))) << matrix.name;
    const float offset = name == "gemma3" ? 1.0f : 0.0f;  // Gemma's safetensors files store norm weights minus 1
    for (const Vector& vector : d.weights.vectors) {
      std::vector<float> expected = tiny::values(m.tensor(vector.name));
      for (float& w : expected) w += offset;
      EXPECT_EQ(vector.values, expected) << vector.name;
    }
    for (std::size_t layer = 0; layer < 2; ++layer) {
      const std::string number = std::to_string(layer);
      for (const Role role : {Role::q, Role::k, Role::v, Role::attn_out, Role::up, Role::down}) {
        EXPECT_NE(d.matrix(d.at(layer, role).matrix).name.find("." + number + "."), std::string::npos);
      }
      EXPECT_NE(d.at(layer, Role::k).matrix, d.at(layer, Role::v).matrix);
    }
  }
}

TEST(Description, AMissingTensorIsNamedWithItsNeighbour) {
  for (const std::string& name : tiny::every()) {
    const tiny::Model whole = tiny::make(name);
    for (const tiny::Tensor& t : whole.tensors) {
      tiny::Model m = whole;
      m.erase(t.name);
      if (optional_tensor(t.name)) {
        EXPECT_NO_THROW(read(m)) << t.name;
        continue;
      }
      const Error error = expect_error(ErrorKind::model_format, "is missing", [&] { read(m); });
      const std::string said = error.what();
      // The error names these tensors without the prefix "bert.": the tensor by which the prefix is found, and those of the pooler, which
      // may lie outside the prefix.
      std::string asked = t.name;
      if (asked.ends_with("word_embeddings.weight") || asked.find("pooler") != std::string::npos) asked = asked.substr(5);
      EXPECT_NE(said.find(asked), std::string::npos) << said;
      EXPECT_NE(said.find("the nearest name is "), std::string::npos) << said;
      EXPECT_TRUE(t.name.ends_with(error.field())) << error.field();
      EXPECT_FALSE(error.file().empty());
    }
  }
  tiny::Model m = tiny::make("llama", 1);
  m.tensor("model.layers.0.mlp.up_proj.weight").name = "model.layers.0.mlp.upp_proj.weight";
  expect_error(ErrorKind::model_format,
               "model.layers.0.mlp.up_proj.weight is missing; the nearest name is model.layers.0.mlp.upp_proj.weight", [&] { read(m); });
}

TEST(Description, LayersThatTheConfigurationDoesNotCountAreNamed) {
  struct Case {
    const char *model, *key, *tensor;
  };
  for (const Case& c : {Case{"llama", "num_hidden_layers", "model.layers.2."}, Case{"bert", "num_hidden_layers", "bert.encoder.layer.2."},
                        Case{"llama.gguf", "llama.block_count", "blk.2."}, Case{"bert.gguf", "bert.block_count", "blk.2."}}) {
    SCOPED_TRACE(c.model);
    tiny::Model m = tiny::make(c.model, 3);
    m.config[c.key] = 2;
    const Error error = expect_error(ErrorKind::model_format, str(c.key, " is 2, and there is a tensor ", c.tensor), [&] { read(m); });
    EXPECT_EQ(error.field(), c.key);
    EXPECT_NE(std::string(error.what()).find(str("need a ", c.key, " of 3")), std::string::npos) << error.what();
  }
  tiny::Model guessing = tiny::make("llama", 3);  // its last layer predicts a second token and does not count
  guessing.config["num_hidden_layers"] = 2;
  guessing.config["num_nextn_predict_layers"] = 1;
  EXPECT_EQ(read(guessing).layers.size(), 2u);
  guessing.config["num_nextn_predict_layers"] = -1;
  expect_error(ErrorKind::model_format, "num_nextn_predict_layers", [&] { read(guessing); });
  // The layer numbers of a vision tower, which may be larger than the model's own, must not change the number of layers.
  tiny::Model seeing = tiny::make("llama", 2);
  seeing.tensors.push_back({"model.vision_tower.layers.7.norm.weight", {4}});
  seeing.tensors.push_back({"model.layers.seven.weight", {4}});
  EXPECT_EQ(read(seeing).layers.size(), 2u);
}

TEST(Description, AWrongShapeIsNamedWithTheRightOne) {
  for (const std::string& name : tiny::every()) {
    const tiny::Model whole = tiny::make(name);
    for (std::size_t i = 0; i < whole.tensors.size(); ++i) {
      const std::vector<std::int64_t> right = whole.tensors[i].shape;
      std::vector<std::vector<std::int64_t>> wrong = {{}, {1}};
      wrong.push_back(right), wrong.back().push_back(1);  // has one more dimension
      wrong.push_back(right), wrong.back().back() += 8;   // has longer rows
      const std::string& tensor = whole.tensors[i].name;
      const bool any_rows = tensor.find("embd") != std::string::npos || tensor.find("embed") != std::string::npos ||
                            tensor.find("position") != std::string::npos || tensor.find("types") != std::string::npos ||
                            tensor.rfind("classifier", 0) == 0;
      if (right.size() == 2 && !any_rows) wrong.push_back({right[0] + 1, right[1]}), wrong.push_back({right[0] - 1, right[1]});
      for (const auto& shape : wrong) {
        if (whole.gguf && shape.empty()) continue;  // GGUF has no scalars
        tiny::Model m = whole;
        m.tensors[i].shape = shape;
        const Error error = expect_error(ErrorKind::model_format, "has shape", [&] { read(m); });
        const std::string said = error.what();
        EXPECT_EQ(error.field(), tensor) << said;
        EXPECT_NE(said.find("needs"), std::string::npos) << said;
      }
    }
  }
}

TEST(Description, TheHeadIsTheEmbeddingUnlessThereIsOne) {
  for (const char* name : {"llama", "gemma3", "llama.gguf", "gemma3.gguf"}) {
    SCOPED_TRACE(name);
    tiny::Model m = tiny::make(name);
    const bool own = name != std::string("gemma3") && name != std::string("gemma3.gguf");
    const Description d = read(m);
    EXPECT_EQ(d.global(Role::head).matrix != d.global(Role::token_embedding).matrix, own);
    if (!own) continue;
    m.erase(m.gguf ? "output.weight" : "lm_head.weight");
    const Description tied = read(m);
    EXPECT_EQ(tied.global(Role::head).matrix, tied.global(Role::token_embedding).matrix);
    EXPECT_EQ(tied.parameters + tiny::kVocab * tiny::kHidden, d.parameters);
  }
  tiny::Model m = tiny::make("llama");
  m.config["tie_word_embeddings"] = false;
  EXPECT_NO_THROW(read(m));
  m.erase("lm_head.weight");
  expect_error(ErrorKind::model_format, "lm_head.weight is missing", [&] { read(m); });
  EXPECT_EQ(read(tiny::make("bert")).global(Role::head).matrix, MatrixId::none);
}

TEST(Description, OtherNamesOfTheSameTensors) {
  // A model that was saved without the wrapper of a task (no prefix "bert."), with the names of LayerNorm weights of 2018.
  tiny::Model bare = tiny::make("bert");
  for (tiny::Tensor& t : bare.tensors) {
    if (t.name.rfind("bert.", 0) == 0) t.name = t.name.substr(5);
    if (t.name.ends_with("LayerNorm.weight")) t.name.replace(t.name.size() - 6, 6, "gamma");
    if (t.name.ends_with("LayerNorm.bias")) t.name.replace(t.name.size() - 4, 4, "beta");
  }
  EXPECT_EQ(read(bare).parameters, read(tiny::make("bert")).parameters);
  for (const char* prefix : {"", "model.language_model.", "language_model.model."}) {
    tiny::Model m = tiny::make("gemma3");
    for (tiny::Tensor& t : m.tensors) t.name = prefix + t.name.substr(6);
    EXPECT_EQ(read(m).layers.size(), 2u) << prefix;
  }
}

TEST(Description, FormatsThatAreNotComputedWith) {
  tiny::Model gguf = tiny::make("llama.gguf");
  gguf.config["llama.feed_forward_length"] = 256;
  for (const char* part : {"gate", "up"}) {
    for (const char* layer : {"0", "1"}) gguf.tensor(std::string("blk.") + layer + ".ffn_" + part + ".weight").shape[0] = 256;
  }
  for (const char* layer : {"0", "1"}) gguf.tensor(std::string("blk.") + layer + ".ffn_down.weight").shape[1] = 256;
  EXPECT_NO_THROW(read(gguf));
  gguf.tensor("blk.1.ffn_down.weight").gguf_id = 15;
  const Error error = expect_error(ErrorKind::unsupported_model, "Q8_K", [&] { read(gguf); });
  EXPECT_EQ(error.field(), "blk.1.ffn_down.weight");

  tiny::Model folder = tiny::make("llama");
  folder.tensor("model.layers.0.mlp.up_proj.weight").dtype = "F8_E4M3";
  expect_error(ErrorKind::unsupported_model, "F8_E4M3", [&] { read(folder); });
  folder = tiny::make("llama");
  folder.tensor("model.norm.weight").dtype = "I8";
  EXPECT_EQ(expect_error(ErrorKind::unsupported_model, "I8", [&] { read(folder); }).field(), "model.norm.weight");
  folder = tiny::make("llama");
  for (const char* name : {"model.norm.weight", "model.layers.0.mlp.up_proj.weight"}) folder.tensor(name).format = Format::BF16;
  const Description d = read(folder);
  EXPECT_EQ(d.matrix(d.at(0, Role::up).matrix).format, Format::BF16);
}

TEST(Description, QuantizedWhileItIsRead) {
  for (const Format to : {Format::Q8_0, Format::Q4_0}) {
    for (const char* name : {"llama", "gemma3", "bert", "llama.gguf"}) {
      SCOPED_TRACE(name);
      tiny::Model m = tiny::make(name);
      const Description d = read(m, to);
      const auto format = [&](const Parameter& p) { return d.matrix(p.matrix).format; };
      for (std::size_t layer = 0; layer < 2; ++layer) {
        for (const Role role : {Role::q, Role::k, Role::v, Role::attn_out, Role::gate, Role::up, Role::down}) {
          if (d.at(layer, role).present()) {
            EXPECT_EQ(format(d.at(layer, role)), to);
          }
        }
      }
      const bool tied = d.global(Role::head).matrix == d.global(Role::token_embedding).matrix;
      EXPECT_EQ(format(d.global(Role::token_embedding)), tied ? to : Format::F32);
      if (d.global(Role::head).present()) {
        EXPECT_EQ(format(d.global(Role::head)), to);
      }
      for (const Role role : {Role::position_embedding, Role::type_embedding, Role::head_dense, Role::classifier}) {
        if (d.global(role).present()) {
          EXPECT_EQ(format(d.global(role)), Format::F32);
        }
      }
      // A note counts the matrices whose rounding a backend may choose.
      const auto chosen = [](const Matrix& matrix) { return matrix.read_floats != nullptr; };
      EXPECT_EQ(d.notes.size(), std::ranges::any_of(d.weights.matrices, chosen) ? 1u : 0u);
      for (const Matrix& matrix : d.weights.matrices) {  // each row must be what pack() returns
        if (matrix.format == Format::F32) continue;
        std::vector<float> expected = tiny::values(m.tensor(matrix.name));
        std::vector<std::uint8_t> packed(static_cast<std::size_t>(row_bytes(to, matrix.cols)));
        for (std::int64_t r = 0; r < matrix.rows; ++r) {
          pack(to, expected.data() + r * matrix.cols, matrix.cols, packed.data());
          unpack(to, packed.data(), matrix.cols, expected.data() + r * matrix.cols);
        }
        EXPECT_EQ(values_of(matrix), expected) << matrix.name;
      }
    }
  }
  const Description notes = read(tiny::make("llama"), Format::Q4_K);  // rows of 32 and 64 are not whole blocks of 256
  EXPECT_EQ(notes.notes.size(), 2 * 7 + 1u);
  EXPECT_NE(notes.notes[0].find("stays F32"), std::string::npos) << notes.notes[0];
  for (const Matrix& matrix : notes.weights.matrices) EXPECT_EQ(matrix.format, Format::F32);

  tiny::Model packed = tiny::make("llama.gguf");  // matrices that are already quantized must stay as they are
  packed.tensor("blk.0.ffn_up.weight").format = Format::Q4_0;
  const Description kept = read(packed, Format::Q8_0);
  EXPECT_EQ(kept.matrix(kept.at(0, Role::up).matrix).format, Format::Q4_0);
  expect_error(ErrorKind::invalid_argument, "MXFP4 cannot be written", [] { read(tiny::make("llama"), Format::MXFP4); });
}

TEST(Description, RopeFactorsOfTheFile) {
  tiny::Model m = tiny::make("llama.gguf");
  const std::vector<float> plain = read(m).config.ropes[0].inv_freq;
  m.tensors.push_back({.name = "rope_freqs.weight", .shape = {5}});
  expect_error(ErrorKind::model_format, "[4]", [&] { read(m); });
  m.tensors.back().shape = {4};
  const auto with = [&](const std::vector<float>& factors) {
    const tiny::TempFolder folder;
    std::ifstream in(tiny::write(m, folder), std::ios::binary);
    std::string file(std::istreambuf_iterator<char>(in), {});
    file.replace(file.find(tiny::bytes(m.tensors.back())), 16, files::testing::floats(factors));
    return describe(files::ModelFile::open(folder.write("patched.gguf", file)), {}).config.ropes[0].inv_freq;
  };
  const std::vector<float> factors = {1, 2, 8, 32}, scaled = with(factors);
  for (std::size_t j = 0; j < 4; ++j) EXPECT_FLOAT_EQ(scaled[j], plain[j] / factors[j]);
  for (const float bad : {0.0f, -1.0f, 1e-20f})
    expect_error(ErrorKind::model_format, "rope_freqs.weight[2]", [&] { with({1, 1, bad, 1}); });
  expect_error(ErrorKind::numeric, "rope_freqs.weight", [&] { with({1, 1, std::nanf(""), 1}); });
}

TEST(Description, ContextIsWhatThePositionsHold) {
  tiny::Model m = tiny::make("bert");
  m.config["max_position_embeddings"] = 4096;
  EXPECT_EQ(read(m).config.n_ctx, tiny::kPositions);
  m.config["max_position_embeddings"] = 16;
  EXPECT_EQ(read(m).config.n_ctx, 16);
}

TEST(Description, BiasesWhereAFamilyCanHaveThem) {
  tiny::Model m = tiny::make("llama");
  for (const char* layer : {"0", "1"})
    m.tensors.push_back({.name = std::string("model.layers.") + layer + ".mlp.gate_proj.bias", .shape = {tiny::kFfn}});
  EXPECT_NE(read(m).at(0, Role::gate).bias, VectorId::none);
  EXPECT_NE(read(m).at(1, Role::gate).bias, VectorId::none);
  EXPECT_EQ(read(m).at(1, Role::up).bias, VectorId::none);
  m.tensors.pop_back();  // the bias of layer 1 is missing
  EXPECT_EQ(expect_error(ErrorKind::model_format, "is missing", [&] { read(m); }).field(), "model.layers.1.mlp.gate_proj.bias");
  m.tensors.pop_back();
  EXPECT_NO_THROW(read(m));
  m.config["attention_bias"] = true;  // now each layer must have biases of q, k and v
  EXPECT_EQ(expect_error(ErrorKind::model_format, "is missing", [&] { read(m); }).field(), "model.layers.0.self_attn.q_proj.bias");
}

// For any family, llama.cpp's converter can write q, k and v as one tensor. Its rows must be the same as those of three tensors.
TEST(Description, FusedTensorsGiveTheSameRows) {
  const tiny::Model plain = tiny::make("llama.gguf");
  const Description apart = read(plain);
  tiny::Model m = plain;
  for (const char* layer : {"0", "1"}) {
    const std::string at = std::string("blk.") + layer + ".attn_";
    for (const char* part : {"q", "k", "v"}) m.erase(at + part + ".weight");
    m.tensors.push_back({.name = at + "qkv.weight", .shape = {(tiny::kHeads + 2 * tiny::kKvHeads) * tiny::kHeadDim, tiny::kHidden}});
  }
  const Description fused = read(m);
  const std::vector<float> all = tiny::values(m.tensor("blk.1.attn_qkv.weight"));
  std::size_t at = 0;
  for (const Role role : {Role::q, Role::k, Role::v}) {
    const Matrix& matrix = fused.matrix(fused.at(1, role).matrix);
    EXPECT_EQ(matrix.rows, apart.matrix(apart.at(1, role).matrix).rows);
    const std::vector<float> rows = values_of(matrix);
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), all.begin() + static_cast<std::ptrdiff_t>(at)));
    at += rows.size();
  }
  EXPECT_EQ(at, all.size());
  EXPECT_EQ(fused.parameters, apart.parameters);
  m.tensor("blk.1.attn_qkv.weight").shape[0] += 8;
  EXPECT_EQ(expect_error(ErrorKind::model_format, "has shape", [&] { read(m); }).field(), "blk.1.attn_qkv.weight");
}

}  // namespace
}  // namespace pumice::model
