#include "model/description.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "core/checked.h"
#include "files/model_file.h"
#include "model/adapters.h"
#include "model/nearest.h"
#include "model/reader.h"
#include "model/settings.h"

namespace pumice::model {
namespace {

std::string with_layer(std::string_view pattern, std::size_t layer) {
  const std::size_t hole = pattern.find("{}");
  if (hole == std::string_view::npos) return std::string(pattern);
  return str(pattern.substr(0, hole), layer, pattern.substr(hole + 2));
}

// The number between `prefix` and the next dot of a tensor's name.
std::optional<std::int64_t> number_after(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  std::int64_t number = 0;
  const char* const last = name.data() + name.size();
  const auto [end, error] = std::from_chars(name.data() + prefix.size(), last, number);
  return error == std::errc{} && end != last && *end == '.' ? std::optional(number) : std::nullopt;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// Where a role's rows lie in a tensor: runs of `run` rows, `stride` apart, from row `first` on.
struct Slice {
  std::int64_t first = 0, run = 0, stride = 0;
  std::int64_t of(std::int64_t row) const { return first + row / run * stride + row % run; }
};

class Resolver {
 public:
  Resolver(std::shared_ptr<const files::ModelFile> file, const DescribeOptions& options)
      : file_(std::move(file)), quantize_(options.quantize), compute_(options.compute), adapters_(file_, options.task),
        lora_(options.lora) {
    d_.config = read_config(*file_);
    d_.notes = d_.config.notes;
    d_.incomplete = d_.config.incomplete;
  }

  Description run() {
    if (!config().gguf) choose_prefix();
    require_no_more_layers();
    d_.layers.resize(config().layers.size());
    for (std::size_t i = 0; i < kRoles; ++i) {
      const auto role = static_cast<Role>(i);
      if (!of_layer(role)) {
        d_.globals[i] = resolve(role, 0);
        continue;
      }
      for (std::size_t layer = 0; layer < d_.layers.size(); ++layer)
        d_.layers[layer][i] = layer > 0 && shared(role) ? d_.layers[0][i] : resolve(role, layer);
      require_equal_biases(role);
    }
    score_by_difference();
    find_head();
    quantize_tied_embedding();
    read_rope_factors();
    add_alibi();
    add_position_bias();
    if (quantize_) name_norms();
    finish();
    add_places();
    lora_.require_all_used(*file_);
    note_unread();
    return std::move(d_);
  }

 private:
  static constexpr std::size_t index(Role role) { return static_cast<std::size_t>(role); }
  const Config& config() const { return d_.config; }

  // ---------------------------------------------------------------- what the model asks for
  enum class Need : std::uint8_t { no, maybe, yes };
  static Need yes_if(bool asked) { return asked ? Need::yes : Need::no; }

  Need need(Role role, std::size_t layer) const {
    const Config& c = config();
    static const Layer none;
    const Layer& l = of_layer(role) ? c.layers[layer] : none;
    const auto norm_if = [&](bool asked) { return yes_if(asked && c.norm_weight); };
    const Norms &attention = l.attention.norms, &feed_forward = l.feed_forward.norms;
    switch (role) {
      case Role::token_embedding: case Role::q: case Role::attn_out: case Role::up: case Role::down: return Need::yes;
      case Role::v: return yes_if(!l.attention.value_is_key && l.attention.kv_from < 0);
      case Role::k: return yes_if(l.attention.kv_from < 0);
      case Role::inputs_embedding: case Role::inputs_projection: case Role::inputs_norm: case Role::input_gate: case Role::input_out:
      case Role::input_norm: return yes_if(c.layer_inputs.width > 0);
      case Role::position_embedding: return yes_if(c.learned_positions);
      case Role::type_embedding: return !c.token_types ? Need::no : c.gguf ? Need::maybe : Need::yes;
      case Role::embedding_norm: return norm_if(c.embedding_norm);
      case Role::embedding_map: return yes_if(c.embedding_size > 0);
      case Role::position_bias: return Need::no;  // no operation reads it as it is: add_position_bias()
      case Role::place_embedding: return Need::no;  // likewise: add_places()
      case Role::place_norm: return norm_if(c.places.span > 0 && c.places.norm);
      case Role::place_k: return yes_if(c.places.span > 0 && c.places.by_query && !c.places.shared);
      case Role::place_q: return yes_if(c.places.span > 0 && c.places.by_key && !c.places.shared);
      case Role::attn_norm: return norm_if(attention.before);
      case Role::attn_branch_norm: return norm_if(attention.branch);
      case Role::attn_residual_norm: return norm_if(attention.sum);
      case Role::attn_second_norm: return norm_if(attention.twice);
      case Role::q_norm: return yes_if(l.attention.qk_norm != QkNorm::none);
      case Role::k_norm: return yes_if(l.attention.qk_norm != QkNorm::none && l.attention.kv_from < 0);
      case Role::ffn_norm: return norm_if(feed_forward.before);
      case Role::ffn_branch_norm: return norm_if(feed_forward.branch);
      case Role::ffn_residual_norm: return norm_if(feed_forward.sum);
      case Role::gate: return yes_if(l.feed_forward.gated);
      case Role::layer_scale: return yes_if(l.scaled);
      case Role::final_norm: return norm_if(c.final_norm);
      case Role::head: return c.has_head && c.layers.front().attention.causal ? Need::maybe : Need::no;
      case Role::projection: return c.projection ? Need::maybe : Need::no;
      case Role::classifier: return Need::maybe;
      // A model without a classifier may have the layer (BERT's pooler), and converters to GGUF drop it: finish() says so.
      case Role::head_dense: return !c.classifier.dense ? Need::no : d_.labels > 0 && !c.gguf ? Need::yes : Need::maybe;
      case Role::head_norm: return norm_if(c.classifier.norm && d_.labels > 0 && d_.global(Role::head_dense).present());
    }
    return Need::no;
  }

  bool needs_bias(Role role, std::size_t layer) const {
    const Config& c = config();
    switch (role) {
      case Role::q: case Role::k: case Role::v: case Role::place_q: case Role::place_k: return c.layers[layer].attention.qkv_bias;
      case Role::attn_out: return c.layers[layer].attention.out_bias;
      case Role::gate: case Role::up: case Role::down: return c.layers[layer].feed_forward.bias;
      case Role::attn_norm: case Role::attn_branch_norm: case Role::attn_residual_norm: case Role::attn_second_norm: case Role::ffn_norm:
      case Role::ffn_branch_norm: case Role::ffn_residual_norm: case Role::embedding_norm: case Role::final_norm: case Role::head_norm:
      case Role::place_norm: return c.norm_bias;
      case Role::q_norm: case Role::k_norm: return c.norm_bias && c.layers[layer].attention.qk_norm == QkNorm::whole;
      case Role::head: return c.head_bias;
      case Role::embedding_map: return !c.norm_after_map;
      case Role::classifier: return c.classifier.bias;
      case Role::head_dense: return c.classifier.dense_bias;
      default: return false;
    }
  }

  // Rows and columns of a role's matrix (0 rows: any number), or the length of its vector and 0.
  std::pair<std::int64_t, std::int64_t> expected(Role role, std::size_t layer) const {
    const Config& c = config();
    static const Layer none;
    const Layer& l = of_layer(role) ? c.layers[layer] : role == Role::position_bias ? c.layers.front() : none;
    const Attention& a = l.attention;
    const std::int64_t hidden = c.hidden_size, embedding = c.embedding_size > 0 ? c.embedding_size : hidden;
    const std::int64_t inputs = c.layer_inputs.width * static_cast<std::int64_t>(c.layers.size());
    const auto qk_norm = [&](std::int64_t width) {
      return std::pair<std::int64_t, std::int64_t>(a.qk_norm == QkNorm::whole ? width : a.head_dim, 0);
    };
    switch (role) {
      case Role::token_embedding: case Role::position_embedding: case Role::type_embedding: return {0, embedding};
      case Role::embedding_map: return {hidden, embedding};
      case Role::embedding_norm: return {c.norm_after_map ? hidden : embedding, 0};
      case Role::place_embedding: return {2 * std::int64_t{c.places.span}, hidden};
      case Role::place_norm: return {hidden, 0};
      case Role::projection: case Role::classifier: return {0, hidden};
      case Role::position_bias: return {c.position_buckets.count, l.attention.heads};
      case Role::head: return {d_.vocab_size, hidden};
      case Role::q: case Role::place_q: case Role::place_k: return {a.q_width(), hidden};
      case Role::k: case Role::v: return {a.kv_width(), hidden};
      case Role::attn_out: return {hidden, a.q_width()};
      case Role::gate: case Role::up: return {l.feed_forward.width, hidden};
      case Role::down: return {hidden, l.feed_forward.width};
      case Role::head_dense: return {hidden, hidden};
      case Role::q_norm: return qk_norm(a.q_width());
      case Role::k_norm: return qk_norm(a.kv_width());
      case Role::inputs_embedding: return {d_.vocab_size, inputs};
      case Role::inputs_projection: return {inputs, hidden};
      case Role::inputs_norm: return {c.layer_inputs.width, 0};
      case Role::input_gate: return {c.layer_inputs.width, hidden};
      case Role::input_out: return {hidden, c.layer_inputs.width};
      case Role::layer_scale: return {1, 0};
      case Role::attn_norm: case Role::attn_branch_norm: case Role::attn_residual_norm: case Role::attn_second_norm: case Role::ffn_norm:
      case Role::ffn_branch_norm: case Role::ffn_residual_norm: case Role::input_norm: case Role::final_norm:
      case Role::head_norm: return {hidden, 0};
    }
    fail(ErrorKind::unsupported_model, "a role without a shape");
  }

  // ---------------------------------------------------------------- names
  // Names of a role in the order in which they are tried: the family's own, and for GGUF one tensor for q, k and v, which llama.cpp's
  // converter can write for any family.
  std::vector<TensorName> names_of(Role role) const {
    static constexpr TensorName kFusedInGguf[] = {{Role::q, "blk.{}.attn_qkv", "", Fused::qkv},
                                                  {Role::k, "blk.{}.attn_qkv", "", Fused::qkv},
                                                  {Role::v, "blk.{}.attn_qkv", "", Fused::qkv}};
    static constexpr TensorName kOfDecoders[] = {{Role::classifier, "cls.output", "score"}};
    std::vector<TensorName> names;
    const auto take = [&](std::span<const TensorName> from) {
      for (const TensorName& name : from) {
        if (name.role == role && !(config().gguf ? name.gguf : name.safetensors).empty()) names.push_back(name);
      }
    };
    take(config().family->names);
    if (names.empty()) take(config().family->more_names);
    take(kFusedInGguf);
    if (config().has_head) take(kOfDecoders);
    return names;
  }

  // One tensor for all layers (ALBERT).
  bool shared(Role role) const {
    const auto names = names_of(role);
    return !names.empty() && (config().gguf ? names[0].gguf : names[0].safetensors).find("{}") == std::string_view::npos;
  }

  // transformers saves a model with or without the task's wrapper: the token embedding tells which.
  void choose_prefix() {
    const auto embeddings = names_of(Role::token_embedding);
    for (std::string_view prefix : config().family->prefixes) {
      for (const TensorName& embedding : embeddings) {
        const std::string name = str(prefix, embedding.safetensors);
        if (!file_->find(name + ".weight") && !file_->find(str(name, Adapters::kOriginal))) continue;
        prefix_ = prefix;
        return;
      }
    }
    missing(str(config().family->prefixes.front(), embeddings.front().safetensors, ".weight"));
  }

  std::vector<std::string> in_file(const TensorName& name, std::size_t layer) const {
    if (config().gguf) return {with_layer(name.gguf, layer)};
    std::vector<std::string> names = {prefix_ + with_layer(name.safetensors, layer)};
    if (name.role == Role::head || name.role >= Role::projection) {  // outside the wrapped model, or inside (BERT's pooler)
      names.insert(names.begin(), std::string(name.safetensors));
      names.push_back("language_model." + std::string(name.safetensors));
    }
    return names;
  }

  bool bare(const TensorName& name) const { return name.bare && !config().gguf; }

  // BERT checkpoints of 2018 call a LayerNorm's weight and bias gamma and beta.
  const files::TensorInfo* find(const TensorName& name, std::size_t layer, std::string_view suffix, std::string_view old_suffix) const {
    for (const std::string& begin : in_file(name, layer)) {
      if (bare(name)) {
        if (const auto* found = suffix == "weight" ? file_->find(begin) : nullptr) return found;
        continue;
      }
      if (const auto* found = file_->find(str(begin, ".", suffix))) return found;
      if (const auto* found = file_->find(str(begin, ".", old_suffix))) return found;
      if (suffix != "weight") continue;
      if (const auto* found = file_->find(str(begin, Adapters::kOriginal))) return found;
    }
    return nullptr;
  }

  // ---------------------------------------------------------------- a role of a layer
  struct Found {
    TensorName name{};
    const files::TensorInfo* tensor = nullptr;
  };
  Found find(Role role, std::size_t layer, std::string_view suffix, std::string_view old_suffix) const {
    for (TensorName name : names_of(role)) {
      const auto* tensor = find(name, layer, suffix, old_suffix);
      if (!tensor) continue;
      // GGUF files of jina v2 have gate and up in one tensor, or, as the converter wrote them at first, each in its own.
      const bool alone = config().gguf && name.fused != Fused::no && (role == Role::gate || role == Role::up) && !tensor->shape.empty() &&
                         tensor->shape[0] == config().layers[layer].feed_forward.width;
      if (alone && role == Role::gate) continue;
      if (alone) name.fused = Fused::no;
      return {name, tensor};
    }
    return {};
  }

  Parameter resolve(Role role, std::size_t layer) {
    Parameter parameter;
    const Need needed = need(role, layer);
    if (needed == Need::no) return parameter;
    const Found weight = find(role, layer, "weight", "gamma");
    if (!weight.tensor) {
      if (needed == Need::yes) missing(first_name(role, layer, "weight"));
      return parameter;
    }
    const auto [rows, cols] = expected(role, layer);
    if (cols == 0) {
      parameter.vector = add_vector(weight, rows, role, layer, config().norm_offset ? 1.0f : 0.0f);
    } else {
      add_matrix(parameter, weight, rows, cols, role, layer);
    }
    parameter.bias = find_bias(role, layer, cols == 0 ? rows : d_.matrix(parameter.matrix).rows);
    return parameter;
  }
  VectorId find_bias(Role role, std::size_t layer, std::int64_t length) {
    const Found found = find(role, layer, "bias", "beta");
    if (!found.tensor && needs_bias(role, layer)) missing(first_name(role, layer, "bias"));
    if (!found.tensor) return VectorId::none;
    const VectorId bias = add_vector(found, length, role, layer, 0);
    if (role == Role::attn_out || role == Role::down) scale(bias, config().layers[layer].branch_scale);
    return bias;
  }

  // No model has a bias in some layers alone: a file that has lost one would run without it and say nothing.
  void require_equal_biases(Role role) const {
    const auto has = [&](std::size_t layer) { return d_.layers[layer][index(role)].bias != VectorId::none; };
    const auto used = [&](std::size_t layer) { return d_.layers[layer][index(role)].present(); };
    std::size_t with = 0;
    while (with < d_.layers.size() && !has(with)) ++with;
    for (std::size_t layer = 0; with < d_.layers.size() && layer < d_.layers.size(); ++layer) {
      if (used(layer) && !has(layer)) missing(first_name(role, layer, "bias"));
    }
  }

  // A number of layers that is too small would leave the others out and say nothing.
  void require_no_more_layers() const {
    const Reader read(Reader(*file_), config().family->keys);
    const std::string key = read.key("block_count", "num_hidden_layers");
    std::int64_t count = read.size("block_count", "num_hidden_layers", kMaxLayers);
    // Layers that guess further tokens follow the others (DeepSeek V3, GLM-4.5); a GGUF file counts them in block_count.
    if (!config().gguf) {
      const std::string more = read.key("", "num_nextn_predict_layers");
      count += read.in_range(read.integer("", "num_nextn_predict_layers").value_or(0), 0, kMaxLayers, more);
    }
    const std::set<std::string> before = before_layers();
    for (const files::TensorInfo& tensor : file_->tensors()) {
      for (const std::string& prefix : before) {
        const auto layer = number_after(tensor.name, prefix);
        if (!layer || *layer < count) continue;
        throw Error(ErrorKind::model_format, str(file_->path(), ": ", key, " is ", config().layers.size(), ", and there is a tensor ",
                                                 tensor.name, "; layers up to ", *layer, " need a ", key, " of ", *layer + 1))
            .in_file(file_->path())
            .at_field(key);
      }
    }
  }
  // What stands before the number of a layer in the names of this kind of file: "blk.", "model.layers.".
  std::set<std::string> before_layers() const {
    std::set<std::string> found;
    for (const auto& names : {config().family->names, config().family->more_names}) {
      for (const TensorName& name : names) {
        const std::string_view pattern = config().gguf ? name.gguf : name.safetensors;
        if (const std::size_t hole = pattern.find("{}"); hole != std::string_view::npos)
          found.insert((config().gguf ? "" : prefix_) + std::string(pattern.substr(0, hole)));
      }
    }
    return found;
  }

  std::string first_name(Role role, std::size_t layer, std::string_view suffix) const {
    const auto names = names_of(role);
    if (names.empty()) {
      fail(ErrorKind::unsupported_model, file_->path(), ": files of this kind have no place for a tensor that \"", config().family->name,
           "\" needs (role ", index(role), ")");
    }
    const std::string begin = in_file(names.front(), layer).front();
    return bare(names.front()) ? begin : str(begin, ".", suffix);
  }

  // Of the rows that `role` has in the tensor; a run of 0 means all of them.
  Slice slice(const TensorName& name, Role role, std::size_t layer) const {
    if (role == Role::position_embedding) return {.first = config().position_offset};
    if (name.fused == Fused::no) return {};
    const Layer& l = config().layers[layer];
    const std::int64_t q = l.attention.q_width(), kv = l.attention.kv_width(), width = l.feed_forward.width, dim = l.attention.head_dim;
    const std::int64_t group = l.attention.heads / l.attention.kv_heads * dim, stride = group + 2 * dim;
    switch (name.fused) {
      case Fused::no: return {};
      case Fused::qkv: return role == Role::q ? Slice{0, q, q} : Slice{role == Role::k ? q : q + kv, kv, kv};
      case Fused::qkv_by_head:
        return role == Role::q ? Slice{0, group, stride} : Slice{role == Role::k ? group : group + dim, dim, stride};
      case Fused::gate_up: return {role == Role::gate ? 0 : width, width, width};
      case Fused::up_gate: return {role == Role::gate ? width : 0, width, width};
    }
    return {};
  }
  // Rows of the whole tensor, given those of the role.
  std::int64_t whole_rows(const TensorName& name, Role role, std::size_t layer, std::int64_t rows) const {
    if (role == Role::position_embedding || name.fused == Fused::no) return rows;
    const Layer& l = config().layers[layer];
    return name.fused == Fused::gate_up || name.fused == Fused::up_gate
               ? 2 * std::int64_t{l.feed_forward.width}
               : std::int64_t{l.attention.q_width()} + 2 * std::int64_t{l.attention.kv_width()};
  }

  VectorId add_vector(const Found& found, std::int64_t length, Role role, std::size_t layer, float offset) {
    const files::TensorInfo& tensor = *found.tensor;
    require_format(tensor);
    const std::int64_t whole = whole_rows(found.name, role, layer, length);
    if (tensor.shape.size() != 1 || tensor.shape[0] != whole) wrong_shape(tensor, str("[", whole, "]"));
    Slice part = slice(found.name, role, layer);
    if (part.run == 0) part.run = part.stride = length;
    const std::vector<float> all = file_->read_floats(tensor);
    Vector vector{.name = tensor.name, .values = std::vector<float>(static_cast<std::size_t>(length))};
    for (std::int64_t i = 0; i < length; ++i)
      vector.values[static_cast<std::size_t>(i)] = all[static_cast<std::size_t>(part.of(i))] + offset;
    return keep(std::move(vector));
  }
  VectorId keep(Vector vector) {
    d_.weights.vectors.push_back(std::move(vector));
    return static_cast<VectorId>(d_.weights.vectors.size() - 1);
  }
  void scale(VectorId id, float by) {
    if (by == 1) return;
    for (float& value : d_.weights.vectors[static_cast<std::size_t>(id)].values) value *= by;
  }

  // What adapters call the matrix of a role: the names of the model's own kind of file, for PEFT with any of the family's wrappers.
  std::vector<std::string> adapter_names(Role role, std::size_t layer) const {
    std::vector<std::string> names;
    for (const TensorName& name : names_of(role)) {
      const std::string module = with_layer(config().gguf ? name.gguf : name.safetensors, layer);
      names.push_back(module);
      for (const std::string_view prefix : config().family->prefixes)
        if (!config().gguf && !prefix.empty()) names.push_back(str(prefix, module));
    }
    return names;
  }

  // What adapters add to a matrix of floats is added while it is read, and so it is to what Linear cannot add to before its activation.
  // A quantised one stays as it is, and the two factors become matrices of their own: the layer multiplies by them, too.
  bool keeps_apart(Role role, std::size_t layer, Format format) const {
    if (!info(format).quantized || !of_layer(role)) return false;
    switch (role) {
      case Role::q: case Role::k: case Role::v: case Role::attn_out: case Role::gate: case Role::down: return true;
      case Role::up: return config().layers[layer].feed_forward.gated;
      default: return false;
    }
  }

  MatrixId add_factor(const std::string& name, std::vector<float> values, std::int64_t rows, std::int64_t cols) {
    Matrix matrix{.name = name, .format = Format::F32, .rows = rows, .cols = cols};
    matrix.read = [values = std::make_shared<const std::vector<float>>(std::move(values)), cols](std::int64_t first, std::int64_t count,
                                                                                               std::uint8_t* out) {
      std::memcpy(out, values->data() + first * cols, static_cast<std::size_t>(count * cols) * sizeof(float));
    };
    d_.weights.matrices.push_back(std::move(matrix));
    return static_cast<MatrixId>(d_.weights.matrices.size() - 1);
  }

  // The ranks become a multiple of 8 by zeros, which kernels like.
  void keep_low_rank(Parameter& parameter, const std::string& name, const LowRank& low, Slice part, std::int64_t rows) {
    const std::int64_t rank = (low.rank + 7) / 8 * 8;
    std::vector<float> a(static_cast<std::size_t>(rank * low.cols)), b(static_cast<std::size_t>(rows * rank));
    std::ranges::copy(low.right, a.begin());
    for (std::int64_t row = 0; row < rows; ++row)
      std::copy_n(low.left.begin() + part.of(row) * low.rank, low.rank, b.begin() + row * rank);
    parameter.lora_a = add_factor(str(name, " (adapter's a)"), std::move(a), rank, low.cols);
    parameter.lora_b = add_factor(str(name, " (adapter's b)"), std::move(b), rows, rank);
  }

  void add_matrix(Parameter& parameter, const Found& found, std::int64_t rows, std::int64_t cols, Role role, std::size_t layer) {
    const files::TensorInfo& tensor = *found.tensor;
    require_format(tensor);
    const bool transposed = found.name.transposed && !config().gguf;
    const std::size_t row_axis = transposed ? 1 : 0;
    const std::int64_t whole = whole_rows(found.name, role, layer, rows);
    // llama.cpp leaves out a first dimension of 1 when it quantizes a file: the one type of RoBERTa's tokens, the one label of a reranker.
    std::vector<std::int64_t> shape = tensor.shape;
    if (config().gguf && shape.size() == 1) shape.insert(shape.begin(), 1);
    const bool fits = shape.size() == 2 && (rows == 0 || shape[row_axis] == whole) && shape[1 - row_axis] == cols;
    if (!fits) {
      const std::string number = rows == 0 ? "any" : std::to_string(whole);
      wrong_shape(tensor, transposed ? str("[", cols, ", ", number, "]") : str("[", number, ", ", cols, "]"));
    }
    Slice part = slice(found.name, role, layer);
    if (rows == 0) rows = shape[0] - part.first;
    if (rows < 1) wrong_shape(tensor, str("at least ", part.first + 1, part.first == 0 ? " row" : " rows"));
    if (shape[row_axis] > std::numeric_limits<std::int32_t>::max() / 2) wrong_shape(tensor, "fewer than 2^30 rows");
    if (part.run == 0) part.run = part.stride = rows;
    const std::vector<std::string> names = adapter_names(role, layer);
    const auto key = std::tuple(&tensor, part.first, part.run, lora_.has(names) ? names.front() : std::string());
    if (const auto known = matrices_.find(key); known != matrices_.end()) {  // layers that share weights (ALBERT)
      parameter = known->second;
      return;
    }
    Matrix matrix{.name = tensor.name, .format = *tensor.format, .rows = rows, .cols = cols};
    matrix.read = transposed ? read_transposed(tensor, part, cols) : read_rows(tensor, part, cols);
    const bool embedding = role == Role::token_embedding || role == Role::position_embedding || role == Role::type_embedding ||
                           role == Role::inputs_embedding;
    merge_adapter(matrix, part, adapters_.of(tensor, embedding), Format::F32);
    std::optional<LowRank> low = lora_.of(names, shape[row_axis], cols);
    if (low && !keeps_apart(role, layer, matrix.format)) {
      const Format kept = info(matrix.format).quantized ? Format::F16 : compute_ == Compute::float32 ? Format::F32 : matrix.format;
      merge_adapter(matrix, part, adding(*std::move(low)), kept);
      low.reset();
    }
    d_.weights.matrices.push_back(std::move(matrix));
    const auto id = static_cast<MatrixId>(d_.weights.matrices.size() - 1);
    parameter.matrix = id;
    if (low) keep_low_rank(parameter, tensor.name, *low, part, rows);
    matrices_[key] = parameter;
    if (role == Role::token_embedding) d_.vocab_size = static_cast<std::int32_t>(shape[0]);
    if (role == Role::classifier) d_.labels = static_cast<std::int32_t>(shape[0]);
    if (!embedding && role != Role::head_dense && role != Role::classifier) {
      const bool may_round = compute_ == Compute::automatic && !config().has_head;
      const auto at = static_cast<std::size_t>(id);  // a low-rank part's factors may follow it
      if (may_round && quantize_ == Format::Q8_0 && !info(d_.weights.matrices[at].format).quantized)
        d_.weights.matrices[at].narrow = {.floats = floats_of(d_.weights.matrices[at]), .in_bytes = bears_bytes(role, layer)};
      quantize(id);
      Matrix& kept = d_.weights.matrices[at];
      kept.may_round = may_round;
      if (!info(kept.format).quantized) kept.narrow = {};  // rows that do not divide into blocks
    }
  }

  using ReadRows = std::function<void(std::int64_t, std::int64_t, std::uint8_t*)>;
  ReadRows read_rows(const files::TensorInfo& tensor, Slice part, std::int64_t cols) const {
    return [file = file_, &tensor, part, bytes = row_bytes(*tensor.format, cols)](std::int64_t first, std::int64_t count,
                                                                                  std::uint8_t* out) {
      for (std::int64_t row = first; row < first + count;) {
        const std::int64_t run = std::min(first + count - row, part.run - row % part.run);
        file->read(tensor, static_cast<std::uint64_t>(part.of(row) * bytes), static_cast<std::uint64_t>(run * bytes), out);
        out += run * bytes;
        row += run;
      }
    };
  }
  // The file's rows are our columns: of each, the stretch that the asked rows take.
  ReadRows read_transposed(const files::TensorInfo& tensor, Slice part, std::int64_t cols) const {
    if (info(*tensor.format).block != 1) {
      fail(ErrorKind::unsupported_model, file_->path(), ": tensor ", tensor.name, " is stored transposed in ", name(*tensor.format),
           ", whose blocks cannot be turned");
    }
    return [file = file_, &tensor, part, cols, size = row_bytes(*tensor.format, 1)](std::int64_t first, std::int64_t count,
                                                                                    std::uint8_t* out) {
      const std::int64_t across = tensor.shape[1];
      std::vector<std::uint8_t> stretch(static_cast<std::size_t>(count * size));
      for (std::int64_t row = first; row < first + count;) {
        const std::int64_t run = std::min(first + count - row, part.run - row % part.run);
        for (std::int64_t col = 0; col < cols; ++col) {
          file->read(tensor, static_cast<std::uint64_t>((col * across + part.of(row)) * size), static_cast<std::uint64_t>(run * size),
                     stretch.data());
          for (std::int64_t r = 0; r < run; ++r)
            std::memcpy(out + ((row - first + r) * cols + col) * size, stretch.data() + r * size, static_cast<std::size_t>(size));
        }
        row += run;
      }
    };
  }

  // `matrix` keeps its name and shape: its rows are read as floats, `change` is done to each, and they are packed in format `to`.
  static void repack(Matrix& matrix, Format to, AddRow change = {}) {
    matrix.read = [source = std::move(matrix.read), from = matrix.format, to, cols = matrix.cols, change = std::move(change)](
                      std::int64_t first, std::int64_t count, std::uint8_t* out) {
      std::vector<std::uint8_t> packed(static_cast<std::size_t>(row_bytes(from, cols)));
      std::vector<float> weights(static_cast<std::size_t>(cols));
      for (std::int64_t row = 0; row < count; ++row) {
        source(first + row, 1, packed.data());
        unpack(from, packed.data(), cols, weights.data());
        if (change) change(first + row, weights.data());
        pack(to, weights.data(), cols, out + row * row_bytes(to, cols));
      }
    };
    matrix.format = to;
  }

  static std::function<void(std::int64_t, std::int64_t, float*)> floats_of(const Matrix& matrix) {
    return [read = matrix.read, from = matrix.format, cols = matrix.cols](std::int64_t first, std::int64_t count, float* out) {
      std::vector<std::uint8_t> packed(static_cast<std::size_t>(row_bytes(from, cols)));
      for (std::int64_t row = 0; row < count; ++row) {
        read(first + row, 1, packed.data());
        unpack(from, packed.data(), cols, out + row * cols);
      }
    };
  }

  // Which products of an encoder bear activations of 8 bits (docs/numerics.md): not those of values, whose error no softmax damps, nor what
  // gated networks and decoders multiply, whose largest activations stand far above the rest of their block.
  bool bears_bytes(Role role, std::size_t layer) const {
    const Layer& l = config().layers[layer];
    if (l.attention.causal) return false;
    switch (role) {
      case Role::q: case Role::attn_out: case Role::gate: case Role::up: return true;
      case Role::k: return !l.attention.value_is_key;
      case Role::down: return !l.feed_forward.gated;
      default: return false;
    }
  }

  // Which norm makes what a layer's matrices multiply. Of matrices that layers share, the last layer's: folding is exact whatever they get.
  void name_norms() {
    static const Parameter kNone;
    const bool mapped_after = config().embedding_size > 0 && !config().norm_after_map;
    const Parameter* last = mapped_after ? &kNone : &d_.global(Role::embedding_norm);
    for (std::size_t layer = 0; layer < d_.layers.size(); ++layer) {
      const Layer& l = config().layers[layer];
      const auto follow = [&](const Norms& norms, Role before, Role sum, std::initializer_list<Role> roles) {
        const Parameter& made_by = norms.before ? d_.at(layer, before) : *last;
        for (const Role role : roles) {
          const MatrixId id = d_.at(layer, role).matrix;
          if (id == MatrixId::none) continue;
          Narrow& narrow = d_.weights.matrices[static_cast<std::size_t>(id)].narrow;
          narrow.norm_weight = made_by.vector;
          narrow.norm_bias = made_by.bias;
        }
        last = norms.sum ? &d_.at(layer, norms.twice ? Role::attn_second_norm : sum) : &kNone;
      };
      if (l.parallel) continue;
      follow(l.attention.norms, Role::attn_norm, Role::attn_residual_norm, {Role::q, Role::k});
      follow(l.feed_forward.norms, Role::ffn_norm, Role::ffn_residual_norm, {Role::gate, Role::up});
    }
  }

  // What an adapter adds to the rows. The sums are float32.
  static void merge_adapter(Matrix& matrix, Slice part, AddRow add, Format kept) {
    if (!add) return;
    repack(matrix, kept, [part, add = std::move(add)](std::int64_t row, float* values) { add(part.of(row), values); });
  }

  void quantize(MatrixId id) {
    Matrix& matrix = d_.weights.matrices[static_cast<std::size_t>(id)];
    if (!quantize_ || info(matrix.format).quantized) return;
    if (matrix.cols % info(*quantize_).block != 0) {
      d_.notes.push_back(str(matrix.name, " stays ", name(matrix.format), ": its rows of ", matrix.cols, " do not divide into blocks of ",
                             info(*quantize_).block, " for ", name(*quantize_)));
      return;
    }
    repack(matrix, *quantize_);
  }

  // GGUF files of Qwen3-Reranker keep of the head the rows of "yes" and "no": how much likelier yes is than no is the score.
  void score_by_difference() {
    constexpr std::int64_t kRank = 4;  // of llama.cpp's enum llama_pooling_type
    const std::string key = str(file_->string("general.architecture").value_or(""), ".pooling_type");
    if (!config().gguf || !config().has_head || d_.labels != 2 || file_->integer(key) != kRank) return;
    const Parameter pair = d_.global(Role::classifier);
    const Matrix& rows = d_.matrix(pair.matrix);
    Matrix difference{.name = rows.name, .format = Format::F32, .rows = 1, .cols = rows.cols};
    difference.read = [source = rows.read, from = rows.format, cols = rows.cols](std::int64_t, std::int64_t count, std::uint8_t* out) {
      if (count < 1) return;
      std::vector<std::uint8_t> packed(static_cast<std::size_t>(2 * row_bytes(from, cols)));
      source(0, 2, packed.data());
      std::vector<float> yes(static_cast<std::size_t>(cols)), no(static_cast<std::size_t>(cols));
      unpack(from, packed.data(), cols, yes.data());
      unpack(from, packed.data() + row_bytes(from, cols), cols, no.data());
      for (std::size_t i = 0; i < yes.size(); ++i) yes[i] -= no[i];
      std::memcpy(out, yes.data(), yes.size() * sizeof(float));
    };
    d_.weights.matrices.push_back(std::move(difference));
    Parameter& score = d_.globals[index(Role::classifier)];
    score.matrix = static_cast<MatrixId>(d_.weights.matrices.size() - 1);
    if (pair.bias != VectorId::none) {
      const std::vector<float>& bias = d_.weights.vectors[static_cast<std::size_t>(pair.bias)].values;
      score.bias = keep({.name = "score bias", .values = {bias[0] - bias[1]}});
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
    if (!causal || d_.labels > 0 || (!head.present() && !tied && prefix_.empty())) {
      c.has_head = false;
      head = {};
    } else if (!head.present() && !tied) {
      missing(first_name(Role::head, 0, "weight"));
    } else if (!head.present()) {
      tie_head(head);
      head.bias = find_bias(Role::head, 0, d_.matrix(head.matrix).rows);
    }
  }

  // The embedding's matrix; where one of the two has an adapter, a matrix of its own, read from the same tensor.
  void tie_head(Parameter& head) {
    const Parameter& embedding = d_.global(Role::token_embedding);
    if (!lora_.has(adapter_names(Role::head, 0)) && !lora_.has(adapter_names(Role::token_embedding, 0))) {
      head.matrix = embedding.matrix;
      return;
    }
    const auto [rows, cols] = expected(Role::head, 0);
    add_matrix(head, find(Role::token_embedding, 0, "weight", "gamma"), rows, cols, Role::head, 0);
  }

  void quantize_tied_embedding() {
    const MatrixId embedding = d_.global(Role::token_embedding).matrix;
    if (d_.global(Role::head).matrix == embedding && embedding != MatrixId::none) quantize(embedding);
  }

  // llama.cpp writes Llama 3.1's rope scaling as one factor for each frequency, and longrope's as two sets of them.
  void read_rope_factors() {
    if (!config().gguf || config().ropes.empty()) return;
    if (config().rope_factors && !file_->find("rope_freqs.weight")) missing("rope_freqs.weight");
    RopeTable& rope = d_.config.ropes.front();
    for (const char* name : {"rope_freqs.weight", "rope_factors_short.weight"}) divide_frequencies(name, rope.inv_freq);
    if (rope.long_inv_freq.empty()) return;
    for (const char* name : {"rope_factors_short.weight", "rope_factors_long.weight"})
      if (!file_->find(name)) missing(name);
    divide_frequencies("rope_factors_long.weight", rope.long_inv_freq);
  }
  void divide_frequencies(const char* tensor, std::vector<float>& inv_freq) {
    const files::TensorInfo* factors = file_->find(tensor);
    if (!factors) return;
    if (factors->shape.size() != 1 || factors->shape[0] != static_cast<std::int64_t>(inv_freq.size())) {
      wrong_shape(*factors, str("[", inv_freq.size(), "]"));
    }
    require_format(*factors);
    const std::vector<float> values = file_->read_floats(*factors);
    for (std::size_t j = 0; j < inv_freq.size(); ++j) {
      if (!(values[j] >= 1e-6f)) {
        fail(ErrorKind::model_format, file_->path(), ": ", tensor, "[", j, "] is ", values[j],
             ", which is no sound factor (1 to about 64)");
      }
      inv_freq[j] /= values[j];
    }
  }

  void add_alibi() {
    if (!config().alibi_slopes.empty()) d_.alibi_slopes = keep({.name = "ALiBi slopes", .values = config().alibi_slopes});
  }

  // The table has a row for each bucket; operations ask by distance.
  void add_position_bias() {
    const PositionBuckets& buckets = config().position_buckets;
    if (buckets.count == 0) return;
    const files::TensorInfo* table = find(Role::position_bias, 0, "weight", "weight").tensor;
    if (!table) missing(first_name(Role::position_bias, 0, "weight"));
    require_format(*table);
    const auto [rows, heads] = expected(Role::position_bias, 0);
    if (table->shape != std::vector{rows, heads}) wrong_shape(*table, str("[", rows, ", ", heads, "]"));
    d_.position_reach = position_reach(buckets);
    d_.position_bias = keep({.name = table->name, .values = bias_by_distance(buckets, file_->read_floats(*table))});
  }

  // Keys and queries of places, a matrix for each head: place_embedding's rows, normalised, through the layer's projections. They are
  // computed while they are read: n x hidden x head_dim products a head.
  void add_places() {
    const RelativePlaces& places = config().places;
    if (places.span == 0) return;
    const files::TensorInfo* table = find(Role::place_embedding, 0, "weight", "weight").tensor;
    if (!table) missing(first_name(Role::place_embedding, 0, "weight"));
    require_format(*table);
    const auto [rows, cols] = expected(Role::place_embedding, 0);
    if (table->shape != std::vector{rows, cols}) wrong_shape(*table, str("[", rows, ", ", cols, "]"));
    auto values = std::make_shared<std::vector<float>>(file_->read_floats(*table));
    if (places.norm) normalize_rows(*values, d_.global(Role::place_norm));
    d_.parameters += static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(cols);
    d_.place_reach = place_reach(places);
    d_.places = keep({.name = "places by distance", .values = places_by_distance(places, d_.place_reach)});
    d_.of_places.resize(d_.layers.size());
    for (std::size_t layer = 0; layer < d_.layers.size(); ++layer) {
      const std::int32_t heads = config().layers[layer].attention.heads, dim = config().layers[layer].attention.head_dim;
      for (std::int32_t head = 0; head < heads; ++head) {
        if (places.by_query)
          d_.of_places[layer].keys.push_back(places_of_head(values, d_.at(layer, places.shared ? Role::k : Role::place_k), head, dim));
        if (places.by_key)
          d_.of_places[layer].queries.push_back(places_of_head(values, d_.at(layer, places.shared ? Role::q : Role::place_q), head, dim));
      }
    }
  }

  void normalize_rows(std::vector<float>& rows, const Parameter& norm) const {
    const std::vector<float>& weight = d_.weights.vectors[static_cast<std::size_t>(norm.vector)].values;
    const std::vector<float>& bias = d_.weights.vectors[static_cast<std::size_t>(norm.bias)].values;
    const std::size_t width = weight.size();
    for (std::size_t row = 0; row < rows.size(); row += width) {
      double mean = 0, variance = 0;
      for (std::size_t i = 0; i < width; ++i) mean += rows[row + i];
      mean /= static_cast<double>(width);
      for (std::size_t i = 0; i < width; ++i) variance += (rows[row + i] - mean) * (rows[row + i] - mean);
      const double factor = 1 / std::sqrt(variance / static_cast<double>(width) + config().eps);
      for (std::size_t i = 0; i < width; ++i)
        rows[row + i] = static_cast<float>((rows[row + i] - mean) * factor * weight[i] + bias[i]);
    }
  }

  MatrixId places_of_head(const std::shared_ptr<const std::vector<float>>& places, const Parameter& projection, std::int32_t head,
                          std::int32_t dim) {
    const Matrix& source = d_.matrix(projection.matrix);
    const std::vector<float>& all = d_.weights.vectors[static_cast<std::size_t>(projection.bias)].values;
    const auto at = all.begin() + std::int64_t{head} * dim;
    Matrix matrix{.name = str(source.name, " of places, head ", head), .format = Format::F32,
                  .rows = static_cast<std::int64_t>(places->size()) / source.cols, .cols = dim};
    matrix.read = [places, read = source.read, format = source.format, width = source.cols, bias = std::vector<float>(at, at + dim), head,
                   dim](std::int64_t first, std::int64_t count, std::uint8_t* out) {
      const auto size = static_cast<std::size_t>(dim), cols = static_cast<std::size_t>(width);
      std::vector<std::uint8_t> packed(static_cast<std::size_t>(row_bytes(format, width)));
      std::vector<float> weights(cols), turned(cols * size), row(size);  // turned: the columns of the head's rows, side by side
      for (std::size_t c = 0; c < size; ++c) {
        read(std::int64_t{head} * dim + static_cast<std::int64_t>(c), 1, packed.data());
        unpack(format, packed.data(), width, weights.data());
        for (std::size_t i = 0; i < cols; ++i) turned[i * size + c] = weights[i];
      }
      for (std::int64_t r = first; r < first + count; ++r) {
        const float* place = places->data() + r * width;
        row = bias;
        for (std::size_t i = 0; i < cols; ++i) {
          for (std::size_t c = 0; c < size; ++c) row[c] += place[i] * turned[i * size + c];
        }
        std::memcpy(out + static_cast<std::size_t>(r - first) * size * sizeof(float), row.data(), size * sizeof(float));
      }
    };
    matrix.may_round = compute_ == Compute::automatic;
    d_.weights.matrices.push_back(std::move(matrix));
    return static_cast<MatrixId>(d_.weights.matrices.size() - 1);
  }

  void finish() {
    if (const MatrixId positions = d_.global(Role::position_embedding).matrix; positions != MatrixId::none) {
      d_.config.n_ctx = std::min(d_.config.n_ctx, d_.matrix(positions).rows);
    }
    if (d_.labels > 0 && config().classifier.dense && !d_.global(Role::head_dense).present()) {
      d_.incomplete.push_back(str("lacks the dense layer before the classifier (", first_name(Role::head_dense, 0, "weight"),
                             "): scores are not the original model's, neither in scale nor always in order. Load its folder"));
    }
    for (const Matrix& matrix : d_.weights.matrices)
      d_.parameters += static_cast<std::uint64_t>(matrix.rows) * static_cast<std::uint64_t>(matrix.cols);
    for (const Vector& vector : d_.weights.vectors) d_.parameters += vector.values.size();
  }

  // Tensors of layers that run and that no layer has a use for: a q_norm in a Llama. Other parts of a file may be other models' (vision
  // towers, heads of pre-training), and what one layer reads another one may have for nothing (keys in Gemma 4).
  void note_unread() {
    constexpr std::string_view kBuffers[] = {".inv_freq", ".attn.bias", ".attention.bias", ".masked_bias", ".embed_positions"};
    std::set<std::string, std::less<>> known;
    for (std::size_t i = 0; i < kRoles; ++i) {
      const auto role = static_cast<Role>(i);
      bool read = role == Role::position_bias || role == Role::place_embedding;
      for (std::size_t layer = 0; layer < d_.layers.size() && !read; ++layer) read = need(role, layer) != Need::no;
      for (const TensorName& name : names_of(role)) {
        const std::string pattern = config().gguf ? std::string(name.gguf) : prefix_ + std::string(name.safetensors);
        if (read) known.insert(pattern);
      }
    }
    for (const std::string_view name : config().family->read_by_configure) known.insert(prefix_ + std::string(name));
    const auto is_known = [&](std::string_view name) {
      if (known.contains(name)) return true;
      for (const std::string_view suffix : {".weight", ".bias", ".gamma", ".beta"})
        if (name.ends_with(suffix) && known.contains(name.substr(0, name.size() - suffix.size()))) return true;
      const auto adapted = name.find(".parametrizations.");
      return adapted != std::string_view::npos && known.contains(name.substr(0, adapted));
    };
    const std::set<std::string> before = before_layers();
    std::string first;
    std::size_t count = 0;
    for (const files::TensorInfo& tensor : file_->tensors()) {
      const std::string_view name = tensor.name;
      if (std::any_of(std::begin(kBuffers), std::end(kBuffers), [&](std::string_view end) { return name.ends_with(end); })) continue;
      for (const std::string& begin : before) {
        const auto layer = number_after(name, begin);
        if (!layer || *layer >= static_cast<std::int64_t>(d_.layers.size())) continue;
        if (is_known(name) || is_known(str(begin, "{}", name.substr(name.find('.', begin.size()))))) continue;
        if (count++ == 0) first = tensor.name;
        break;
      }
    }
    if (count == 0) return;
    d_.incomplete.push_back(str("has ", count, " tensor", count > 1 ? "s" : "", " that no layer of this \"", config().family->name,
                                "\" reads (", first, count > 1 ? " is the first" : "", "): not run, so results may not be the original's"));
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
    std::vector<std::string> names;
    for (const files::TensorInfo& tensor : file_->tensors().first(std::min<std::size_t>(file_->tensors().size(), kNamesCompared)))
      names.push_back(tensor.name);
    const std::string_view near = nearest(name, names);
    throw Error(ErrorKind::model_format,
                str(file_->path(), ": tensor ", name, " is missing",
                    near.empty() ? std::string(" (the file has no tensors)") : str("; the nearest name is ", near)))
        .in_file(file_->path())
        .at_field(name);
  }

  std::shared_ptr<const files::ModelFile> file_;
  std::optional<Format> quantize_;
  Compute compute_;
  Adapters adapters_;
  Lora lora_;
  std::string prefix_;
  std::map<std::tuple<const files::TensorInfo*, std::int64_t, std::int64_t, std::string>, Parameter> matrices_;  // the last: its adapter
  Description d_;
};

}  // namespace

Description describe(std::shared_ptr<const files::ModelFile> file, const DescribeOptions& options) {
  if (options.quantize && !can_pack(*options.quantize))
    fail(ErrorKind::invalid_argument, "quantize: ", name(*options.quantize), " cannot be written; there are q8_0, q4_0 and q4_k");
  return Resolver(std::move(file), options).run();
}

}  // namespace pumice::model
