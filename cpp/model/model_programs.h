// Keeps a model's programs, because placement, packing, foresee() and prepare() all need them. Each program is written and checked when it
// is first requested.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "core/program_check.h"
#include "model/description.h"
#include "model/programs.h"

namespace pumice::model {

struct ModelProgram {
  Program program;
  std::vector<bool> matrices;     // one flag per MatrixId: true if the program uses the matrix
  std::int32_t input_width = 0;   // number of floats in an input row; 0 if the input is ids
  std::int32_t output_width = 0;  // number of floats in an output row
  // The Attend operation whose inputs are columns of the output rows. Set only in the result of queries().
  Attend attend = {};
  // The columns of the output rows that are inputs of matrix products. Set only in the result of products().
  std::vector<ProductInput> inputs = {};
};

// Checks a program and returns it with its matrices and widths.
ModelProgram model_program(Program program, const WeightShapes& shapes);

// Writes the programs of a model when they are first requested, and keeps them. Thread-safe. The description must outlive this object, and
// must not change while this object exists.
class ModelPrograms {
 public:
  // `kv_format` is the format of keys and values in the caches of decoders.
  explicit ModelPrograms(const Description& description, KvFormat kv_format = KvFormat::f16);
  ModelPrograms(const ModelPrograms&) = delete;
  ModelPrograms& operator=(const ModelPrograms&) = delete;

  const Description& description() const { return d_; }
  const WeightShapes& shapes() const { return shapes_; }
  KvFormat kv_format() const { return kv_format_; }

  // Each of these functions returns the program that the function of a similar name in model/programs.h writes. For example, body() returns
  // the program of body_program(), and queries() that of query_program().
  const ModelProgram& body(std::size_t first, std::size_t last, Output output) const;
  const ModelProgram& layer(std::size_t layer) const;
  const ModelProgram& queries(std::size_t layer) const;
  const ModelProgram& products(std::size_t layer) const;
  const ModelProgram& head() const;
  // `side` is an index in Description::sides.
  const ModelProgram& side(std::size_t side, std::size_t first, bool after_trunk) const;
  const ModelProgram& side_logits(std::size_t side) const;
  const ModelProgram& log_probs() const;
  const ModelProgram& top() const;

 private:
  enum class Kind : std::uint8_t { body, layer, queries, products, side_first, side_next, side_logits, head, log_probs, top };
  using Key = std::tuple<Kind, std::size_t, std::size_t, Output>;
  const ModelProgram& get(const Key& key, const std::function<Program(ModelProgram&)>& write) const;

  const Description& d_;
  const KvFormat kv_format_;
  const WeightShapes shapes_;
  mutable std::mutex mutex_;
  mutable std::map<Key, ModelProgram> known_;
};

}  // namespace pumice::model
