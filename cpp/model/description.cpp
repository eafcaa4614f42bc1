#include "model/description.h"

#include <algorithm>
#include <cstring>

#include "files/model_file.h"
#include "model/places.h"
#include "model/positions.h"
#include "model/rope_factors.h"
#include "model/tensor_names.h"
#include "model/weight_reader.h"

namespace pumice::model {
namespace {

class Resolver {
 public:
  Resolver(std::shared_ptr<const files::ModelFile> file, const DescribeOptions& options)
      : file_(std::move(file)),
        options_(options),
        d_{.config = read_config(*file_)},
        names_(*file_, d_.config),
        reader_(file_, names_, d_, options) {
    d_.files.push_back(file_);
    for (const LoraSpec& adapter : options.lora) d_.files.push_back(adapter.file);
    d_.notes = d_.config.notes;
    d_.incomplete = d_.config.incomplete;
  }

  Description run() {
    read_roles();
    score_by_difference();
    find_head();
    quantize_tied_embedding();
    divide_by_rope_factors(*file_, d_.config);
    add_position_tables(reader_, d_);
    finish();
    add_places(reader_, d_, options_.compute == Compute::automatic ? Rounding::floats : Rounding::none);
    reader_.require_all_adapters_used();
    note_unread();
    return std::move(d_);
  }

 private:
  static constexpr std::size_t index(Role role) { return static_cast<std::size_t>(role); }
  const Config& config() const { return d_.config; }

  void read_roles() {
    d_.layers.resize(config().layers.size());
    for (std::size_t i = 0; i < kRoles; ++i) {
      const auto role = static_cast<Role>(i);
      if (!of_layer(role)) {
        d_.globals[i] = reader_.read(role, 0);
        if (role == Role::token_embedding) d_.vocab_size = rows_of(role);
        if (role == Role::classifier) d_.labels = rows_of(role);
        continue;
      }
      for (std::size_t layer = 0; layer < d_.layers.size(); ++layer)
        d_.layers[layer][i] = layer > 0 && names_.shared(role) ? d_.layers[0][i] : reader_.read(role, layer);
      require_equal_biases(role);
    }
  }
  std::int32_t rows_of(Role role) const {
    const MatrixId id = d_.global(role).matrix;
    return id == MatrixId::none ? 0 : static_cast<std::int32_t>(d_.matrix(id).rows);
  }

  // No model has a bias in some layers alone: a file that has lost one would run without it and say nothing.
  void require_equal_biases(Role role) const {
    const auto has = [&](std::size_t layer) { return d_.at(layer, role).bias != VectorId::none; };
    std::size_t with = 0;
    while (with < d_.layers.size() && !has(with)) ++with;
    for (std::size_t layer = 0; with < d_.layers.size() && layer < d_.layers.size(); ++layer) {
      if (d_.at(layer, role).present() && !has(layer)) names_.missing(role, layer, "bias");
    }
  }

  // GGUF files of Qwen3-Reranker keep of the head the rows of "yes" and "no": how much likelier yes is than no is the score.
  void score_by_difference() {
    constexpr std::int64_t kRank = 4;  // of llama.cpp's enum llama_pooling_type
    const std::string key = str(file_->string("general.architecture").value_or(""), ".pooling_type");
    if (!config().gguf || !config().has_head || d_.labels != 2 || file_->integer(key) != kRank) return;
    const Parameter pair = d_.global(Role::classifier);
    const Matrix& rows = d_.matrix(pair.matrix);
    Matrix difference{.name = rows.name, .format = Format::F32, .rows = 1, .cols = rows.cols};
    difference.read = [floats = floats_of(rows), cols = rows.cols](std::int64_t, std::int64_t count, std::uint8_t* out) {
      if (count < 1) return;
      std::vector<float> yes_no(static_cast<std::size_t>(2 * cols));
      floats(0, 2, yes_no.data());
      for (std::int64_t i = 0; i < cols; ++i) yes_no[static_cast<std::size_t>(i)] -= yes_no[static_cast<std::size_t>(cols + i)];
      std::memcpy(out, yes_no.data(), static_cast<std::size_t>(cols) * sizeof(float));
    };
    Parameter& score = d_.globals[index(Role::classifier)];
    score.matrix = d_.add(std::move(difference));
    if (pair.bias != VectorId::none) {
      const std::vector<float>& bias = d_.vector(pair.bias).values;
      score.bias = d_.add(Vector{.name = "score bias", .values = {bias[0] - bias[1]}});
    }
    d_.labels = 1;
  }

  // A head without a matrix of its own is the embedding. The tensor decides: config.json is wrong about it in both directions, but where it
  // says that there must be one. Whether there is a head at all is the file's: decoders without one are embedders, whose tensors have no
  // wrapper's prefix, or classifiers.
  void find_head() {
    Config& c = d_.config;
    if (!c.has_head) return;
    Parameter& head = d_.globals[index(Role::head)];
    const bool causal = c.layers.front().attention.causal, tied = c.gguf || file_->boolean("tie_word_embeddings") != false;
    if (!causal || d_.labels > 0 || (!head.present() && !tied && !names_.wrapped())) {
      c.has_head = false;
      head = {};
    } else if (!head.present() && !tied) {
      names_.missing(Role::head, 0, "weight");
    } else if (!head.present()) {
      reader_.tie_head(head);
    }
  }

  void quantize_tied_embedding() {
    const MatrixId embedding = d_.global(Role::token_embedding).matrix;
    if (d_.global(Role::head).matrix == embedding && embedding != MatrixId::none) reader_.quantize(embedding);
  }

  void finish() {
    if (const MatrixId positions = d_.global(Role::position_embedding).matrix; positions != MatrixId::none) {
      d_.config.n_ctx = std::min(d_.config.n_ctx, d_.matrix(positions).rows);
    }
    if (d_.labels > 0 && config().classifier.dense && !d_.global(Role::head_dense).present()) {
      d_.incomplete.push_back(str("lacks the dense layer before the classifier (", names_.first_name(Role::head_dense, 0, "weight"),
                                  "): scores are not the original model's, neither in scale nor always in order. Load its folder"));
    }
    for (const Matrix& matrix : d_.weights.matrices)
      d_.parameters += static_cast<std::uint64_t>(matrix.rows) * static_cast<std::uint64_t>(matrix.cols);
    for (const Vector& vector : d_.weights.vectors) d_.parameters += vector.values.size();
  }

  void note_unread() {
    const std::string unread = names_.unread([&](Role role) {
      for (std::size_t layer = 0; layer < d_.layers.size(); ++layer)
        if (asked(d_, role, layer).need != Need::never) return true;
      return false;
    });
    if (!unread.empty()) d_.incomplete.push_back(unread);
  }

  std::shared_ptr<const files::ModelFile> file_;
  const DescribeOptions& options_;
  Description d_;
  TensorNames names_;
  WeightReader reader_;
};

}  // namespace

Description describe(std::shared_ptr<const files::ModelFile> file, const DescribeOptions& options) {
  if (options.quantize && !can_pack(*options.quantize))
    fail(ErrorKind::invalid_argument, "quantize: ", name(*options.quantize), " cannot be written; there are q8_0, q4_0 and q4_k");
  return Resolver(std::move(file), options).run();
}

}  // namespace pumice::model
