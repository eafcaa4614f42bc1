// Packs the matrices of a model's layers with what they are multiplied by in texts (quantize/calibrated.h). The texts go through the model
// layer by layer, so one layer's weights and one layer's products are in memory at a time, and the hidden rows of all texts.
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

// The token ids of the texts. Each text is computed by itself, from its first token on.
struct CalibrationTexts {
  std::vector<std::vector<std::int32_t>> seen;  // codes are chosen for these
  std::vector<std::vector<std::int32_t>> held;  // and judged by these
};

// Thread-safe; calls of pack() run one after another.
class Calibration {
 public:
  // A tensor that is to be packed.
  struct Wanted {
    std::string tensor;
    Format format;
  };
  // What a tensor is multiplied by: an input of a layer.
  using Place = std::pair<std::size_t, std::size_t>;

  // Reads no weights. Throws what model::describe() throws; invalid_argument if there are no texts or an empty one; context_length if a
  // text is longer than the model's context.
  Calibration(std::shared_ptr<Backend> backend, std::shared_ptr<const files::ModelFile> file, CalibrationTexts texts,
              const std::vector<Wanted>& wanted);

  // The inputs of those wanted tensors that one input of one layer is multiplied with. Others have none: embeddings and heads, experts,
  // matrices of which each head has its own input (HeadLinear), and matrices that several layers share. pack() is fastest in the order of
  // the places.
  const std::map<std::string, Place>& places() const { return places_; }
  // The most bytes that pack() takes for the wanted tensors, its result included.
  std::uint64_t bytes() const { return bytes_; }

  struct Packed {
    std::vector<std::uint8_t> rows;
    quantize::Losses losses;
  };
  // Packs a tensor of places(). The bytes depend neither on threads nor on the order of calls. Throws out_of_memory if less than bytes() is
  // free before the first text is computed. Stops with ErrorKind::cancelled within 100 ms after `cancel` is requested; a later call starts
  // anew.
  Packed pack(const std::string& tensor, Format format, const Cancel& cancel);
  // Returns what is known of the input of a tensor of places(). It stays valid until the next call of pack() or input().
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
  std::vector<std::vector<bool>> needed_;  // [layer][input]: whether a wanted tensor is multiplied by it
  std::uint64_t bytes_ = 0;

  std::mutex mutex_;                     // guards what follows
  std::optional<std::size_t> at_;        // the layer whose input `rows_` has; nothing: `rows_` is empty
  std::vector<float> rows_;              // of all texts
  std::optional<std::size_t> gathered_;  // the layer whose inputs `inputs_` has
  std::vector<std::unique_ptr<quantize::Input>> inputs_;
  std::unique_ptr<quantize::CalibratedPacker> packer_;  // for the input `packs_`
  Place packs_;
};

}  // namespace pumice::engine
