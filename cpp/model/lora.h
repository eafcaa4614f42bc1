// Low-rank adapters for load(lora=), which are PEFT folders or GGUF adapters. python/pumice/loading/lora.py finds the names of the adapted
// modules and the scales. The code here finds the matrices of the model that the adapters change, and checks shapes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "files/model_file.h"
#include "model/low_rank.h"

namespace pumice::model {

// Says in which shapes an adapter's file stores the factors a and b. The adapted matrix is W + scale * b a, where W is a rows x cols
// matrix.
enum class LoraLayout : std::uint8_t {
  linear,  // a: rank x cols, b: rows x rank
  // PEFT's layout for embedding tables, in which the adapter changes the transposed table. a: rank x rows, b: cols x rank.
  embedding,
  embedding_rows,  // GGUF's layout for embedding tables. a: rows x rank, b: cols x rank
};
struct LoraModule {
  // The name of the adapted weight in the model's file, without ".weight", as in "model.layers.0.self_attn.q_proj" or "blk.0.attn_q".
  std::string name;
  std::string a, b;  // names of the factors' tensors in the adapter's file
  float scale = 1;
  LoraLayout layout = LoraLayout::linear;
};
struct LoraSpec {
  std::shared_ptr<const files::ModelFile> file;
  std::vector<LoraModule> modules;
};

class Lora {
 public:
  explicit Lora(std::vector<LoraSpec> specs);

  // Returns the sum of all adapters of a matrix, including their scales, or nullopt if no adapter changes it. `names` are all names of the
  // matrix. Throws ErrorKind::model_format if a factor is missing or has the wrong shape.
  std::optional<LowRank> of(std::span<const std::string> names, std::int64_t rows, std::int64_t cols);
  bool has(std::span<const std::string> names) const;

  // Throws ErrorKind::model_format if an adapter changes a matrix that of() was never called for. The message names the first such matrix.
  void require_all_used(const files::ModelFile& model) const;

 private:
  struct Entry {
    const LoraSpec* spec;
    const LoraModule* module;
    bool used = false;
  };
  LowRank read(const Entry& entry, std::int64_t rows, std::int64_t cols) const;
  std::vector<float> factor(const Entry& entry, const std::string& name, std::int64_t first, std::int64_t second) const;

  const std::vector<LoraSpec> specs_;
  std::vector<Entry> entries_;
  std::vector<std::string> asked_;
};

}  // namespace pumice::model
