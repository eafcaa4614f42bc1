#include "model/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "model/family.h"
#include "model/mixers/places.h"
#include "model/positions.h"
#include "model/tiny.h"

namespace pumice::model::config_test {
namespace {

using files::testing::expect_error;
using tiny::Json;

Config read(const tiny::Model& m) {
  const tiny::TempFolder folder;
  return read_config(*tiny::open(m, folder));
}
// Reads a folder whose config.json has the keys that every model needs and the keys of `config`.
Config read_folder(Json config) {
  config.update(Json{{"hidden_size", 64}, {"intermediate_size", 160}});
  if (!config.contains("num_hidden_layers")) config["num_hidden_layers"] = 2;
  return read({.gguf = false, .config = config, .tensors = {}});
}

const Attention& attention(const Config& c) { return c.layers.at(0).attention(); }
const FeedForward& feed_forward(const Config& c) { return c.layers.at(0).feed_forward(); }

std::vector<int> windows(const Config& c) {
  std::vector<int> list;
  for (const Layer& layer : c.layers) list.push_back(layer.attention().window);
  return list;
}

double base_of(const RopeTable& rope) {  // solves inv_freq[1] = base^(-2 / dims) for the base
  return std::pow(static_cast<double>(rope.inv_freq.at(1)), -static_cast<double>(rope.inv_freq.size()));
}

TEST(Config, WhatEveryFileSays) {
  struct Expected {
    const char* name;
    int kv_heads, n_ctx;
    Activation activation;
    std::vector<int> windows;
    std::size_t ropes;
    bool interleaved;
    double attention_scale, embedding_scale;
    std::optional<PoolKind> pooling;
  };
  const double by_head = 1 / std::sqrt(8.0), root = std::sqrt(32.0);
  const std::vector<Expected> table = {
      {"llama", 2, 512, Activation::silu, {0, 0}, 1, false, by_head, 1, {}},
      {"mistral", 2, 512, Activation::silu, {24, 24}, 1, false, by_head, 1, {}},
      {"gemma3", 2, 512, Activation::gelu_tanh, {24, 0}, 2, false, 0.25, root, {}},
      {"bert", 4, 64, Activation::gelu, {0, 0}, 0, false, by_head, 1, {}},
      {"llama.gguf", 2, 512, Activation::silu, {0, 0}, 1, true, by_head, 1, {}},
      {"gemma3.gguf", 2, 512, Activation::gelu_tanh, {24, 24}, 2, false, by_head, root, {}},
      {"bert.gguf", 4, 64, Activation::gelu, {0, 0}, 0, false, by_head, 1, PoolKind::cls},
  };
  ASSERT_EQ(table.size(), tiny::every().size());
  for (const Expected& e : table) {
    SCOPED_TRACE(e.name);
    const Config c = read(tiny::make(e.name));
    EXPECT_EQ(c.family->name, std::string(e.name).substr(0, std::string(e.name).find('.')));
    EXPECT_EQ(c.hidden_size, 32);
    EXPECT_EQ(attention(c).heads, 4);
    EXPECT_EQ(attention(c).kv_heads, e.kv_heads);
    EXPECT_EQ(attention(c).head_dim, 8);
    EXPECT_EQ(feed_forward(c).width, 64);
    EXPECT_EQ(c.n_ctx, e.n_ctx);
    EXPECT_FLOAT_EQ(c.eps, 1e-5f);
    EXPECT_EQ(feed_forward(c).activation, e.activation);
    EXPECT_FLOAT_EQ(attention(c).scale, static_cast<float>(e.attention_scale));
    EXPECT_FLOAT_EQ(c.embedding_scale, static_cast<float>(e.embedding_scale));
    EXPECT_EQ(attention(c).softcap, 0);
    EXPECT_EQ(windows(c), e.windows);
    ASSERT_EQ(c.ropes.size(), e.ropes);
    EXPECT_EQ(c.pooling, e.pooling);
    if (e.ropes > 0) {
      EXPECT_EQ(c.ropes[0].inv_freq.size(), 4u);
      EXPECT_EQ(c.ropes[0].interleaved, e.interleaved);
      EXPECT_NEAR(base_of(c.ropes[0]) / 5e5, 1, 1e-5);
    }
    if (e.ropes > 1) {
      EXPECT_NEAR(base_of(c.ropes[1]) / 1e4, 1, 1e-5);
    }
  }
}

// transformers writes no key whose value is the default, and old files lack newer keys. A missing key must mean transformers' default.
TEST(Config, DefaultsAreThoseOfTransformers) {
  const Config llama = read_folder({{"model_type", "llama"}, {"num_attention_heads", 4}});
  EXPECT_EQ(attention(llama).kv_heads, 4);
  EXPECT_EQ(attention(llama).head_dim, 16);
  EXPECT_EQ(llama.n_ctx, 2048);
  EXPECT_FLOAT_EQ(llama.eps, 1e-6f);
  EXPECT_EQ(feed_forward(llama).activation, Activation::silu);
  EXPECT_NEAR(base_of(llama.ropes[0]), 1e4, 0.1);
  EXPECT_EQ(windows(llama), (std::vector{0, 0}));

  const Json mistral = {{"model_type", "mistral"}, {"num_attention_heads", 8}};
  const Config silent = read_folder(mistral);
  EXPECT_EQ(attention(silent).kv_heads, 8);
  EXPECT_EQ(silent.n_ctx, 131072);
  EXPECT_EQ(windows(silent), (std::vector{4096, 4096}));
  Json none = mistral;
  none["sliding_window"] = nullptr;
  EXPECT_EQ(windows(read_folder(none)), (std::vector{0, 0}));
  none["num_key_value_heads"] = nullptr;
  EXPECT_EQ(attention(read_folder(none)).kv_heads, 8);
  none["max_position_embeddings"] = 2048;
  none["sliding_window"] = 4096;  // a window larger than the context counts as none
  EXPECT_EQ(windows(read_folder(none)), (std::vector{0, 0}));

  const Config gemma = read_folder({{"model_type", "gemma3_text"}, {"num_hidden_layers", 7}});
  EXPECT_EQ(attention(gemma).heads, 8);
  EXPECT_EQ(attention(gemma).kv_heads, 4);
  EXPECT_EQ(attention(gemma).head_dim, 256);
  EXPECT_EQ(gemma.n_ctx, 131072);
  EXPECT_FLOAT_EQ(gemma.eps, 1e-6f);
  EXPECT_EQ(feed_forward(gemma).activation, Activation::gelu_tanh);
  EXPECT_FLOAT_EQ(attention(gemma).scale, 1.0f / 16);
  EXPECT_FLOAT_EQ(gemma.embedding_scale, 8);
  EXPECT_EQ(windows(gemma), (std::vector{4096, 4096, 4096, 4096, 4096, 0, 4096}));
  EXPECT_NEAR(base_of(gemma.ropes[0]) / 1e6, 1, 1e-4);
  EXPECT_NEAR(base_of(gemma.ropes[1]) / 1e4, 1, 1e-4);
  EXPECT_EQ(gemma.layers[0].attention().rope, 1);
  EXPECT_EQ(gemma.layers[5].attention().rope, 0);
  // Gemma's query_pre_attn_scalar is 256 by default, whatever head_dim is.
  EXPECT_FLOAT_EQ(attention(read_folder({{"model_type", "gemma3_text"}, {"head_dim", 64}})).scale, 1.0f / 16);

  const Config bert = read_folder({{"model_type", "bert"}, {"num_attention_heads", 4}});
  EXPECT_EQ(bert.n_ctx, 512);
  EXPECT_FLOAT_EQ(bert.eps, 1e-12f);
  EXPECT_EQ(feed_forward(bert).activation, Activation::gelu);
  EXPECT_TRUE(bert.ropes.empty());
}

TEST(Config, Variants) {
  // The language model of a multimodal folder (text_config) must be read like a model of its own.
  Json inner = {{"hidden_size", 64},
                {"intermediate_size", 128},
                {"num_hidden_layers", 6},
                {"sliding_window", 512},
                {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}};
  const Config multimodal = read({.gguf = false, .config = {{"model_type", "gemma3"}, {"text_config", inner}}, .tensors = {}});
  EXPECT_EQ(multimodal.hidden_size, 64);
  EXPECT_EQ(windows(multimodal), (std::vector{512, 512, 512, 512, 512, 0}));
  EXPECT_FLOAT_EQ(multimodal.ropes[0].inv_freq[0], 1 / 8.0f);
  EXPECT_FLOAT_EQ(multimodal.ropes[1].inv_freq[0], 1);  // the rope of layers with a window is never scaled

  // transformers 5 writes rope_parameters, which has an object for each layer type if they differ, and names the layers' types in
  // layer_types.
  Json types = {{"model_type", "gemma3_text"},
                {"num_hidden_layers", 3},
                {"layer_types", {"full_attention", "sliding_attention", "full_attention"}},
                {"rope_parameters",
                 {{"full_attention", {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 2e5}}},
                  {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 3e4}}}}}};
  const Config five = read_folder(types);
  EXPECT_EQ(windows(five), (std::vector{0, 4096, 0}));
  EXPECT_FLOAT_EQ(five.ropes[0].inv_freq[0], 0.5f);
  EXPECT_NEAR(std::pow(2 * five.ropes[0].inv_freq[1], -128.0) / 2e5, 1, 1e-4);
  EXPECT_NEAR(base_of(five.ropes[1]) / 3e4, 1, 1e-4);

  const Config partial = read_folder({{"model_type", "phi3"}, {"num_attention_heads", 4}, {"partial_rotary_factor", 0.5}});
  EXPECT_EQ(partial.ropes[0].inv_freq.size(), 4u);
  const Config capped = read_folder(
      {{"model_type", "gemma2"}, {"num_attention_heads", 4}, {"attn_logit_softcapping", 40.0}, {"final_logit_softcapping", 20.0}});
  EXPECT_FLOAT_EQ(attention(capped).softcap, 40);
  EXPECT_FLOAT_EQ(capped.logit_softcap, 20);
  // Keys that the family does not have must be ignored.
  const Config llama = read_folder({{"model_type", "llama"},
                                    {"num_attention_heads", 4},
                                    {"partial_rotary_factor", 0.5},
                                    {"attn_logit_softcapping", 50.0},
                                    {"final_logit_softcapping", 30.0}});
  EXPECT_EQ(llama.ropes[0].inv_freq.size(), 8u);
  EXPECT_EQ(attention(llama).softcap, 0);
  EXPECT_EQ(llama.logit_softcap, 0);
  for (const auto& [said, meant] : std::vector<std::pair<const char*, Activation>>{{"gelu", Activation::gelu},
                                                                                   {"gelu_new", Activation::gelu_tanh},
                                                                                   {"gelu_pytorch_tanh", Activation::gelu_tanh},
                                                                                   {"silu", Activation::silu},
                                                                                   {"swish", Activation::silu},
                                                                                   {"relu", Activation::relu}}) {
    EXPECT_EQ(feed_forward(read_folder({{"model_type", "llama"}, {"num_attention_heads", 4}, {"hidden_act", said}})).activation, meant)
        << said;
  }
  for (const auto& [said, meant] :
       std::vector<std::pair<int, std::optional<PoolKind>>>{{0, {}}, {1, PoolKind::mean}, {2, PoolKind::cls}, {3, PoolKind::last}}) {
    tiny::Model bert = tiny::make("bert.gguf");
    bert.config["bert.pooling_type"] = said;
    EXPECT_EQ(read(bert).pooling, meant) << said;
  }
}

// ---------------------------------------------------------------- rope scaling, each as its paper writes it
constexpr double kTheta = 5e5;
constexpr int kDims = 64;
double plain(int j) { return std::pow(kTheta, -2.0 * j / kDims); }

Config scaled(Json scaling, const char* under = "rope_scaling") {
  return read_folder({{"model_type", "llama"},
                      {"num_attention_heads", 1},
                      {"head_dim", kDims},
                      {"rope_theta", kTheta},
                      {"max_position_embeddings", 8192},
                      {under, scaling}});
}
Config scaled_gguf(Json keys) {
  tiny::Model m = tiny::make("llama.gguf");
  m.config.update(Json{{"llama.attention.key_length", kDims},
                       {"llama.attention.value_length", kDims},
                       {"llama.context_length", 8192},
                       {"llama.rope.freq_base", kTheta}});
  m.config.update(keys);
  return read(m);
}
void expect_frequencies(const RopeTable& rope, const std::function<double(int)>& expected) {
  ASSERT_EQ(rope.inv_freq.size(), static_cast<std::size_t>(kDims / 2));
  for (int j = 0; j < kDims / 2; ++j) EXPECT_NEAR(rope.inv_freq[static_cast<std::size_t>(j)] / expected(j), 1, 2e-6) << j;
}

TEST(RopeScaling, Linear) {  // Chen et al. 2023: position m becomes m / s
  const auto expected = [](int j) { return plain(j) / 8; };
  for (const char* under : {"rope_scaling", "rope_parameters"}) {
    for (const char* key : {"rope_type", "type"}) {
      Json scaling = {{key, "linear"}, {"factor", 8.0}};
      if (under == std::string("rope_parameters")) scaling["rope_theta"] = kTheta;
      expect_frequencies(scaled(scaling, under).ropes[0], expected);
    }
  }
  expect_frequencies(scaled_gguf({{"llama.rope.scaling.type", "linear"}, {"llama.rope.scaling.factor", 8.0}}).ropes[0], expected);
  // In llama.cpp's files a factor without a type means linear scaling. Files from before 2023-11 name the factor scale_linear.
  expect_frequencies(scaled_gguf({{"llama.rope.scaling.factor", 8.0}}).ropes[0], expected);
  expect_frequencies(scaled_gguf({{"llama.rope.scale_linear", 8.0}}).ropes[0], expected);
  expect_frequencies(scaled_gguf({{"llama.rope.scaling.type", "none"}, {"llama.rope.scaling.factor", 8.0}}).ropes[0], plain);
  expect_frequencies(scaled_gguf(Json::object()).ropes[0], plain);
  expect_frequencies(scaled(nullptr).ropes[0], plain);
  expect_frequencies(scaled(Json::object()).ropes[0], plain);
  EXPECT_EQ(scaled(nullptr).ropes[0].magnitude, 1);
}

TEST(RopeScaling, Llama3) {  // the formula of the reference code of Grattafiori et al. 2024
  const double context = 1024, low = 1, high = 4, factor = 32;
  const Config c = scaled({{"rope_type", "llama3"},
                           {"factor", factor},
                           {"low_freq_factor", low},
                           {"high_freq_factor", high},
                           {"original_max_position_embeddings", 1024}});
  int kept = 0, blended = 0, divided = 0;
  expect_frequencies(c.ropes[0], [&](int j) {
    const double f = plain(j), wavelength = 2 * std::numbers::pi / f;
    if (wavelength < context / high) return ++kept, f;
    if (wavelength > context / low) return ++divided, f / factor;
    const double smooth = (context / wavelength - low) / (high - low);
    return ++blended, (1 - smooth) * f / factor + smooth * f;
  });
  EXPECT_GT(kept, 3);
  EXPECT_GT(blended, 1);
  EXPECT_GT(divided, 3);
  EXPECT_EQ(c.ropes[0].magnitude, 1);
}

TEST(RopeScaling, Yarn) {  // Peng et al. 2023, sections 3.2 to 3.4; the ramp's ends are rounded as in the authors' code
  const double context = 2048, factor = 4, beta_fast = 32, beta_slow = 1;
  const auto dimension_of = [&](double turns) {
    return kDims * std::log(context / (2 * std::numbers::pi * turns)) / (2 * std::log(kTheta));
  };
  const double first = std::floor(dimension_of(beta_fast)), last = std::ceil(dimension_of(beta_slow));
  const auto expected = [&](int j) {
    const double gamma = 1 - std::clamp((j - first) / (last - first), 0.0, 1.0);  // 1: frequency kept, 0: divided by the factor
    return (1 - gamma) * plain(j) / factor + gamma * plain(j);
  };
  const float temperature = static_cast<float>(0.1 * std::log(factor) + 1);
  const Json yarn = {{"rope_type", "yarn"}, {"factor", factor}, {"original_max_position_embeddings", 2048}};
  const Config c = scaled(yarn);
  expect_frequencies(c.ropes[0], expected);
  EXPECT_FLOAT_EQ(c.ropes[0].magnitude, temperature);
  // As in transformers, a missing factor follows from the context lengths, mscale and mscale_all_dim (DeepSeek) set the magnitude, and
  // "truncate": false (gpt-oss) leaves the ramp's ends unrounded.
  Json silent = yarn;
  silent.erase("factor");
  expect_frequencies(scaled(silent).ropes[0], expected);
  Json parts = yarn;
  parts.update(Json{{"mscale", 0.5}, {"mscale_all_dim", 2.0}});
  EXPECT_FLOAT_EQ(scaled(parts).ropes[0].magnitude, static_cast<float>((0.05 * std::log(factor) + 1) / (0.2 * std::log(factor) + 1)));
  parts["mscale_all_dim"] = 0.0;  // 0 counts as not set, as in transformers
  EXPECT_FLOAT_EQ(scaled(parts).ropes[0].magnitude, temperature);
  Json smooth = yarn;
  smooth["truncate"] = false;
  expect_frequencies(scaled(smooth).ropes[0], [&](int j) {
    const double from = dimension_of(beta_fast), to = dimension_of(beta_slow);
    const double gamma = 1 - std::clamp((j - from) / (to - from), 0.0, 1.0);
    return (1 - gamma) * plain(j) / factor + gamma * plain(j);
  });
  Json stated = yarn;
  stated["attention_factor"] = 0.75;  // in transformers this replaces the paper's magnitude
  EXPECT_FLOAT_EQ(scaled(stated).ropes[0].magnitude, 0.75f);

  const Json keys = {
      {"llama.rope.scaling.type", "yarn"}, {"llama.rope.scaling.factor", factor}, {"llama.rope.scaling.original_context_length", 2048}};
  const Config gguf = scaled_gguf(keys);
  expect_frequencies(gguf.ropes[0], expected);
  EXPECT_FLOAT_EQ(gguf.ropes[0].magnitude, temperature);
  Json with = keys;
  with["llama.rope.scaling.attn_factor"] = 0.75;  // in llama.cpp this multiplies the paper's magnitude
  EXPECT_FLOAT_EQ(scaled_gguf(with).ropes[0].magnitude, 0.75f * temperature);
}

TEST(RopeScaling, Longrope) {  // Ding et al. 2024; in GGUF the factors are tensors and the magnitude is a key
  const std::vector<double> factors(kDims / 2, 2.0), wide(kDims / 2, 5.0);
  for (const char* name : {"longrope", "su", "yarn"}) {  // Phi-3 has used all these names for LongRoPE
    const Config c = scaled({{"type", name}, {"short_factor", factors}, {"long_factor", wide}, {"original_max_position_embeddings", 2048}});
    RopeTable rope = c.ropes[0];
    expect_frequencies(rope, [](int j) { return plain(j) / 2; });
    EXPECT_FLOAT_EQ(rope.magnitude, static_cast<float>(std::sqrt(1 + std::log(4.0) / std::log(2048.0))));
    EXPECT_EQ(rope.original, 2048);
    EXPECT_EQ(c.n_ctx, 8192);
    EXPECT_TRUE(c.notes.empty());
    rope.inv_freq = rope.long_inv_freq;
    expect_frequencies(rope, [](int j) { return plain(j) / 5; });
  }
  // If the original length is the whole context, long_factor is not needed.
  const Config whole = scaled({{"rope_type", "longrope"}, {"short_factor", factors}, {"original_max_position_embeddings", 8192}});
  EXPECT_EQ(whole.ropes[0].stage(8192), 0);
  EXPECT_TRUE(whole.ropes[0].long_inv_freq.empty());
  const Config gguf = scaled_gguf({{"llama.rope.scaling.type", "longrope"}, {"llama.rope.scaling.attn_factor", 1.25}});
  expect_frequencies(gguf.ropes[0], plain);
  EXPECT_FLOAT_EQ(gguf.ropes[0].magnitude, 1.25f);
}

TEST(RopeScaling, Dynamic) {  // transformers' formula; frequencies depend on the length of each text
  const Config c = scaled({{"rope_type", "dynamic"}, {"factor", 3.0}});
  const RopeTable& rope = c.ropes[0];
  expect_frequencies(rope, plain);
  EXPECT_EQ(rope.original, 8192);
  EXPECT_EQ(c.n_ctx, 3 * 8192);
  EXPECT_EQ(rope.stage(8192), 0);
  RopeFrequencies frequencies(rope);
  for (const std::int64_t length : {8193, 12000, 24576}) {
    EXPECT_EQ(rope.stage(length), length);
    const double stretch = 3.0 * static_cast<double>(length) / 8192 - 2, power = kDims / (kDims - 2.0);
    const auto found = frequencies.of(length);
    for (int j = 0; j < kDims / 2; ++j) {
      const double expected = plain(j) * std::pow(stretch, -power * 2 * j / kDims);
      EXPECT_NEAR(found[static_cast<std::size_t>(j)] / expected, 1, 1e-5) << length << ", " << j;
    }
  }
  EXPECT_EQ(frequencies.of(100).data(), rope.inv_freq.data());
  const Config alpha = scaled({{"type", "dynamic"}, {"factor", 3.0}, {"alpha", 1000.0}});  // with Hunyuan's alpha, the length has no effect
  EXPECT_EQ(alpha.ropes[0].original, 0);
  EXPECT_EQ(alpha.n_ctx, 8192);
}

TEST(RelativePlaces, GrowWithTheLogarithmOfTheDistanceAndEndAtTheSpan) {
  const auto at = [](const RelativePlaces& places, std::int32_t before) {
    const std::int32_t reach = place_reach(places);
    return places_by_distance(places, reach)[static_cast<std::size_t>(reach - std::clamp(before, -reach, reach))];
  };
  const RelativePlaces v3{.span = 256, .max_distance = 512};  // DeBERTa v3: make_log_bucket_position(d, 256, 512) + 256, clamped
  EXPECT_EQ(place_reach(v3), 512);
  for (const auto& [before, place] : {std::pair{0, 256},
                                      {128, 384},
                                      {129, 385},
                                      {510, 511},
                                      {511, 511},
                                      {9999, 511},
                                      {-1, 255},
                                      {-128, 128},
                                      {-129, 127},
                                      {-511, 1},
                                      {-512, 0},
                                      {-9999, 0}}) {
    EXPECT_EQ(at(v3, before), place) << before;
  }
  const RelativePlaces plain{.span = 24};
  EXPECT_EQ(place_reach(plain), 24);
  for (const auto& [before, place] : {std::pair{0, 24}, {23, 47}, {24, 47}, {-24, 0}, {-99, 0}}) {
    EXPECT_EQ(at(plain, before), place) << before;
  }
}

TEST(Alibi, Slopes) {  // Press et al. 2022, section 3, and the authors' code for heads that are not a power of two
  const auto expect_powers = [](const std::vector<float>& slopes, const std::vector<double>& powers) {
    ASSERT_EQ(slopes.size(), powers.size());
    for (std::size_t i = 0; i < powers.size(); ++i) EXPECT_FLOAT_EQ(slopes[i], static_cast<float>(std::exp2(-powers[i]))) << i;
  };
  expect_powers(alibi_slopes(8), {1, 2, 3, 4, 5, 6, 7, 8});
  expect_powers(alibi_slopes(6), {2, 4, 6, 8, 1, 3});
  expect_powers(alibi_slopes(1), {8});
  expect_powers(alibi_slopes(4, 4), {1, 2, 3, 4});
}

// ---------------------------------------------------------------- what is refused
void expect_refused(const tiny::Model& m, const std::string& field, std::optional<std::string> text = {}) {
  const tiny::TempFolder folder;
  const std::string path = tiny::write(m, folder, text);
  try {
    read_config(*files::ModelFile::open(path));
  } catch (const Error& error) {
    const std::string said = error.what();
    EXPECT_TRUE(error.kind() == ErrorKind::model_format || error.kind() == ErrorKind::unsupported_model) << said;
    EXPECT_EQ(error.file().rfind(folder.path(), 0), 0u) << said << " in " << error.file();
    EXPECT_NE(said.find(folder.path()), std::string::npos) << said;
    if (error.kind() == ErrorKind::model_format) {
      EXPECT_NE(error.field().find(field), std::string::npos) << said << " at " << error.field();
    }
    EXPECT_NE(said.find(field), std::string::npos) << said;
    return;
  }
  ADD_FAILURE() << field << " = " << (text ? *text : m.config.dump()) << " was taken";
}

const std::vector<Json>& wrong_types() {
  static const std::vector<Json> values = {"x", "", true, Json::array({1, 2}), Json::array({"x"}), Json::object({{"a", 1}}), "1"};
  return values;
}

TEST(Config, SizesThatMakeNoSense) {
  const std::vector<std::pair<const char*, std::vector<const char*>>> fields = {
      {"llama",
       {"hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "intermediate_size", "max_position_embeddings"}},
      {"gemma3", {"head_dim", "sliding_window_pattern"}},
      {"bert", {"hidden_size", "max_position_embeddings"}},
      {"llama.gguf",
       {"embedding_length", "attention.head_count", "attention.head_count_kv", "block_count", "feed_forward_length", "context_length",
        "rope.dimension_count", "attention.key_length", "attention.value_length"}},
  };
  const std::vector<Json> sizes = {0, -1, 1LL << 31, 1LL << 62, 1ULL << 63, 1.5, 1e308};
  for (const auto& [name, names] : fields) {
    for (const char* field : names) {
      tiny::Model m = tiny::make(name);
      const std::string key = m.gguf ? "llama." + std::string(field) : field;
      for (const Json& value : sizes) expect_refused((m.config[key] = value, m), field);
      for (const Json& value : wrong_types()) {
        if (!m.gguf || value.is_primitive()) expect_refused((m.config[key] = value, m), field);
      }
    }
  }
  tiny::Model mistral = tiny::make("mistral");
  for (const Json& value : {Json(-1), Json(1LL << 31), Json(1ULL << 63), Json(1.5), Json("x"), Json(true), Json::object({{"a", 1}})}) {
    expect_refused((mistral.config["sliding_window"] = value, mistral), "sliding_window");
  }
}

TEST(Config, NumbersThatMakeNoSense) {
  for (const char* field : {"rms_norm_eps", "rope_theta", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
                            "partial_rotary_factor"}) {
    tiny::Model m = tiny::make("llama");  // the family is changed below to one that has the key
    const std::string name = field;
    if (name.find("softcapping") != std::string::npos || name.starts_with("query")) m.config["model_type"] = "gemma2";
    if (name == "partial_rotary_factor") m.config["model_type"] = "phi3";
    for (const Json& value : {Json(-1), Json(1e308), Json(-0.5)}) expect_refused((m.config[field] = value, m), field);
    for (const Json& value : wrong_types()) expect_refused((m.config[field] = value, m), field);
  }
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (const char* field : {"attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor", "rope.scaling.attn_factor"}) {
    tiny::Model m = tiny::make("llama.gguf");
    m.config["llama.rope.scaling.type"] = "yarn";
    for (const Json& value : {Json(nan), Json(infinity), Json(-infinity), Json(1e308), Json("x")}) {
      expect_refused((m.config["llama." + std::string(field)] = value, m), field);
    }
  }
  for (const char* type : {"linear", "llama3", "yarn"}) {
    for (const char* field :
         {"factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "original_max_position_embeddings"}) {
      tiny::Model m = tiny::make("llama");
      m.config["rope_scaling"] = Json{{"rope_type", type}, {"factor", 4.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}};
      for (const Json& value : {Json(0), Json(-1), Json(1e308), Json("x"), Json(true)}) {
        expect_refused((m.config["rope_scaling"][field] = value, m), field);
      }
    }
  }
  for (const char* field : {"low_freq_factor", "high_freq_factor"}) {  // transformers has no default for these keys
    tiny::Model m = tiny::make("llama");
    m.config["rope_scaling"] = Json{{"rope_type", "llama3"}, {"factor", 4.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}};
    m.config["rope_scaling"].erase(field);
    expect_refused(m, str("rope_scaling.", field));
  }
  for (const char* type : {"linear", "llama3"}) {  // transformers requires the factor too
    tiny::Model m = tiny::make("llama");
    m.config["rope_scaling"] = Json{{"rope_type", type}};
    expect_refused(m, "rope_scaling.factor");
  }
  for (const char* object : {"rope_scaling", "rope_parameters"}) {
    tiny::Model m = tiny::make("llama");
    for (const Json& value : {Json(1), Json("x"), Json(true), Json::array({1.5})}) expect_refused((m.config[object] = value, m), object);
  }
}

TEST(Config, NumbersThatJsonCannotHold) {
  const tiny::Model m = tiny::make("llama");
  for (const char* text : {"NaN", "Infinity", "1e999", "-1e999",
                           "1"
                           "000000000000000000000000000000"}) {
    std::string config = m.config.dump();
    config.replace(config.find("\"hidden_size\":32") + 14, 2, text);
    const tiny::TempFolder folder;
    const std::string path = tiny::write(m, folder, config);
    const Error error = expect_error(ErrorKind::model_format, "config.json", [&] { read_config(*files::ModelFile::open(path)); });
    EXPECT_EQ(error.file().rfind(folder.path(), 0), 0u);
  }
}

TEST(Config, WhatIsMissing) {
  const std::vector<std::pair<const char*, std::vector<const char*>>> needed = {
      {"llama", {"model_type", "hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size"}},
      {"bert", {"hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size"}},
      {"gemma3", {"hidden_size", "num_hidden_layers", "intermediate_size"}},
      {"llama.gguf",
       {"general.architecture", "llama.embedding_length", "llama.attention.head_count", "llama.block_count", "llama.feed_forward_length"}},
      {"gemma3.gguf", {"gemma3.attention.head_count"}},
  };
  for (const auto& [name, fields] : needed) {
    for (const char* field : fields) {
      tiny::Model m = tiny::make(name);
      m.config.erase(field);
      expect_refused(m, field);
      if (!m.gguf) expect_refused((m.config[field] = nullptr, m), field);
    }
  }
}

TEST(Config, SoundModelsThatAreNotRun) {
  struct Case {
    const char* name;
    Json change;
    const char* said;
  };
  const std::vector<Case> cases = {
      {"llama", {{"model_type", "mamba"}}, "mamba"},
      {"llama.gguf", {{"general.architecture", "qwen9"}}, "qwen9"},
      {"llama", {{"hidden_act", "mish"}}, "mish"},
      {"llama", {{"rope_scaling", {{"rope_type", "longrope"}, {"factor", 4.0}}}}, "short_factor"},
      {"llama", {{"rope_scaling", {{"rope_type", "spiral"}, {"factor", 4.0}}}}, "spiral"},
      {"llama",
       {{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 4.0}, {"high_freq_factor", 4.0}}}},
       "high_freq_factor"},
      {"llama", {{"num_key_value_heads", 3}}, "evenly"},
      {"llama", {{"head_dim", 12}}, "multiple of 8"},
      {"llama", {{"quantization_config", {{"quant_method", "hqq"}, {"bits", 4}}}}, "hqq"},
      {"gemma3", {{"layer_types", {"full_attention"}}}, "layer_types"},
      {"gemma3", {{"layer_types", {"full_attention", "linear_attention"}}}, "linear_attention"},
      {"bert", {{"position_embedding_type", "relative_key"}}, "relative_key"},
      {"llama.gguf", {{"llama.expert_count", 8}, {"llama.expert_used_count", 2}, {"llama.expert_group_count", 4}}, "groups of experts"},
      {"llama.gguf", {{"llama.rope.dimension_count", 3}}, "odd"},
      {"llama.gguf", {{"llama.attention.value_length", 16}}, "differ"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.said);
    tiny::Model m = tiny::make(c.name);
    m.config.update(c.change);
    const tiny::TempFolder folder;
    const std::string path = tiny::write(m, folder);
    const Error error = expect_error(ErrorKind::unsupported_model, c.said, [&] { read_config(*files::ModelFile::open(path)); });
    EXPECT_EQ(error.file(), path);
  }
}

// GGUF files of Llama 4 do not say these settings. They are constants of llama.cpp.
TEST(Config, Llama4InGguf) {
  const auto file = [](std::int64_t context, std::int64_t experts) {
    const std::string p = "llama4.";
    return tiny::Model{.gguf = true,
                       .config = {{"general.architecture", "llama4"},
                                  {p + "block_count", 4},
                                  {p + "context_length", context},
                                  {p + "embedding_length", 32},
                                  {p + "feed_forward_length", 64},
                                  {p + "expert_feed_forward_length", 24},
                                  {p + "interleave_moe_layer_step", 2},
                                  {p + "expert_count", experts},
                                  {p + "expert_used_count", 1},
                                  {p + "attention.head_count", 4},
                                  {p + "attention.layer_norm_rms_epsilon", 1e-5}},
                       .tensors = tiny::make("llama.gguf").tensors};
  };
  const Config scout = read(file(10485760, 16));
  for (std::size_t i = 0; i < 4; ++i) {
    const Attention& a = scout.layers[i].attention();
    EXPECT_EQ(a.rope, i < 3 ? 0 : -1);
    EXPECT_EQ(a.qk_norm, i < 3 ? QkNorm::plain_after_rope : QkNorm::none);
    ASSERT_EQ(a.chunks.has_value(), i < 3);
    ASSERT_EQ(a.temperature.has_value(), i == 3);
    if (a.chunks) {
      EXPECT_EQ(a.chunks->length, 8192);
    }
  }
  const Temperature& temperature = *scout.layers[3].attention().temperature;
  EXPECT_FLOAT_EQ(temperature.growth, 0.1f);
  EXPECT_EQ(temperature.length, 8192);
  EXPECT_EQ(temperature.offset, 1);
  EXPECT_EQ(scout.layers[0].feed_forward().width, 64);
  ASSERT_NE(scout.layers[1].if_mixture(), nullptr);
  EXPECT_EQ(scout.layers[1].if_mixture()->width, 24);
  EXPECT_EQ(scout.layers[1].if_mixture()->shared->network.width, 24);
  EXPECT_EQ(scout.layers[1].if_mixture()->combine, Combine::inputs);
  EXPECT_EQ(read(file(10485760, 128)).layers[0].attention().qk_norm, QkNorm::none);
  EXPECT_FALSE(read(file(8192, 16)).layers[0].attention().chunks);  // the only chunk
  for (const auto& [key, value] : {std::pair<const char*, Json>{"attention.sliding_window", 0},
                                   {"attention.sliding_window", 4096},
                                   {"attention.sliding_window_pattern", 6},
                                   {"rope.freq_base_swa", 1e4}}) {
    tiny::Model other = file(512, 16);
    other.config[std::string("llama4.") + key] = value;
    expect_error(ErrorKind::unsupported_model, key, [&] { read(other); });
  }
}

TEST(Config, PoolingsHaveOneNameEach) {
  for (const char* pooling : {"mean", "cls", "last", "max", "mean_sqrt_len", "weighted_mean"})
    EXPECT_EQ(name(pooling_from_name(pooling)), pooling);
  expect_error(ErrorKind::invalid_argument, "median", [] { pooling_from_name("median"); });
}

}  // namespace
}  // namespace pumice::model::config_test
