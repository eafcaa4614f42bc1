#include "model/description.h"

#include <algorithm>
#include <span>

#include "files/model_file.h"
#include "model/mixers/places.h"
#include "model/positions.h"
#include "model/rope_factors.h"
#include "model/taps.h"
#include "model/tensor_names.h"
#include "model/weight_reader.h"

namespace pumice::model {
namespace {

class Resolver {
 public:
  // If `file` is an assistant, `model` is the model that it drafts tokens for. Otherwise `model` is null.
  Resolver(std::shared_ptr<const files::ModelFile> file, const DescribeOptions& options, const Description* model = nullptr)
      : file_(std::move(file)),
        options_(options),
        d_{.config = read_config(*file_, model != nullptr), .weights = model ? model->weights : Weights()},
        model_matrices_(d_.weights.matrices.size()),
        model_vectors_(d_.weights.vectors.size()),
        names_(*file_, d_.config),
        reader_(file_, names_, d_, options) {
    if (!options.draft) drop_draft("it was loaded with mtp=False");
    choose_mlm_head();
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
    read_mlm_decoder();
    reader_.note_formats();
    divide_by_rope_factors(*file_, d_.config);
    add_position_tables(reader_, d_);
    finish();
    cut_mlm_decoder();
    add_taps(reader_, d_);
    add_key_norms(d_);
    add_places(reader_, d_, options_.compute == Compute::automatic ? Rounding::floats : Rounding::none);
    reader_.require_all_adapters_used();
    note_unread();
    return std::move(d_);
  }

 private:
  static constexpr std::size_t index(Role role) { return static_cast<std::size_t>(role); }
  const Config& config() const { return d_.config; }

  void read_roles() {
    d_.layers.resize(config().all_layers());
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

  // Throws if the file has the role's bias in some layers but not in all layers that have the role, because results would then be wrong.
  void require_equal_biases(Role role) const {
    const auto has = [&](std::size_t layer) { return d_.at(layer, role).bias != VectorId::none; };
    std::size_t with = 0;
    while (with < d_.layers.size() && !has(with)) ++with;
    for (std::size_t layer = 0; with < d_.layers.size() && layer < d_.layers.size(); ++layer) {
      if (d_.at(layer, role).present() && !has(layer)) names_.missing(role, layer, "bias");
    }
  }

  void drop_draft(const char* why) {
    if (!config().draft) return;
    d_.config.draft.reset();
    d_.config.why_no_draft = why;
    if (!d_.layers.empty()) d_.layers.resize(config().layers.size());
  }

  void score_by_difference() {
    if (!config().classifier.difference || d_.labels != 2) return;
    const Parameter pair = d_.global(Role::classifier);
    Parameter& score = d_.globals[index(Role::classifier)];
    score.matrix = d_.add(difference_of_rows(d_.matrix(pair.matrix)));
    if (pair.bias != VectorId::none) {
      const std::vector<float>& bias = d_.vector(pair.bias).values;
      score.bias = d_.add(Vector{.name = "score bias", .values = {bias[0] - bias[1]}});
    }
    d_.labels = 1;
  }

  // Decides whether the model has an output head, and finds the head's matrix. Models with bidirectional attention, classifiers and
  // embedders have no head. A model is an embedder if its tensor names lack the prefix of a wrapper class, and if the file lacks the dense
  // layer before the head, or lacks the head's matrix although config.json says that the head is not tied to the embedding.
  // A matrix for the head is used even if config.json says that the head is tied, because config.json can be wrong. Without such a matrix,
  // the embedding is used.
  void find_head() {
    Config& c = d_.config;
    if (!c.has_head) return;
    Parameter& head = d_.globals[index(Role::head)];
    const bool causal = c.causal(), tied = c.gguf || file_->boolean("tie_word_embeddings") != false;
    const bool lacks_dense = c.head_transform && !d_.global(Role::head_dense).present();
    if (!causal || d_.labels > 0 || (((!head.present() && !tied) || lacks_dense) && !names_.wrapped())) {
      c.has_head = false;
      head = {};
      drop_draft("it is loaded without an output head");
    } else if (lacks_dense) {
      names_.missing(Role::head_dense, 0, "weight");
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

  // Removes the MLM head from the configuration if the model is loaded without it. With MlmUse::maybe, the head stays only if config.json
  // names a class for predicting masked tokens and the file has the head's tensors.
  void choose_mlm_head() {
    std::optional<MlmHead>& head = d_.config.mlm_head;
    if (options_.mlm_head == MlmUse::always && !head)
      fail(ErrorKind::unsupported_model, file_->path(),
           ": sparse vectors need a head that predicts masked tokens, which this version does ", "not run for \"", config().family->name,
           "\"", config().gguf ? " in GGUF files. Load the model's folder of safetensors" : "");
    if (!head || options_.mlm_head == MlmUse::always) return;
    const files::Value* classes = file_->value("architectures");  // ignored if it is not a list of strings
    const auto* names = classes ? std::get_if<files::StringList>(classes) : nullptr;
    const bool named = names && names->size() > 0 && std::string((*names)[0]).ends_with("ForMaskedLM");
    const bool there = !head->dense || names_.weight(Role::mlm_dense, 0).tensor;
    if (options_.mlm_head == MlmUse::never || !named || !there) head.reset();
  }

  // If the file has no matrix for the MLM head's decoder, the decoder becomes the token embedding. If config.json says that decoder and
  // embedding are not tied, the missing matrix is an error.
  void read_mlm_decoder() {
    if (!config().mlm_head) return;
    Parameter& decoder = d_.globals[index(Role::mlm_decoder)];
    if (decoder.present()) return;
    if (file_->boolean("tie_word_embeddings") == false) names_.missing(Role::mlm_decoder, 0, "weight");
    reader_.tie_mlm_decoder(decoder);
  }

  // Cuts the MLM decoder into strips of kMlmStrip rows. Each strip becomes a matrix of its own with its part of the bias. Programs use only
  // the strips.
  void cut_mlm_decoder() {
    if (!config().mlm_head) return;
    const Parameter whole = d_.global(Role::mlm_decoder);
    for (std::int64_t first = 0; first < d_.vocab_size; first += kMlmStrip) {
      const std::int64_t rows = std::min(kMlmStrip, d_.vocab_size - first);
      Parameter strip;
      Matrix matrix = d_.matrix(whole.matrix);
      const auto behind = [first](auto read) {
        return [first, read = std::move(read)](std::int64_t row, std::int64_t count, auto* out) { read(first + row, count, out); };
      };
      matrix.name += str(" (rows from ", first, ")");
      matrix.rows = rows;
      matrix.read = behind(matrix.read);
      if (matrix.read_floats) matrix.read_floats = behind(matrix.read_floats);
      strip.matrix = d_.add(std::move(matrix));
      d_.copies.push_back(strip.matrix);
      if (whole.bias != VectorId::none) {
        const Vector& bias = d_.vector(whole.bias);
        const auto begin = bias.values.begin() + static_cast<std::ptrdiff_t>(first);
        strip.bias = d_.add(Vector{.name = bias.name, .values = {begin, begin + static_cast<std::ptrdiff_t>(rows)}});
      }
      d_.mlm_strips.push_back(strip);
    }
  }

  // If the model has a matrix that projects token rows (voyage-4-nano), makes it the first module.
  void project_rows() {
    const Parameter& projection = d_.global(Role::row_projection);
    if (!projection.present()) return;
    d_.modules.push_back({.kind = ModuleKind::dense, .on_tokens = true, .width = rows_of(Role::row_projection), .weight = projection});
  }

  void finish() {
    project_rows();
    if (const MatrixId positions = d_.global(Role::position_embedding).matrix; positions != MatrixId::none) {
      d_.config.n_ctx = std::min(d_.config.n_ctx, d_.matrix(positions).rows);
    }
    if (d_.labels > 0 && config().classifier.has_dense() && !d_.global(Role::head_dense).present()) {
      d_.incomplete.push_back(str("lacks the dense layer before the classifier (", names_.first_name(Role::head_dense, 0, "weight"),
                                  "): scores are not the original model's, neither in scale nor always in order. Load its folder"));
    }
    for (std::size_t i = model_matrices_; i < d_.weights.matrices.size(); ++i) {
      const Matrix& matrix = d_.weights.matrices[i];
      if (std::ranges::find(d_.copies, static_cast<MatrixId>(i)) != d_.copies.end()) continue;
      d_.parameters += static_cast<std::uint64_t>(matrix.rows) * static_cast<std::uint64_t>(matrix.cols);
    }
    for (const Vector& vector : std::span(d_.weights.vectors).subspan(model_vectors_)) d_.parameters += vector.values.size();
    if (config().draft) {
      d_.sides.push_back({.kind = SideKind::draft_head});
      const auto width = static_cast<std::size_t>(config().hidden_size);
      std::vector<float> taps(2 * width, 0.0f);
      std::fill_n(taps.begin(), width, 1.0f);  // out[t] = 1 * in[t - 1] + 0 * in[t]
      d_.draft_shift = d_.add(Vector{.name = "shift of hidden rows", .values = std::move(taps)});
    }
  }

  // Adds an entry to Description::incomplete if the file has tensors that no role uses. If some of them belong to layers, throws unless
  // DescribeOptions::allow_unread is true, because results would differ from the original model's.
  void note_unread() {
    const TensorNames::Unread unread = names_.unread([&](Role role) {
      for (std::size_t layer = 0; layer < d_.layers.size(); ++layer)
        if (asked(d_, role, layer).need != Need::never) return true;
      return false;
    });
    const std::size_t in_layers = unread.in_layers.size(), count = in_layers + unread.others.size();
    if (count == 0) return;
    const std::string& first = in_layers > 0 ? unread.in_layers.front() : unread.others.front();
    if (in_layers > 0 && !options_.allow_unread) {
      const std::string more = in_layers > 1 ? str(" and ", in_layers - 1, " other tensor", in_layers > 2 ? "s" : "") : "";
      throw Error(ErrorKind::model_format,
                  str(file_->path(), ": tensor ", first, more, " of the layers of this \"", config().family->name,
                      "\": this version does not read ", in_layers > 1 ? "them" : "it",
                      ", so results would not be the original's. load(unread_tensors=\"warn\") runs the model without ",
                      in_layers > 1 ? "them" : "it"))
          .in_file(file_->path())
          .at_field(first);
    }
    d_.incomplete.push_back(str("has ", count, " tensor", count > 1 ? "s" : "", " that this \"", config().family->name,
                                "\" does not read (", first, count > 1 ? " is the first" : "",
                                "): not run, so results may not be the original's"));
  }

  std::shared_ptr<const files::ModelFile> file_;
  const DescribeOptions& options_;
  Description d_;
  // For an assistant, the numbers of the model's matrices and vectors, which come first in Description::weights. Otherwise 0.
  const std::size_t model_matrices_, model_vectors_;
  TensorNames names_;
  WeightReader reader_;
};

}  // namespace

Description describe(std::shared_ptr<const files::ModelFile> file, const DescribeOptions& options) {
  if (options.quantize && !can_pack(*options.quantize))
    fail(ErrorKind::invalid_argument, "quantize: ", name(*options.quantize), " cannot be written");
  return Resolver(std::move(file), options).run();
}

Description describe_assistant(std::shared_ptr<const files::ModelFile> file, const DescribeOptions& options, const Description& model) {
  return Resolver(std::move(file), options, &model).run();
}

}  // namespace pumice::model
