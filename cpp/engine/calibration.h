// Quantizes the matrices of a model's layers so that their products with the activations of given texts change little
// (quantize/calibrated.h). The texts are run through the model layer by layer. So memory holds the hidden rows of all texts, but the
// weights and the products of only one layer at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "files/model_file.h"
#include "model/description.h"
#include "model/model_programs.h"
#include "quantize/calibrated.h"

namespace pumice::engine {

// The token ids of the texts. No text attends to another one.
struct CalibrationTexts {
  std::vector<std::vector<std::int32_t>> seen;  // codes of weights are chosen so that products with these texts change little
  std::vector<std::vector<std::int32_t>> held;  // held-out texts, which are only used to compare results
};

// Thread-safe; calls of pack() run one after another.
class Calibration {
 public:
  // A tensor that is to be packed, and the format to pack it to.
  struct Wanted {
    std::string tensor;
    Format format;
  };
  // The input that a tensor is multiplied by, given as a layer and an index into the layer's ModelProgram::inputs.
  using Place = std::pair<std::size_t, std::size_t>;

  // Reads no weights. Throws what model::describe() throws. Throws invalid_argument if `seen` or `held` has no texts, or if a text is
  // empty. Throws context_length if a text is longer than the model's context.
  Calibration(std::shared_ptr<Backend> backend, std::shared_ptr<const files::ModelFile> file, CalibrationTexts texts,
              const std::vector<Wanted>& wanted);

  // Returns the input of each wanted tensor that is multiplied by exactly one input of one layer. Other tensors are missing from this map:
  // embeddings and output heads, experts, matrices whose attention heads each have an input of their own (HeadLinear), and matrices that
  // several layers share. pack() is fastest if it is called in the order of the places. If it goes back to an earlier layer, it must run
  // the texts through the model again from the first layer.
  const std::map<std::string, Place>& places() const { return places_; }
  // Returns the maximum number of bytes that pack() needs for one of the wanted tensors, its result included.
  std::uint64_t bytes() const { return bytes_; }

  struct Packed {
    std::vector<std::uint8_t> rows;
    quantize::Losses losses;
  };
  // Packs a tensor of places(). The packed bytes depend neither on threads nor on the order of calls. Throws out_of_memory if less than
  // bytes() is free before the first text is computed. Stops with ErrorKind::cancelled within 100 ms after `cancel` is requested. A later
  // call works as if the cancelled one had not been made.
  Packed pack(const std::string& tensor, Format format, const Cancel& cancel);
  // Returns the sum of x x^T (quantize/products.h) over the activation rows x that the tensor is multiplied by. `tensor` must be a key of
  // places(). The reference stays valid until the next call of pack() or input().
  const quantize::Input& input(const std::string& tensor, const Cancel& cancel);

 private:
  void require_room() const;
  void find_places(const std::vector<Wanted>& wanted);
  std::uint64_t most_bytes(const std::vector<Wanted>& wanted) const;
  Place place_of(const std::string& tensor) const;
  const quantize::Input& input_at(const Place& place, const Cancel& cancel);
  void embed(const Cancel& cancel);
  void pass(std::size_t layer, bool gathers, const Cancel& cancel);
  using Look = std::function<void(std::span<const float> rows, std::int32_t count, bool held)>;
  std::vector<float> run(const model::ModelProgram& program, std::int32_t kept, const Look& look, const Cancel& cancel) const;

  const std::shared_ptr<Backend> backend_;
  const std::shared_ptr<const files::ModelFile> file_;
  const CalibrationTexts texts_;
  const model::Description description_;
  const model::ModelPrograms programs_;
  std::map<std::string, Place> places_;
  std::vector<std::vector<bool>> needed_;  // [layer][input]: true if a wanted tensor is multiplied by this input
  std::uint64_t bytes_ = 0;

  std::mutex mutex_;                                      // guards all members below
  std::optional<std::size_t> at_;                         // the layer whose input is in rows_; empty if rows_ holds no rows yet
  std::vector<float> rows_;                               // hidden rows of all texts
  std::optional<std::size_t> gathered_;                   // the layer that inputs_ belongs to; empty if inputs_ is empty
  std::vector<std::unique_ptr<quantize::Input>> inputs_;  // sums of products, by index of the input; null for inputs that are not needed
  std::unique_ptr<quantize::CalibratedPacker> packer_;    // packs the matrices of the input packs_; null if not made yet
  Place packs_;                                           // the input that packer_ was made for; unused if packer_ is null
};

}  // namespace pumice::engine
