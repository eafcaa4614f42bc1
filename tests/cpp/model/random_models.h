// Makes the small models of tests/random_models. Weights are random numbers seeded by the tensors' names, and are the same as those of
// tests/python/support/random_models.py.
#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "cases.h"
#include "files/build_files.h"

namespace pumice::model::random_models {

using Json = nlohmann::ordered_json;
inline const std::string kTests = PUMICE_TESTS_DIR;

inline Json read_json(const std::filesystem::path& path) { return Json::parse(std::ifstream(path)); }

// A row of a table of tests/random_models, as far as C++ tests need it. A row with "like" inherits the fields of the row that it names.
struct Variant {
  std::string name, family, kind = "decoder";
  bool pending = false;
  std::int64_t ids = 96;
  double scale = 1;
  std::map<std::string, double> scales;
};
inline void PrintTo(const Variant& v, std::ostream* out) { *out << v.name; }

inline std::vector<Variant> variants() {
  std::vector<Variant> all;
  std::map<std::string, Variant> by_name;
  std::vector<std::filesystem::path> tables;
  for (const auto& entry : std::filesystem::directory_iterator(kTests + "/random_models")) tables.push_back(entry.path());
  std::ranges::sort(tables);
  for (const auto& path : tables) {
    const Json table = read_json(path);
    for (const auto& [name, row] : table.items()) {
      Variant v = row.contains("like") ? by_name.at(row["like"]) : Variant{};
      v.name = name;
      v.family = path.stem().string();
      v.kind = row.value("kind", v.kind);
      v.pending = row.value("pending", v.pending);
      v.ids = row.value("ids", v.ids);
      v.scale = row.value("scale", v.scale);
      v.scales = row.value("scales", v.scales);
      all.push_back(by_name[name] = v);
    }
  }
  return all;
}

inline std::uint32_t crc32(std::string_view text) {
  std::uint32_t crc = ~0u;
  for (const char c : text) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

inline std::vector<float> weights(const std::string& name, const std::vector<std::int64_t>& shape, double factor = 1) {
  static const std::regex around_one(
      R"(norm|(^|\.)(ln_[a-z0-9]+|emb_ln|attn_ln|mlp_ln)\.weight$|layer_scalar$|per_expert_scale$|router\.scale$)", std::regex::icase);
  static const std::map<std::string, std::pair<double, double>> ranges = {
      {"A_log", {0, 2.7}},         {"dt_bias", {-4, 1}},        {"sinks", {-4, 4}},          {".D", {0.5, 1.5}},
      {"act_fn.alpha_p", {-1, 1}}, {"act_fn.alpha_n", {-1, 1}}, {"act_fn.beta", {0.5, 0.5}}, {"act_fn.eps", {-1e-6, -1e-6}}};
  double scale = 0.2, centre = std::regex_search(name, around_one) && !name.ends_with("bias") ? 1 : 0;
  if (shape.size() > 1) {
    scale = factor * 2 / std::sqrt(static_cast<double>(shape.back()));
    centre = 0;
  } else {
    for (const auto& [end, range] : ranges) {
      if (name.ends_with(end)) scale = (range.second - range.first) / 2, centre = (range.second + range.first) / 2;
    }
  }
  std::size_t count = 1;
  for (const std::int64_t n : shape) count *= static_cast<std::size_t>(n);
  cases::Random random(std::uint64_t{crc32(name)} << 32);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(centre + scale * (static_cast<double>(random.bits() >> 40) / 0x1p23 - 1));
  return values;
}

// Writes the model folder with which the variant's golden was made, without the tokenizer.
inline void write(const Variant& v, const files::testing::TempFolder& folder) {
  const std::string golden = kTests + "/goldens/random_models/" + v.family + "/" + v.name;
  std::vector<files::testing::SafeTensor> list;
  const Json shapes = read_json(golden + ".shapes.json");
  for (const auto& [name, shape] : shapes.items()) {
    double factor = v.scale;
    for (const auto& [part, other] : v.scales) {
      if (name.find(part) != std::string::npos) factor = other;
    }
    const auto dims = shape.get<std::vector<std::int64_t>>();
    list.push_back({name, "F32", dims, files::testing::floats(weights(name, dims, factor))});
  }
  folder.write("config.json", read_json(golden + ".config.json").dump());
  folder.write("model.safetensors", files::testing::safetensors(list).bytes);
}

}  // namespace pumice::model::random_models
