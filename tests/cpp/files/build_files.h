// Builds small GGUF and safetensors files for tests, and records the position of each number in them, so that tests can overwrite it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace pumice::files::testing {

// The position of a number or a name in a built file.
struct Field {
  std::string name;
  std::size_t offset = 0, size = 0;
};

struct Built {
  std::string bytes;
  std::vector<Field> fields;
  std::size_t header_bytes = 0;
  std::uint64_t size = 0;  // GGUF: bytes of the file, including the holes at its end, which `bytes` lacks
};

// A temporary folder, on a file system in memory if the machine has one. The destructor removes it.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  std::string path(const std::string& name = "") const { return (root_ / name).string(); }
  std::string write(const std::string& name, std::string_view bytes) const;  // returns the path
  // Writes the file with its holes, which take no disk space, and returns the path.
  std::string write(const std::string& name, const Built& file) const;

 private:
  std::filesystem::path root_;
};

class GgufBuilder {
 public:
  explicit GgufBuilder(std::uint32_t version = 3) : version_(version) {}

  // `type` is the number of the GGUF value type. T must be exactly as wide as that type.
  template <class T>
  GgufBuilder& key(const std::string& name, std::uint32_t type, T value) {
    begin_key(name, type);
    number(name, value);
    return *this;
  }
  template <class T>
  GgufBuilder& array(const std::string& name, std::uint32_t type, const std::vector<T>& values) {
    begin_key(name, 9);
    number(name + " element type", type);
    number(name + " element count", std::uint64_t{values.size()});
    for (const T value : values) number(name + " element", value);
    return *this;
  }
  GgufBuilder& text(const std::string& name, const std::string& value);
  GgufBuilder& texts(const std::string& name, const std::vector<std::string>& values);
  // `dims` are in GGUF's order, in which the length of a row comes first. `format` is the number of ggml's type.
  GgufBuilder& tensor(const std::string& name, const std::vector<std::uint64_t>& dims, std::uint32_t format, const std::string& data);
  // Adds a tensor whose bytes are a hole in the file. Built::bytes ends before the holes, and write() extends the file to Built::size. All
  // tensors with data must be added first.
  GgufBuilder& hole(const std::string& name, const std::vector<std::uint64_t>& dims, std::uint32_t format, std::uint64_t bytes);
  GgufBuilder& align(std::uint32_t alignment);  // adds the key general.alignment

  Built build() const;

 private:
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> dims;
    std::uint32_t format;
    std::string data;
    std::uint64_t hole = 0;  // bytes; 0 for a tensor with data
  };
  void begin_key(const std::string& name, std::uint32_t type);
  template <class T>
  void number(const std::string& name, T value);
  void string(const std::string& name, const std::string& value);

  std::uint32_t version_, alignment_ = 32;
  std::uint64_t keys_ = 0;
  Built entries_;  // the metadata entries; offsets count from the first entry
  std::vector<Tensor> tensors_;
};

// Returns the builder of a LoRA adapter in GGUF: the two factors of two matrices.
GgufBuilder sample_adapter();

// Returns the builder of a GGUF file with every value type and tensors of several formats. The engine does not support the last format.
GgufBuilder sample_gguf(std::uint32_t version);

struct SafeTensor {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::string data;
};
Built safetensors(const std::vector<SafeTensor>& tensors, const std::string& metadata = R"({"format":"pt"})");
// Returns a safetensors file of `header`, whose length is written before it, and `data`. Neither is checked.
std::string safetensors_raw(const std::string& header, const std::string& data);
std::vector<SafeTensor> sample_tensors();
std::vector<SafeTensor> sample_factors();  // of a PEFT adapter

// A folder whose matrix "m" another library packed.
struct PackedFolder {
  std::string name, config;  // of the scheme; config.json
  std::vector<SafeTensor> tensors;
};
std::vector<PackedFolder> sample_packed();  // one of each scheme, with a small matrix

// Writes a file of save_prefix() with two pages and a state. The fields are those of its head (files/prefix_file.h).
Built write_prefix(const std::string& path);

std::string pattern(std::size_t bytes, std::uint32_t seed);  // returns pseudorandom bytes
std::string floats(const std::vector<float>& values);

}  // namespace pumice::files::testing
