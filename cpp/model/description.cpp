#include "model/description.h"

#include <algorithm>
#include <numeric>

#include "core/checked.h"
#include "files/model_file.h"

namespace pumice::model {
namespace {

constexpr std::size_t kNamesCompared = 4096;  // for "did you mean": enough for any model, bounded for a bomb

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

std::string with_layer(std::string_view pattern, std::size_t layer) {
  const std::size_t hole = pattern.find("{}");
  if (hole == std::string_view::npos) return std::string(pattern);
  return str(pattern.substr(0, hole), layer, pattern.substr(hole + 2));
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

class Resolver {
 public:
  Resolver(std::shared_ptr<const files::ModelFile> file, std::optional<Format> quantize, Compute compute)
      : file_(std::move(file)), quantize_(quantize), compute_(compute) {
    d_.config = read_config(*file_);
  }

  Description run() {
    const Architecture& row = *d_.config.architecture;
    if (!d_.config.gguf) choose_prefix();
    d_.blocks.resize(d_.config.layers.size());
    for (const RoleName& name : row.roles) {
      const bool per_layer = name.gguf.find("{}") != std::string_view::npos;
      if (!per_layer) {
        d_.globals[index(name.role)] = resolve(name, 0);
        continue;
      }
      for (std::size_t layer = 0; layer < d_.blocks.size(); ++layer) d_.blocks[layer][index(name.role)] = resolve(name, layer);
    }
    Parameter& head = d_.globals[index(Role::head)];
    if (row.task == Task::generate && !head.present() && !d_.config.gguf && file_->boolean("tie_word_embeddings") == false)
      missing("lm_head.weight");
    if (row.task == Task::generate && !head.present()) head.matrix = d_.global(Role::token_embedding).matrix;  // tied
    quantise_tied_embedding();
    read_rope_factors();
    finish();
    return std::move(d_);
  }

 private:
  static constexpr std::size_t index(Role role) { return static_cast<std::size_t>(role); }

  // transformers saves a model with or without the task's wrapper: the token embedding tells which.
  void choose_prefix() {
    const auto names = d_.config.architecture->roles;
    const auto embedding = std::ranges::find(names, Role::token_embedding, &RoleName::role);
    for (std::string_view prefix : d_.config.architecture->prefixes) {
      if (file_->find(str(prefix, embedding->safetensors, ".weight"))) {
        prefix_ = prefix;
        return;
      }
    }
    missing(str(d_.config.architecture->prefixes.front(), embedding->safetensors, ".weight"));
  }

  std::vector<std::string> names_of(const RoleName& name, std::size_t layer) const {
    if (d_.config.gguf) return {with_layer(name.gguf, layer)};
    std::vector<std::string> names = {prefix_ + with_layer(name.safetensors, layer)};
    if (name.role == Role::head || name.role == Role::classifier) {  // outside the wrapped model
      names.insert(names.begin(), std::string(name.safetensors));
      names.push_back("language_model." + std::string(name.safetensors));
    }
    return names;
  }

  // BERT checkpoints of 2018 call a LayerNorm's weight and bias gamma and beta.
  const files::TensorInfo* find(const std::vector<std::string>& names, std::string_view suffix, std::string_view old_suffix) const {
    for (const std::string& name : names) {
      if (const auto* found = file_->find(str(name, ".", suffix))) return found;
      if (const auto* found = file_->find(str(name, ".", old_suffix))) return found;
    }
    return nullptr;
  }

  Parameter resolve(const RoleName& name, std::size_t layer) {
    const auto names = names_of(name, layer);
    const files::TensorInfo* weight = find(names, "weight", "gamma");
    Parameter parameter;
    if (!weight) {
      if (name.required) missing(names.front() + ".weight");
      return parameter;
    }
    const auto [rows, cols] = expected(name.role);
    if (cols == 0) {
      parameter.vector = add_vector(*weight, rows, d_.config.architecture->norm_is_offset_in_safetensors && !d_.config.gguf);
    } else {
      parameter.matrix = add_matrix(*weight, rows, cols, name.role);
    }
    if (const auto* bias = find(names, "bias", "beta")) {
      const std::int64_t length = cols == 0 ? rows : d_.matrix(parameter.matrix).rows;
      parameter.bias = add_vector(*bias, length, false);
    }
    return parameter;
  }

  // Rows and columns of a role's matrix (0 rows: any number), or the length of its vector and 0.
  std::pair<std::int64_t, std::int64_t> expected(Role role) const {
    const Config& c = d_.config;
    const std::int64_t hidden = c.hidden_size, q_width = std::int64_t{c.heads} * c.head_dim,
                       kv_width = std::int64_t{c.kv_heads} * c.head_dim;
    switch (role) {
      case Role::token_embedding: case Role::position_embedding: case Role::type_embedding: case Role::classifier: return {0, hidden};
      case Role::head: return {d_.vocab_size, hidden};
      case Role::q: return {q_width, hidden};
      case Role::k: case Role::v: return {kv_width, hidden};
      case Role::attn_out: return {hidden, q_width};
      case Role::gate: case Role::up: return {c.ffn_size, hidden};
      case Role::down: return {hidden, c.ffn_size};
      case Role::pooler: return {hidden, hidden};
      case Role::q_norm: case Role::k_norm: return {c.head_dim, 0};
      case Role::embedding_norm: case Role::attn_norm: case Role::attn_branch_norm: case Role::attn_residual_norm: case Role::ffn_norm:
      case Role::ffn_branch_norm: case Role::ffn_residual_norm: case Role::final_norm: return {hidden, 0};
    }
    fail(ErrorKind::unsupported_model, "a role without a shape");
  }

  VectorId add_vector(const files::TensorInfo& tensor, std::int64_t length, bool offset) {
    require_format(tensor);
    if (tensor.shape.size() != 1 || tensor.shape[0] != length) wrong_shape(tensor, str("[", length, "]"));
    Vector vector{.name = tensor.name, .values = file_->read_floats(tensor)};
    if (offset) {
      for (float& w : vector.values) w += 1.0f;
    }
    d_.weights.vectors.push_back(std::move(vector));
    return static_cast<VectorId>(d_.weights.vectors.size() - 1);
  }

  MatrixId add_matrix(const files::TensorInfo& tensor, std::int64_t rows, std::int64_t cols, Role role) {
    require_format(tensor);
    const bool fits = tensor.shape.size() == 2 && (rows == 0 || tensor.shape[0] == rows) && tensor.shape[1] == cols;
    if (!fits) wrong_shape(tensor, str("[", rows == 0 ? "any" : std::to_string(rows), ", ", cols, "]"));
    if (tensor.shape[0] < 1) wrong_shape(tensor, "at least one row");
    if (tensor.shape[0] > std::numeric_limits<std::int32_t>::max() / 2) wrong_shape(tensor, "fewer than 2^30 rows");
    Matrix matrix{.name = tensor.name, .format = *tensor.format, .rows = tensor.shape[0], .cols = cols};
    matrix.read = [file = file_, &tensor, bytes = row_bytes(*tensor.format, cols)](std::int64_t first, std::int64_t count,
                                                                                   std::uint8_t* out) {
      file->read(tensor, static_cast<std::uint64_t>(first * bytes), static_cast<std::uint64_t>(count * bytes), out);
    };
    d_.weights.matrices.push_back(std::move(matrix));
    const auto id = static_cast<MatrixId>(d_.weights.matrices.size() - 1);
    const bool embedding = role == Role::token_embedding || role == Role::position_embedding || role == Role::type_embedding;
    if (role == Role::token_embedding) d_.vocab_size = static_cast<std::int32_t>(tensor.shape[0]);
    if (role == Role::classifier) d_.labels = static_cast<std::int32_t>(tensor.shape[0]);
    if (!embedding && role != Role::pooler && role != Role::classifier) {
      quantise(id);
      Matrix& kept = d_.weights.matrices.back();
      kept.may_round = compute_ == Compute::automatic && d_.config.architecture->task != Task::generate;
    }
    return id;
  }

  // Reads float rows, packs them: `matrix` keeps its name and shape and changes its format.
  void quantise(MatrixId id) {
    Matrix& matrix = d_.weights.matrices[static_cast<std::size_t>(id)];
    if (!quantize_ || info(matrix.format).quantised) return;
    if (matrix.cols % info(*quantize_).block != 0) {
      d_.notes.push_back(str(matrix.name, " stays ", name(matrix.format), ": its rows of ", matrix.cols, " do not divide into blocks of ",
                             info(*quantize_).block, " for ", name(*quantize_)));
      return;
    }
    matrix.read = [source = std::move(matrix.read), from = matrix.format, to = *quantize_, cols = matrix.cols](
                      std::int64_t first, std::int64_t count, std::uint8_t* out) {
      std::vector<std::uint8_t> packed(static_cast<std::size_t>(row_bytes(from, cols)));
      std::vector<float> weights(static_cast<std::size_t>(cols));
      for (std::int64_t row = 0; row < count; ++row) {
        source(first + row, 1, packed.data());
        unpack(from, packed.data(), cols, weights.data());
        pack(to, weights.data(), cols, out + row * row_bytes(to, cols));
      }
    };
    matrix.format = *quantize_;
  }

  void quantise_tied_embedding() {
    const MatrixId embedding = d_.global(Role::token_embedding).matrix;
    if (d_.global(Role::head).matrix == embedding && embedding != MatrixId::none) quantise(embedding);
  }

  // llama.cpp writes Llama 3.1's rope scaling as one factor per frequency.
  void read_rope_factors() {
    if (!d_.config.gguf || d_.config.ropes.empty()) return;
    const files::TensorInfo* factors = file_->find("rope_freqs.weight");
    if (!factors) return;
    std::vector<float>& inv_freq = d_.config.ropes.front().inv_freq;
    if (factors->shape.size() != 1 || factors->shape[0] != static_cast<std::int64_t>(inv_freq.size())) {
      wrong_shape(*factors, str("[", inv_freq.size(), "]"));
    }
    require_format(*factors);
    const std::vector<float> values = file_->read_floats(*factors);
    for (std::size_t j = 0; j < inv_freq.size(); ++j) {
      if (!(values[j] >= 1e-6f)) {
        fail(ErrorKind::model_format, file_->path(), ": rope_freqs.weight[", j, "] is ", values[j],
             ", which is no sound factor (1 to about 32)");
      }
      inv_freq[j] /= values[j];
    }
  }

  void finish() {
    if (const MatrixId positions = d_.global(Role::position_embedding).matrix; positions != MatrixId::none) {
      d_.config.n_ctx = std::min(d_.config.n_ctx, d_.matrix(positions).rows);
    }
    for (std::size_t layer = 0; layer < d_.blocks.size(); ++layer) {
      const Parameter &gate = d_.at(layer, Role::gate), &up = d_.at(layer, Role::up);
      if (gate.present() && (gate.bias != VectorId::none || up.bias != VectorId::none)) {
        fail(ErrorKind::unsupported_model, file_->path(), ": biases in a gated feed-forward (layer ", layer, ") are not run yet");
      }
    }
    for (const Matrix& matrix : d_.weights.matrices)
      d_.parameters += static_cast<std::uint64_t>(matrix.rows) * static_cast<std::uint64_t>(matrix.cols);
    for (const Vector& vector : d_.weights.vectors) d_.parameters += vector.values.size();
  }

  void require_format(const files::TensorInfo& tensor) const {
    if (tensor.format) return;
    throw Error(ErrorKind::unsupported_model,
                str(file_->path(), ": tensor ", tensor.name, " is in format ", tensor.format_name, ", which this version does not run"))
        .in_file(file_->path()).at_field(tensor.name);
  }

  [[noreturn]] void wrong_shape(const files::TensorInfo& tensor, const std::string& needed) const {
    throw Error(ErrorKind::model_format, str(file_->path(), ": tensor ", tensor.name, " has shape ", shape_text(tensor.shape), "; ",
                                             "the model's configuration needs ", needed))
        .in_file(file_->path()).at_field(tensor.name);
  }

  [[noreturn]] void missing(const std::string& name) const {
    std::string_view nearest;
    std::size_t best = std::numeric_limits<std::size_t>::max();
    for (const auto& tensor : file_->tensors().first(std::min(file_->tensors().size(), kNamesCompared))) {
      if (const std::size_t distance = edit_distance(name, tensor.name); distance < best) best = distance, nearest = tensor.name;
    }
    throw Error(ErrorKind::model_format,
                str(file_->path(), ": tensor ", name, " is missing",
                    nearest.empty() ? std::string(" (the file has no tensors)") : str("; the nearest name is ", nearest)))
        .in_file(file_->path())
        .at_field(name);
  }

  std::shared_ptr<const files::ModelFile> file_;
  std::optional<Format> quantize_;
  Compute compute_;
  std::string prefix_;
  Description d_;
};

}  // namespace

Description describe(std::shared_ptr<const files::ModelFile> file, std::optional<Format> quantize, Compute compute) {
  if (quantize && !can_pack(*quantize))
    fail(ErrorKind::invalid_argument, "quantize: ", name(*quantize), " cannot be written; there are q8_0, q4_0 and q4_k");
  return Resolver(std::move(file), quantize, compute).run();
}

}  // namespace pumice::model
