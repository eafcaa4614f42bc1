// Changes inputs of fuzz targets by what their bytes mean: fields of GGUF files, values of JSON texts, headers of safetensors files.
// Changes of single bytes alone would hardly ever get behind the first checks of a header.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/targets.h"

namespace pumice::fuzz {

// Changes single bytes of a text, and may make it longer. libFuzzer has such a function (LLVMFuzzerMutate).
using MutateBytes = std::function<std::string(std::string_view bytes)>;

class Mutator {
 public:
  // Takes names and texts from the seeds, to put them into other places of an input.
  Mutator(Form form, const std::vector<std::string>& seeds);
  // Returns a changed input. It may be longer than `most`, in which case a caller has to cut it or to ask again.
  std::string mutate(std::string_view input, std::size_t most, std::uint32_t seed, const MutateBytes& bytes) const;

 private:
  Form form_;
  std::vector<std::string> words_;
};

}  // namespace pumice::fuzz
