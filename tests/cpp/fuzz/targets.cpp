#include "fuzz/targets.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "core/checksum.h"
#include "core/error.h"
#include "core/kinds.h"
#include "files/build_files.h"
#include "files/gguf_formats.h"
#include "files/metadata.h"
#include "files/model_file.h"
#include "files/prefix_file.h"
#include "files/text.h"
#include "model/description.h"
#include "model/model_programs.h"
#include "model/modules.h"
#include "model/tiny.h"
#include "text/spm_merges.h"

namespace pumice::fuzz {
namespace {

namespace testing = files::testing;
using files::ModelFile;
using Json = nlohmann::ordered_json;

// ---------------------------------------------------------------- files in memory
testing::TempFolder& folder() {
  static testing::TempFolder made;
  return made;
}

// A file in a folder on a file system in memory, which stays open: putting other bytes into it takes two system calls.
class Slot {
 public:
  explicit Slot(const std::string& name) : path_(folder().write(name, "")), fd_(::open(path_.c_str(), O_WRONLY | O_CLOEXEC)) {
    if (fd_ < 0) throw std::runtime_error("cannot open " + path_);
  }
  // The file gets `size` bytes if `bytes` are fewer. The rest is a hole, which reads as zeros.
  const std::string& put(std::string_view bytes, std::uint64_t size = 0) const {
    const auto length = static_cast<off_t>(std::max<std::uint64_t>(size, bytes.size()));
    if (::pwrite(fd_, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()) || ::ftruncate(fd_, length) != 0)
      throw std::runtime_error("cannot write " + path_);
    return path_;
  }
  const std::string& path() const { return path_; }
  std::string folder_path() const { return path_.substr(0, path_.rfind('/')); }

 private:
  std::string path_;
  int fd_;
};

// ---------------------------------------------------------------- what must hold
void check_sound(const Error& error, std::initializer_list<ErrorKind> more = {}) {
  std::vector<ErrorKind> kinds = {ErrorKind::model_format, ErrorKind::unsupported_model, ErrorKind::io};
  kinds.insert(kinds.end(), more);
  const std::string_view what = error.what();
  if (std::ranges::find(kinds, error.kind()) == kinds.end()) throw std::runtime_error(str("an error of another kind: ", what));
  if (what.empty() || !files::valid_utf8(what) || !files::valid_utf8(error.field())) throw std::runtime_error(str("a bad message: ", what));
  if (what.size() > 8192) throw std::runtime_error(str("a message of ", what.size(), " bytes: ", what.substr(0, 200)));
}

// Calls `load` and returns whether it threw nothing.
template <class Load>
bool loads(const Load& load, std::initializer_list<ErrorKind> more = {}) {
  try {
    load();
    return true;
  } catch (const Error& error) {
    check_sound(error, more);
    if (more.size() == 0 && error.file().empty()) throw std::runtime_error(str("an error that names no file: ", error.what()));
    const bool place = error.kind() != ErrorKind::model_format || !error.field().empty() || error.offset();
    if (more.size() == 0 && !place) throw std::runtime_error(str("an error that names no field and no offset: ", error.what()));
  }
  return false;
}

// Asks for each value in one of the ways in which a model's configuration is read. Which way it is depends on the input, because a way that
// does not fit throws, and exceptions take most of the time of a small input (seven for each of sixty keys: 2 ms with the sanitizers).
void read_metadata(const files::Metadata& metadata, std::size_t way) {
  for (const auto& [key, value] : metadata.entries()) {
    files::type_name(value);
    loads([&] {
      switch (way++ % 7) {
        case 0:
          return void(metadata.boolean(key));
        case 1:
          return void(metadata.integer(key));
        case 2:
          return void(metadata.number(key));
        case 3:
          return void(metadata.string(key));
        case 4:
          return void(metadata.integer_list(key));
        case 5:
          return void(metadata.number_list(key));
        default:
          return void(metadata.strings(key));
      }
    });
  }
}

// Reads the first bytes of each tensor. Of one tensor, which depends on the input, also reads the last bytes, some that begin in the middle
// of a row, and the values.
void read_tensors(const ModelFile& model, std::size_t way) {
  constexpr std::uint64_t kMost = 4 << 10;
  static std::vector<std::uint8_t> bytes(kMost);
  const std::size_t chosen = model.tensors().empty() ? 0 : way % model.tensors().size();
  for (const files::TensorInfo& tensor : model.tensors()) {
    const std::uint64_t count = std::min<std::uint64_t>(tensor.bytes, kMost);
    loads([&] { model.read(tensor, 0, count, bytes.data()); });
    if (&tensor != &model.tensors()[chosen]) continue;
    if (model.find(tensor.name) != &tensor) throw std::runtime_error(str("find() does not find ", tensor.name));
    loads([&] { model.read(tensor, tensor.bytes - count, count, bytes.data()); });
    if (count > 2) loads([&] { model.read(tensor, 1, count - 2, bytes.data()); });
    if (tensor.bytes <= kMost) loads([&] { model.read_floats(tensor); }, {ErrorKind::numeric});
  }
}

bool read_all(const std::string& path, std::string_view input) {
  const std::size_t way = input.size() + (input.empty() ? 0 : static_cast<unsigned char>(input[input.size() / 2]));
  return loads([&] {
    const auto model = ModelFile::open(path);
    read_metadata(model->metadata(), way);
    read_tensors(*model, way);
  });
}

// ---------------------------------------------------------------- GGUF and safetensors
bool run_gguf(std::string_view input) {
  static const Slot slot("gguf/model.gguf");
  return read_all(slot.put(input), input);
}

// A GGUF file with a tensor of each format of ggml, so that a change of a number finds each of them.
std::string gguf_of_formats() {
  testing::GgufBuilder builder;
  builder.text("general.architecture", "llama");
  for (std::uint32_t id = 0; id < 64; ++id) {
    const auto known = format_from_gguf(id);
    const files::GgufFormat* other = known ? nullptr : files::gguf_format(id);
    if (!known && !other) continue;
    const std::int64_t block = known ? info(*known).block : other->block, bytes = known ? info(*known).block_bytes : other->block_bytes;
    if (block < 1 || bytes < 1) continue;
    builder.tensor(str("t", id), {static_cast<std::uint64_t>(block)}, id, testing::pattern(static_cast<std::size_t>(bytes), id));
  }
  return builder.build().bytes;
}

std::vector<std::string> gguf_seeds() {
  return {testing::sample_gguf(2).build().bytes, testing::sample_gguf(3).build().bytes, gguf_of_formats()};
}

bool run_safetensors(std::string_view input) {
  static const Slot config("safetensors/config.json"), slot("safetensors/model.safetensors");
  [[maybe_unused]] static const bool once = (config.put("{}"), true);
  slot.put(input);
  return read_all(slot.folder_path(), input);
}

std::vector<std::string> safetensors_seeds() {
  std::vector<std::string> seeds = {testing::safetensors(testing::sample_tensors()).bytes};
  for (const testing::PackedFolder& packed : testing::sample_packed()) seeds.push_back(testing::safetensors(packed.tensors).bytes);
  return seeds;
}

// ---------------------------------------------------------------- config.json and model.safetensors.index.json
bool run_json(std::string_view input) {
  static const Slot config("config/config.json"), weights("config/model.safetensors");
  static const Slot empty("index/config.json"), index("index/model.safetensors.index.json"), shard("index/model-1.safetensors"),
      other("index/model-2.safetensors");
  [[maybe_unused]] static const bool once = [] {
    const auto tensors = testing::sample_tensors();
    weights.put(testing::safetensors(tensors).bytes);
    empty.put("{}");
    shard.put(testing::safetensors({tensors[0], tensors[1]}).bytes);
    other.put(testing::safetensors({tensors[3]}).bytes);
    return true;
  }();
  config.put(input);
  const bool loaded = read_all(config.folder_path(), input);
  index.put(input);
  return read_all(index.folder_path(), input) || loaded;
}

std::vector<std::string> json_seeds() {
  return {
      R"({"weight_map":{"position_ids":"model-1.safetensors","scalar":"model-1.safetensors","weight":"model-2.safetensors"},"metadata":{"total_size":44}})",
      R"({"model_type":"llama","hidden_size":64,"rms_norm_eps":1e-05,"tie":true,"none":null,"eos_token_id":[1,2],"architectures":["A"],)"
      R"("rope_scaling":{"factor":8.0,"rope_type":"llama3"},"list":[{"k":1},{"k":2}],"mixed":[1,"a",null],"doubles":[0.5,2],"flags":[true]})"};
}

// ---------------------------------------------------------------- matrices that other libraries packed
// The JSON text becomes both config.json and hf_quant_config.json, so that the input reaches each scheme.
bool run_schemes(std::string_view input) {
  static const Slot config("packed/config.json"), quant("packed/hf_quant_config.json"), weights("packed/model.safetensors");
  const auto [json, tensors] = halves(input);
  config.put(json);
  quant.put(json);
  weights.put(tensors);
  return read_all(weights.folder_path(), input);
}

std::vector<std::string> scheme_seeds() {
  std::vector<std::string> seeds;
  for (const testing::PackedFolder& packed : testing::sample_packed())
    seeds.push_back(packed.config + '\0' + testing::safetensors(packed.tensors).bytes);
  return seeds;
}

// ---------------------------------------------------------------- adapters
// Opens the input as the adapter of a small model. A tensor NAME.lora_A.weight or NAME.weight.lora_a makes a module, as load(lora=) makes
// it.
bool run_adapter(std::string_view input) {
  static const Slot weights("adapter/adapter_model.safetensors"), gguf("adapter/adapter.gguf");
  static const testing::TempFolder folders[2];
  static const std::shared_ptr<const ModelFile> models[] = {model::tiny::open(model::tiny::make("llama", 1), folders[0]),
                                                            model::tiny::open(model::tiny::make("llama.gguf", 1), folders[1])};
  const bool is_gguf = input.starts_with("GGUF");
  return loads(
      [&] {
        model::LoraSpec spec;
        spec.file = is_gguf ? ModelFile::open(gguf.put(input)) : ModelFile::open_weights(weights.put(input));
        for (const files::TensorInfo& tensor : spec.file->tensors()) {
          const std::string end = is_gguf ? ".weight.lora_a" : ".lora_A.weight", other = is_gguf ? ".weight.lora_b" : ".lora_B.weight";
          if (!tensor.name.ends_with(end)) continue;
          std::string name = tensor.name.substr(0, tensor.name.size() - end.size());
          const bool embedding = name.find("embd") != std::string::npos || name.find("embed") != std::string::npos;
          const std::string b = name + other;
          spec.modules.push_back({.name = std::move(name),
                                  .a = tensor.name,
                                  .b = b,
                                  .scale = 0.5f,
                                  .layout = !embedding ? model::LoraLayout::linear
                                            : is_gguf  ? model::LoraLayout::embedding_rows
                                                       : model::LoraLayout::embedding});
        }
        const model::Description d = model::describe(models[is_gguf ? 1 : 0], {.lora = {std::move(spec)}});
        std::vector<std::uint8_t> row;
        for (const Matrix& matrix : d.weights.matrices) {
          if (matrix.rows < 1) continue;
          row.resize(static_cast<std::size_t>(row_bytes(matrix.format, matrix.cols)));
          matrix.read(matrix.rows - 1, 1, row.data());
        }
      },
      {ErrorKind::numeric});
}

std::vector<std::string> adapter_seeds() {
  using testing::floats;
  const std::vector<float> a(2 * model::tiny::kHidden, 0.5f), b(2 * model::tiny::kHidden, 0.25f), wide(2 * model::tiny::kVocab, 0.125f);
  constexpr std::int64_t kHidden = model::tiny::kHidden, kVocab = model::tiny::kVocab;
  testing::GgufBuilder gguf;
  gguf.text("general.type", "adapter")
      .text("general.architecture", "llama")
      .text("adapter.type", "lora")
      .key("adapter.lora.alpha", 6, 2.0f);
  gguf.tensor("blk.0.attn_q.weight.lora_a", {kHidden, 2}, 0, floats(a)).tensor("blk.0.attn_q.weight.lora_b", {2, kHidden}, 0, floats(b));
  gguf.tensor("token_embd.weight.lora_a", {2, kVocab}, 0, floats(wide)).tensor("token_embd.weight.lora_b", {2, kHidden}, 0, floats(b));
  return {testing::safetensors({{"model.layers.0.self_attn.q_proj.lora_A.weight", "F32", {2, kHidden}, floats(a)},
                                {"model.layers.0.self_attn.q_proj.lora_B.weight", "F32", {kHidden, 2}, floats(b)}})
              .bytes,
          testing::safetensors({{"model.embed_tokens.lora_A.weight", "F32", {2, kVocab}, floats(wide)},
                                {"model.embed_tokens.lora_B.weight", "F32", {kHidden, 2}, floats(b)}})
              .bytes,
          gguf.build().bytes};
}

// ---------------------------------------------------------------- saved prefixes
bool run_prefix(std::string_view input) {
  static const Slot slot("prefix/text.prefix");
  return loads(
      [&] {
        const auto file = files::PrefixFile::open(slot.put(input), 4096);
        const files::PrefixHead& head = file.head();
        // The lengths agree with the size of the file, so that all of it fits into memory.
        std::vector<std::uint8_t> page(head.page_bytes), state(head.state_bytes);
        for (std::uint64_t i = 0; i < head.pages(); ++i) loads([&] { file.read(i, page); });
        file.read_state(state);
      },
      {ErrorKind::context_length});
}

std::vector<std::string> prefix_seeds() {
  std::vector<std::string> seeds;
  for (const auto& [tokens, page_bytes, state_bytes] : {std::array{5, 64, 0}, std::array{40, 32, 16}, std::array{3, 0, 48}}) {
    files::PrefixHead head{
        .model = 7, .made_by = "cpu, f16", .page_bytes = std::uint64_t(page_bytes), .state_bytes = std::uint64_t(state_bytes)};
    for (int i = 0; i < tokens; ++i) head.ids.push_back(i);
    const std::string path = folder().path("seed.prefix"), pages = testing::pattern(head.pages() * head.page_bytes, 1),
                      state = testing::pattern(head.state_bytes, 2);
    const auto span = [](const std::string& text) {
      return std::span<const std::uint8_t>(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
    };
    files::PrefixWriter writer(path, head);
    if (page_bytes > 0) writer.write(span(pages));
    if (state_bytes > 0) writer.write_state(span(state));
    writer.finish();
    std::ifstream in(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return seeds;
}

// ---------------------------------------------------------------- vocabularies of GGUF files
bool run_vocabulary(std::string_view input) {
  static const Slot slot("vocabulary/model.gguf");
  return loads(
      [&] {
        const auto model = ModelFile::open(slot.put(input));
        const auto* tokens = std::get_if<files::StringList>(model->value("tokenizer.ggml.tokens"));
        const auto* scores = std::get_if<std::vector<float>>(model->value("tokenizer.ggml.scores"));
        const auto types = model->integer_list("tokenizer.ggml.token_type");
        if (!tokens || !scores) return;
        std::vector<std::string_view> texts;
        std::vector<std::uint8_t> mergeable;
        for (std::size_t i = 0; i < tokens->size(); ++i) texts.push_back((*tokens)[i]);
        for (std::size_t i = 0; types && i < types->size(); ++i) mergeable.push_back((*types)[i] == 1 || (*types)[i] == 5);
        const std::vector<text::Merge> merges = text::spm_merges(texts, *scores, mergeable);
        for (const text::Merge& merge : merges) {
          const std::string whole = std::string(texts.at(std::size_t(merge.left))) + std::string(texts.at(std::size_t(merge.right)));
          if (std::ranges::find(texts, whole) == texts.end()) throw std::runtime_error("a merge makes no token: " + whole);
        }
      },
      {ErrorKind::model_format});
}

std::vector<std::string> vocabulary_seeds() {
  testing::GgufBuilder builder;
  const std::vector<std::string> tokens = {"<unk>",
                                           "<s>",
                                           "</s>",
                                           "<0x41>",
                                           "a",
                                           "b",
                                           "ab",
                                           "aba",
                                           "\xE2\x96\x81",
                                           "\xE2\x96\x81"
                                           "ab",
                                           "\xC3\xA9",
                                           "\xF0\x9F\x98\x80"};
  std::vector<float> scores;
  std::vector<std::int32_t> types = {2, 3, 3, 6};
  for (std::size_t i = 0; i < tokens.size(); ++i) scores.push_back(-static_cast<float>(i));
  types.resize(tokens.size(), 1);
  builder.text("general.architecture", "llama").text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", tokens);
  builder.array("tokenizer.ggml.scores", 6, scores).array("tokenizer.ggml.token_type", 5, types);
  builder.tensor("t", {1}, 0, testing::floats({1}));
  return {builder.build().bytes};
}

// ---------------------------------------------------------------- configurations, as the families read them
// Returns a safetensors header for a JSON object of names and shapes ([2, 3] or ["BF16", 2, 3]), and the size of the file.
std::pair<std::string, std::uint64_t> header_of(std::string_view shapes) {
  constexpr std::uint64_t kMostBytes = 64 << 20;
  const Json parsed = Json::parse(shapes, nullptr, false);
  std::string header = "{";
  std::uint64_t end = 0;
  if (parsed.is_object()) {
    for (const auto& [name, shape] : parsed.items()) {
      std::string dtype = "F32", lengths;
      std::uint64_t bytes = 4;
      if (!shape.is_array()) continue;
      for (const Json& length : shape) {
        if (length.is_string())
          dtype = length.get<std::string>(), bytes = dtype == "F32" || dtype == "I32"   ? 4
                                                     : dtype == "F64" || dtype == "I64" ? 8
                                                     : dtype == "U8"                    ? 1
                                                                                        : 2;
        if (!length.is_number_unsigned() || length.get<std::uint64_t>() > kMostBytes) continue;
        lengths += str(lengths.empty() ? "" : ",", length.get<std::uint64_t>());
        bytes = std::min(bytes * length.get<std::uint64_t>(), kMostBytes);
      }
      if (end + bytes > kMostBytes) continue;
      // Written as text, because each insertion into an ordered_json searches all names before it.
      const auto quoted = [](const std::string& text) { return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace); };
      header += str(header.size() > 1 ? "," : "", quoted(name), ":{\"dtype\":", quoted(dtype), ",\"shape\":[", lengths,
                    "],\"data_offsets\":[", end, ",", end + bytes, "]}");
      end += bytes;
    }
  }
  std::string text = testing::safetensors_raw(header + "}", "");
  const std::uint64_t size = text.size() + end;
  return {std::move(text), size};
}

// The input is config.json, and the shapes of the tensors. The weights are zeros.
bool run_model(std::string_view input) {
  static const Slot config("model/config.json"), weights("model/model.safetensors"), gguf("model/model.gguf");
  std::string path;
  if (input.starts_with("GGUF")) {
    path = gguf.put(input);
  } else {
    const auto [json, shapes] = halves(input);
    const auto [header, size] = header_of(shapes);
    config.put(json);
    weights.put(header, size);
    path = config.folder_path();
  }
  return loads(
      [&] {
        const auto file = ModelFile::open(path);
        model::Description d = model::describe(file, {.mlm_head = model::MlmUse::maybe});
        const bool causal = d.config.causal();
        model::add_modules(d, {d.config.pooling.value_or(causal ? PoolKind::last : PoolKind::mean)}, model::modules_in(file, d.config));
        const model::ModelPrograms programs(d);
        const std::size_t layers = d.config.layers.size();
        using model::Output;
        if (d.config.has_head) {
          programs.body(0, layers, Output::selected);
          programs.head();
          programs.log_probs();
          if (layers > 1) programs.body(1, layers, Output::selected);
        } else {
          programs.body(0, layers, Output::pooled);
        }
        if (d.labels > 0) programs.body(0, layers, Output::classes);
        if (d.gives_sparse()) programs.body(0, layers, Output::sparse);
        std::vector<std::uint8_t> row;
        for (const Matrix& matrix : d.weights.matrices) {
          if (matrix.rows < 1 || !matrix.read) continue;
          row.resize(static_cast<std::size_t>(row_bytes(matrix.format, matrix.cols)));
          matrix.read(matrix.rows - 1, 1, row.data());
        }
      },
      {ErrorKind::numeric, ErrorKind::invalid_argument, ErrorKind::unsupported_task});
}

std::vector<std::string> model_seeds() {
  std::vector<std::string> seeds;
  const std::filesystem::path goldens = std::string(PUMICE_TESTS_DIR) + "/goldens/random_models";
  const auto text_of = [](const std::filesystem::path& path) {
    std::ifstream in(path);
    return Json::parse(in).dump();
  };
  std::vector<std::filesystem::path> families;
  for (const auto& entry : std::filesystem::directory_iterator(goldens)) families.push_back(entry.path());
  std::ranges::sort(families);
  for (const auto& family : families) {  // the first model of each family
    std::vector<std::string> configs;
    for (const auto& entry : std::filesystem::directory_iterator(family))
      if (entry.path().string().ends_with(".config.json")) configs.push_back(entry.path().string());
    if (configs.empty()) continue;
    std::ranges::sort(configs);
    const std::string& first = configs.front();
    seeds.push_back(text_of(first) + '\0' + text_of(first.substr(0, first.size() - 12) + ".shapes.json"));
  }
  for (const char* name : {"llama.gguf", "gemma3.gguf", "bert.gguf"}) {
    model::tiny::Model small = model::tiny::make(name, 1);
    for (model::tiny::Tensor& tensor : small.tensors) tensor.format = Format::F16;
    const testing::TempFolder written;
    std::ifstream in(model::tiny::write(small, written), std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return seeds;
}

constexpr Target kTargets[] = {
    {"gguf", Form::gguf, run_gguf, gguf_seeds},
    {"safetensors", Form::safetensors, run_safetensors, safetensors_seeds},
    {"json", Form::json, run_json, json_seeds},
    {"schemes", Form::json_and_safetensors, run_schemes, scheme_seeds},
    {"adapter", Form::adapter, run_adapter, adapter_seeds},
    {"prefix", Form::prefix, run_prefix, prefix_seeds},
    {"vocabulary", Form::gguf, run_vocabulary, vocabulary_seeds},
    {"model", Form::json_pair, run_model, model_seeds},
};

}  // namespace

std::span<const Target> targets() { return kTargets; }

const Target& target(std::string_view name) {
  const auto found = std::ranges::find(kTargets, name, [](const Target& t) { return std::string_view(t.name); });
  if (found == std::end(kTargets)) throw std::out_of_range("no fuzz target " + std::string(name));
  return *found;
}

std::pair<std::string_view, std::string_view> halves(std::string_view input) {
  const std::size_t end = input.find('\0');
  if (end == std::string_view::npos) return {input, {}};
  return {input.substr(0, end), input.substr(end + 1)};
}

}  // namespace pumice::fuzz
