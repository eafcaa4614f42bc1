// What is fuzzed: each target reads an input of any bytes through one reader of pumice. It must load, so that all its contents can be read,
// or be refused with a typed error that names the file. `make fuzz` makes a libFuzzer program of each target (fuzzer.cpp); replay_test.cpp
// runs the inputs that such programs have found, and is an ordinary test.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pumice::fuzz {

// What the bytes of an input are, so that mutate() can change a part of them and leave the rest readable.
enum class Form {
  gguf,
  safetensors,
  json,
  json_pair,             // two JSON texts, with a NUL between them
  json_and_safetensors,  // a JSON text, NUL, a safetensors file
  prefix,                // a prefix file (files/prefix_file.h)
  adapter,               // a GGUF or a safetensors file
};

struct Target {
  const char* name;
  Form form;
  // Returns whether the input loads. Throws std::runtime_error if it is refused in an unsound way. All other exceptions are findings, too.
  bool (*run)(std::string_view input);
  std::vector<std::string> (*seeds)();  // small inputs that load
};

std::span<const Target> targets();
const Target& target(std::string_view name);  // throws std::out_of_range

// Splits an input at its first NUL. The second part is empty if it has none.
std::pair<std::string_view, std::string_view> halves(std::string_view input);

}  // namespace pumice::fuzz
