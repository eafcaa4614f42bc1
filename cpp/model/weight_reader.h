// WeightReader adds the weights of a model to a description, role by role. For each role it finds the tensor by name, checks its shape and
// format, adds adapters, and converts the format for load(quantize=). The data of large tensors are read later, by Matrix::read.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "model/adapters.h"
#include "model/description.h"
#include "model/row_sources.h"
#include "model/tensor_names.h"

namespace pumice::model {

class WeightReader {
 public:
  // The functions of this class add weights and notes to `d`.
  WeightReader(std::shared_ptr<const files::ModelFile> file, const TensorNames& names, Description& d, const DescribeOptions& options);

  // Returns the weight and the bias in this role. Their ids are `none` if the model does not use the role, or if the file lacks an optional
  // tensor. Throws ErrorKind::model_format with the tensor's name if a required tensor is missing or a tensor has the wrong shape.
  Parameter read(Role role, std::size_t layer);
  VectorId read_bias(Role role, std::size_t layer, std::int64_t length);
  // Returns the tensor name and all values of a table, for tables that are converted before operations use them (Need::elsewhere).
  Vector read_table(Role role) const;
  // The taps of a convolution, row after row, and the biases of these rows. `bias` is empty if the file has no biases.
  struct Taps {
    Vector rows;
    std::vector<float> bias;
  };
  // Returns the taps of the convolution in this role. The tensor's shape is [rows, 1, taps] in safetensors files and [rows, taps] in GGUF
  // files.
  Taps read_taps(Role role, std::size_t layer) const;
  [[noreturn]] void missing_bias(Role role, std::size_t layer) const { names_.missing(role, layer, "bias"); }
  // Gives a tied head the matrix of the token embedding. If the embedding or the head has an adapter, the head gets a matrix of its own
  // that is read from the embedding's tensor, because an adapter of one of the two must not change the other.
  void tie_head(Parameter& head);

  // Gives the decoder of an MLM head a matrix of its own, which is read from the token embedding's tensor. This matrix is used for
  // products, and the matrix of the embedding for lookups.
  void tie_mlm_decoder(Parameter& decoder);

  void quantize(MatrixId id);
  // Adds notes to Description::notes. For matrices that another library packed, a note has the format in which they are read. For an
  // encoder with load(quantize="q8_0"), a note has the number of Q8_0 matrices that a CPU multiplies as 8-bit codes. Must be called after
  // all matrices have been read.
  void note_formats();
  void require_all_adapters_used() const { lora_.require_all_used(*file_); }

 private:
  std::vector<float> values_of(const TensorNames::Found& found, std::int64_t length, std::int64_t columns = 0) const;
  std::vector<float> values_of_experts(const TensorNames::Found& found, const Asked& ask) const;
  std::vector<float> values_in(const files::TensorInfo& tensor, const Part& part, std::int64_t count) const;
  void require_readable(const files::TensorInfo& tensor) const;
  void read_matrix(Parameter& parameter, const TensorNames::Found& found, Role role, std::size_t layer);
  Matrix open(const TensorNames::Found& found, const Asked& ask, Part& part) const;
  ReadRows open_mxfp4(const files::TensorInfo& blocks, const Asked& ask, const Part& part) const;
  Matrix open_heads(const TensorNames::Found& found, const Asked& ask, Role role) const;
  Matrix open_stack(const TensorNames::Found& found, const Asked& ask, Role role, std::size_t layer) const;
  void finish(Matrix& matrix, bool in_bytes);
  Format changed_format(const Matrix& matrix) const;
  void merge(Matrix& matrix, const Part& part, AddRow add, Format kept) const;
  void keep_apart(Parameter& parameter, const Matrix& matrix, const LowRank& low, const Part& part);
  bool quantize(Matrix& matrix);

  std::shared_ptr<const files::ModelFile> file_;
  const TensorNames& names_;
  Description& d_;
  std::optional<Format> quantize_;
  Compute compute_;
  std::shared_ptr<files::Slices> slices_ = std::make_shared<files::Slices>();
  Adapters adapters_;
  Lora lora_;
  std::vector<std::pair<const files::TensorInfo*, MatrixId>> packed_;  // matrices that another library packed
  // Numbers of Q8_0 matrices that a CPU multiplies as 8-bit codes (Rounding::bytes) and as 13-bit codes.
  int in_bytes_ = 0, not_in_bytes_ = 0;
  // The matrices that have been read. The key has the tensor, Part::first, Part::run, the weight's name if an adapter changes the weight
  // (otherwise empty), and whether the matrix is used for products.
  std::map<std::tuple<const files::TensorInfo*, std::int64_t, std::int64_t, std::string, bool>, Parameter> matrices_;
};

}  // namespace pumice::model
