#include "files/build_files.h"

#include <bit>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <type_traits>

#include "files/prefix_file.h"

namespace pumice::files::testing {
namespace {

template <class T>
std::string little_endian(T value) {
  std::uint64_t bits;
  if constexpr (std::is_same_v<T, float>) {
    bits = std::bit_cast<std::uint32_t>(value);
  } else if constexpr (std::is_same_v<T, double>) {
    bits = std::bit_cast<std::uint64_t>(value);
  } else {
    bits = static_cast<std::uint64_t>(value);
  }
  std::string bytes;
  for (std::size_t i = 0; i < sizeof(T); ++i) bytes += static_cast<char>(bits >> (8 * i));
  return bytes;
}

}  // namespace

TempFolder::TempFolder() {
  const std::filesystem::path base = std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path();
  std::string name = (base / "pumice-test-XXXXXX").string();
  if (!::mkdtemp(name.data())) throw std::runtime_error("no temporary folder in " + base.string());
  root_ = name;
}
TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(root_, ignored);
}
std::string TempFolder::write(const std::string& name, std::string_view bytes) const {
  const auto file = root_ / name;
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary | std::ios::trunc).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return file.string();
}
std::string TempFolder::write(const std::string& name, const Built& file) const {
  const std::string path = write(name, file.bytes);
  if (file.size > file.bytes.size()) std::filesystem::resize_file(path, file.size);
  return path;
}

template <class T>
void GgufBuilder::number(const std::string& name, T value) {
  entries_.fields.push_back({name, entries_.bytes.size(), sizeof(T)});
  entries_.bytes += little_endian(value);
}
#define PUMICE_NUMBER(T) template void GgufBuilder::number(const std::string&, T);
PUMICE_NUMBER(std::uint8_t)
PUMICE_NUMBER(std::int8_t)
PUMICE_NUMBER(std::uint16_t)
PUMICE_NUMBER(std::int16_t)
PUMICE_NUMBER(std::uint32_t)
PUMICE_NUMBER(std::int32_t)
PUMICE_NUMBER(std::uint64_t)
PUMICE_NUMBER(std::int64_t)
PUMICE_NUMBER(float)
PUMICE_NUMBER(double)
#undef PUMICE_NUMBER

void GgufBuilder::string(const std::string& name, const std::string& value) {
  number(name + " length", std::uint64_t{value.size()});
  entries_.bytes += value;
}
void GgufBuilder::begin_key(const std::string& name, std::uint32_t type) {
  string("key " + name, name);
  number(name + " type", type);
  ++keys_;
}
GgufBuilder& GgufBuilder::text(const std::string& name, const std::string& value) {
  begin_key(name, 8);
  string(name, value);
  return *this;
}
GgufBuilder& GgufBuilder::texts(const std::string& name, const std::vector<std::string>& values) {
  begin_key(name, 9);
  number(name + " element type", std::uint32_t{8});
  number(name + " element count", std::uint64_t{values.size()});
  for (const auto& value : values) string(name + " element", value);
  return *this;
}
GgufBuilder& GgufBuilder::align(std::uint32_t alignment) {
  alignment_ = alignment;
  return key("general.alignment", 4, alignment);
}
GgufBuilder& GgufBuilder::tensor(const std::string& name, const std::vector<std::uint64_t>& dims, std::uint32_t format,
                                 const std::string& data) {
  tensors_.push_back({name, dims, format, data});
  return *this;
}
GgufBuilder& GgufBuilder::hole(const std::string& name, const std::vector<std::uint64_t>& dims, std::uint32_t format, std::uint64_t bytes) {
  tensors_.push_back({name, dims, format, {}, bytes});
  return *this;
}

Built GgufBuilder::build() const {
  Built file;
  const auto put = [&](const std::string& name, auto value) {
    file.fields.push_back({name, file.bytes.size(), sizeof value});
    file.bytes += little_endian(value);
  };
  file.fields.push_back({"magic", 0, 4});
  file.bytes = "GGUF";
  put("version", version_);
  put("tensor_count", std::uint64_t{tensors_.size()});
  put("metadata_kv_count", keys_);
  for (Field field : entries_.fields) {
    field.offset += file.bytes.size();
    file.fields.push_back(field);
  }
  file.bytes += entries_.bytes;
  std::string data;
  std::uint64_t size = 0;  // bytes of tensor data, padding and holes so far
  for (const Tensor& tensor : tensors_) {
    put("tensor " + tensor.name + " name length", std::uint64_t{tensor.name.size()});
    file.bytes += tensor.name;
    put("tensor " + tensor.name + " dims", static_cast<std::uint32_t>(tensor.dims.size()));
    for (const std::uint64_t dim : tensor.dims) put("tensor " + tensor.name + " dim", dim);
    put("tensor " + tensor.name + " format", tensor.format);
    put("tensor " + tensor.name + " offset", size);
    data += tensor.data;
    data.resize((data.size() + alignment_ - 1) / alignment_ * alignment_);
    size = (size + tensor.data.size() + tensor.hole + alignment_ - 1) / alignment_ * alignment_;
  }
  file.header_bytes = file.bytes.size();
  file.bytes.resize((file.bytes.size() + alignment_ - 1) / alignment_ * alignment_);
  file.size = file.bytes.size() + size;
  file.bytes += data;
  return file;
}

GgufBuilder sample_gguf(std::uint32_t version) {
  GgufBuilder builder(version);
  builder.text("general.architecture", "llama").align(32);
  builder.key("t.u8", 0, std::uint8_t{200}).key("t.i8", 1, std::int8_t{-100}).key("t.u16", 2, std::uint16_t{60000});
  builder.key("t.i16", 3, std::int16_t{-30000}).key("t.u32", 4, std::uint32_t{4000000000u}).key("t.i32", 5, std::int32_t{-2000000000});
  builder.key("t.f32", 6, 1.5f).key("t.bool", 7, std::uint8_t{1}).key("t.u64", 10, std::uint64_t{1} << 63);
  builder.key("t.i64", 11, std::int64_t{-5}).key("t.f64", 12, 2.25);
  builder.array("a.u8", 0, std::vector<std::uint8_t>{1, 255}).array("a.i8", 1, std::vector<std::int8_t>{-1, 7});
  builder.array("a.u16", 2, std::vector<std::uint16_t>{65535}).array("a.i16", 3, std::vector<std::int16_t>{-32768});
  builder.array("a.u32", 4, std::vector<std::uint32_t>{4294967295u}).array("a.i32", 5, std::vector<std::int32_t>{3, -4});
  builder.array("a.f32", 6, std::vector<float>{0.5f, -0.5f}).array("a.bool", 7, std::vector<std::uint8_t>{1, 0, 1});
  builder.array("a.u64", 10, std::vector<std::uint64_t>{8}).array("a.i64", 11, std::vector<std::int64_t>{-9});
  builder.array("a.f64", 12, std::vector<double>{0.125});
  builder.texts("tokenizer.ggml.tokens", {"<s>", "", "\xC4\xA0the", std::string("a\0b", 3)});
  builder.tensor("norm", {8}, 0, floats({1, 2, 3, 4, 5, 6, 7, 8}));
  builder.tensor("half", {3, 2}, 1, pattern(12, 1));
  builder.tensor("q4", {32, 3}, 2, pattern(3 * 18, 2));
  builder.tensor("q6_k", {256, 1, 2}, 14, pattern(2 * 210, 3));
  builder.tensor("foreign", {256, 1, 1, 1}, 15, pattern(292, 4));
  builder.tensor("expanded", {256, 2}, 19, pattern(2 * 50, 5));
  return builder;
}

GgufBuilder sample_adapter() {
  GgufBuilder builder;
  builder.text("general.architecture", "llama").text("general.type", "adapter").text("adapter.type", "lora");
  builder.key("adapter.lora.alpha", 6, 4.0f);
  for (const char* matrix : {"blk.0.attn_q", "blk.0.ffn_down"}) {
    builder.tensor(std::string(matrix) + ".weight.lora_a", {8, 2}, 0, pattern(64, 31));
    builder.tensor(std::string(matrix) + ".weight.lora_b", {2, 8}, 1, pattern(32, 32));
  }
  return builder;
}

std::string safetensors_raw(const std::string& header, const std::string& data) {
  return little_endian(std::uint64_t{header.size()}) + header + data;
}

Built safetensors(const std::vector<SafeTensor>& tensors, const std::string& metadata) {
  Built file;
  std::string header = "{", data;
  const auto put_number = [&](const std::string& name, std::uint64_t value) {
    const std::string digits = std::to_string(value);
    file.fields.push_back({name, 8 + header.size(), digits.size()});
    header += digits;
  };
  if (!metadata.empty()) header += "\"__metadata__\":" + metadata + ",";
  for (const SafeTensor& tensor : tensors) {
    header += "\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      if (i > 0) header += ",";
      put_number("tensor " + tensor.name + " shape", static_cast<std::uint64_t>(tensor.shape[i]));
    }
    header += "],\"data_offsets\":[";
    put_number("tensor " + tensor.name + " begin", data.size());
    data += tensor.data;
    header += ",";
    put_number("tensor " + tensor.name + " end", data.size());
    header += "]},";
  }
  if (header.size() > 1) header.pop_back();
  header += "}";
  file.fields.insert(file.fields.begin(), {"header length", 0, 8});
  file.header_bytes = 8 + header.size();
  file.bytes = safetensors_raw(header, data);
  return file;
}

std::vector<SafeTensor> sample_tensors() {
  return {{"position_ids", "I64", {1, 2}, pattern(16, 7)},
          {"scalar", "F32", {}, floats({3.5f})},
          {"empty", "F16", {0, 4}, ""},
          {"weight", "F32", {2, 3}, floats({1, 2, 3, 4, 5, 6})},
          {"half", "F16", {4}, pattern(8, 8)},
          {"brain", "BF16", {2, 2}, pattern(8, 9)}};
}

std::vector<SafeTensor> sample_factors() {
  std::vector<SafeTensor> factors;
  for (const char* matrix : {"q_proj", "v_proj"}) {
    const std::string name = std::string("base_model.model.model.layers.0.self_attn.") + matrix;
    factors.push_back({name + ".lora_A.weight", "F32", {2, 8}, pattern(64, 41)});
    factors.push_back({name + ".lora_B.weight", "BF16", {8, 2}, pattern(32, 42)});
  }
  return factors;
}

Built write_prefix(const std::string& path) {
  PrefixHead head{.model = 0x0123456789abcdef, .made_by = "pumice 1, cpu, kv f16", .ids = {}, .page_bytes = 40, .state_bytes = 24};
  for (std::int32_t i = 0; i < 40; ++i) head.ids.push_back(i * 7 % 50);
  const auto bytes = [](const std::string& text) { return std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()); };
  PrefixWriter writer(path, head);
  writer.write(bytes(pattern(2 * head.page_bytes, 51)));
  writer.write_state(bytes(pattern(head.state_bytes, 52)));
  Built built{.size = writer.finish()};
  std::ifstream file(path, std::ios::binary);
  built.bytes.assign(std::istreambuf_iterator<char>(file), {});
  built.header_bytes = built.bytes.size() - 2 * head.page_bytes - head.state_bytes;
  built.fields = {{"version", 8, 4},      {"made_by", 12, 4},    {"bytes", 16, 8},    {"model", 24, 8},   {"tokens", 32, 8},
                  {"state_bytes", 40, 8}, {"page_bytes", 48, 8}, {"checksum", 56, 8}, {"first id", 85, 4}};
  return built;
}

std::vector<PackedFolder> sample_packed() {
  const std::string state = R"({"blocksize":64,"dtype":"float16","shape":[8,12],"nested_blocksize":256,"nested_offset":0.5})";
  return {
      {"gptq",
       R"({"quantization_config":{"quant_method":"gptq","bits":4,"group_size":32,"sym":false,"desc_act":true,"checkpoint_format":"gptq"}})",
       {{"m.qweight", "I32", {4, 32}, pattern(512, 21)},
        {"m.qzeros", "I32", {1, 4}, pattern(16, 22)},
        {"m.scales", "F16", {1, 32}, pattern(64, 23)},
        {"m.g_idx", "I32", {32}, std::string(128, '\0')}}},
      {"awq",
       R"({"quantization_config":{"quant_method":"awq","bits":4,"group_size":32,"version":"gemm","zero_point":true}})",
       {{"m.qweight", "I32", {32, 1}, pattern(128, 24)},
        {"m.qzeros", "I32", {1, 1}, pattern(4, 25)},
        {"m.scales", "F16", {1, 8}, pattern(16, 26)}}},
      {"compressed-tensors",
       R"({"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{"targets":["Linear"],"weights":)"
       R"({"num_bits":4,"type":"int","symmetric":false,"strategy":"group","group_size":32,"actorder":"group"}}}}})",
       {{"m.weight_packed", "I32", {8, 4}, pattern(128, 27)},
        {"m.weight_shape", "I64", {2}, little_endian(std::int64_t{8}) + little_endian(std::int64_t{32})},
        {"m.weight_scale", "F16", {8, 1}, pattern(16, 28)},
        {"m.weight_zero_point", "I32", {1, 1}, pattern(4, 29)},
        {"m.weight_g_idx", "I32", {32}, std::string(128, '\0')}}},
      {"MLX",
       R"({"quantization":{"group_size":32,"bits":4,"mode":"affine"}})",
       {{"m.weight", "U32", {8, 4}, pattern(128, 30)},
        {"m.scales", "F16", {8, 1}, pattern(16, 31)},
        {"m.biases", "F16", {8, 1}, pattern(16, 32)}}},
      {"FP8",
       R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[4,16]}})",
       {{"m.weight", "F8_E4M3", {7, 20}, pattern(140, 33)}, {"m.weight_scale_inv", "F32", {2, 2}, floats({1, 2, 3, 4})}}},
      {"FP8",
       R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[2,128]}})",
       {{"m.weight", "F8_E4M3", {3, 256}, pattern(768, 43)}, {"m.weight_scale_inv", "F32", {2, 2}, floats({1, 2, 3, 4})}}},
      {"bitsandbytes",
       R"({"quantization_config":{"quant_method":"bitsandbytes","load_in_4bit":true}})",
       {{"m.weight", "U8", {48, 1}, pattern(48, 34)},
        {"m.weight.absmax", "U8", {2}, pattern(2, 35)},
        {"m.weight.quant_map", "F32", {16}, pattern(64, 36)},
        {"m.weight.nested_absmax", "F32", {1}, floats({1})},
        {"m.weight.nested_quant_map", "F32", {256}, pattern(1024, 37)},
        {"m.weight.quant_state.bitsandbytes__nf4", "U8", {static_cast<std::int64_t>(state.size())}, state},
        {"n.weight", "I8", {2, 3}, pattern(6, 38)},
        {"n.SCB", "F32", {2}, floats({1, 2})}}},
      {"compressed-tensors",
       R"({"quantization_config":{"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized","config_groups":{"g":{"targets":["Linear"],)"
       R"("weights":{"num_bits":4,"type":"float","strategy":"tensor_group","group_size":16}}}}})",
       {{"m.weight_packed", "U8", {3, 16}, pattern(48, 39)},
        {"m.weight_scale", "F8_E4M3", {3, 2}, pattern(6, 40)},
        {"m.weight_global_scale", "F32", {1}, floats({3})}}},
      {"ModelOpt",
       R"({"quantization_config":{"quant_method":"modelopt","quant_algo":"NVFP4","ignore":["lm_head","n*"]}})",
       {{"m.weight", "U8", {3, 24}, pattern(72, 41)},
        {"m.weight_scale", "F8_E4M3", {3, 3}, pattern(9, 42)},
        {"m.weight_scale_2", "F32", {}, floats({3})}}},
      {"ModelOpt",
       R"({"quantization_config":{"quant_method":"modelopt","quant_algo":"MIXED_PRECISION","quantized_layers":{"m":{"quant_algo":"FP8"},)"
       R"("x.experts":{"quant_algo":"NVFP4","group_size":16}}}})",
       {{"m.weight", "F8_E4M3", {3, 20}, pattern(60, 44)},
        {"m.weight_scale", "F32", {3}, floats({1, 2, 3})},
        {"x.experts.up", "U8", {2, 16, 3}, pattern(96, 45)},
        {"x.experts.up_weight_scale", "F8_E4M3", {2, 2, 3}, pattern(12, 46)},
        {"x.experts.up_weight_scale_2", "F32", {2}, floats({3, 4})}}},
      {"FBGEMM",
       R"({"quantization_config":{"quant_method":"fbgemm_fp8"}})",
       {{"m.weight", "F8_E4M3", {3, 20}, pattern(60, 47)},
        {"m.weight_scale", "F32", {3, 1}, floats({1, 2, 3})},
        {"x.experts.up", "F8_E4M3", {2, 20, 3}, pattern(120, 48)},
        {"x.experts.up_scale", "F32", {2, 1, 3}, floats({1, 2, 3, 4, 5, 6})}}},
  };
}

std::string pattern(std::size_t bytes, std::uint32_t seed) {
  std::string data(bytes, '\0');
  std::uint32_t state = seed * 2654435761u + 1;
  for (char& byte : data) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<char>(state >> 24 & 0x3F);  // these bytes give small exponents, so the numbers are finite in every format
  }
  return data;
}

std::string floats(const std::vector<float>& values) {
  std::string bytes;
  for (const float value : values) bytes += little_endian(value);
  return bytes;
}

}  // namespace pumice::files::testing
