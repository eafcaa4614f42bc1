#include "model/weight_reader.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "files/made_tensor.h"
#include "model/tensor_errors.h"

namespace pumice::model {
namespace {

constexpr std::string_view kBlocks = "_blocks";  // end of the name of a tensor of MXFP4 codes (gpt-oss)
// The number of layers at the end of an encoder in which products may use 8-bit codes both for the matrix and for the activations
// (Rounding::bytes). Earlier layers may not, because later layers amplify their rounding noise, for some texts a hundredfold ("nov." in
// all-mpnet-base-v2, docs/numerics.md).
constexpr std::size_t kByteLayers = 8;

}  // namespace

WeightReader::WeightReader(std::shared_ptr<const files::ModelFile> file, const TensorNames& names, Description& d,
                           const DescribeOptions& options)
    : file_(std::move(file)),
      names_(names),
      d_(d),
      quantize_(options.quantize),
      compute_(options.compute),
      adapters_(file_, options.task),
      lora_(options.lora) {}

// Returns the number of columns that a vector has if a GGUF file stores it as a matrix (Use::folded). For scan_norm this is the size of a
// group of the norm, and for other roles it is 1.
static std::int64_t folded_columns(const Layer& layer, Role role) {
  const Recurrent* r = layer.if_recurrent();
  return role == Role::scan_norm && r && r->norm ? r->norm->group : 1;
}

Parameter WeightReader::read(Role role, std::size_t layer) {
  Parameter parameter;
  const Asked ask = asked(d_, role, layer);
  if (ask.need == Need::never || ask.need == Need::elsewhere) return parameter;
  const TensorNames::Found found = names_.weight(role, layer);
  if (!found.tensor) {
    if (ask.need == Need::always) names_.missing(role, layer, "weight");
    return parameter;
  }
  if (ask.is_vector()) {
    const std::int64_t columns = has(ask.use, Use::folded) ? folded_columns(d_.config.layer(layer), role) : 0;
    Vector vector{.name = found.tensor->name, .values = values_of(found, ask.rows, columns)};
    if (d_.config.norm_offset && !has(ask.use, Use::as_is)) {
      for (float& value : vector.values) value += 1;
    }
    if (has(ask.use, Use::addend)) {
      parameter.vector = d_.add(Vector{.name = str(vector.name, " (zeros)"), .values = std::vector<float>(vector.values.size())});
      parameter.bias = d_.add(std::move(vector));
      return parameter;
    }
    parameter.vector = d_.add(std::move(vector));
  } else {
    read_matrix(parameter, found, role, layer);
  }
  parameter.bias = read_bias(role, layer, ask.is_vector() ? ask.rows : d_.matrix(parameter.matrix).rows);
  return parameter;
}

// Returns the factor by which the product of a role is multiplied, because the role's bias must be multiplied by the same factor. Factors
// of the product's input do not count.
static float bias_factor(const Layer& layer, Role role, Use use) {
  const Attention* a = layer.if_attention();
  const Recurrent* r = layer.if_recurrent();
  const FeedForward* f = layer.if_feed_forward();
  const auto out = [](const auto* part) { return part && part->multipliers ? part->multipliers->out : 1.0f; };
  const ScanFactors factors = r && r->factors ? *r->factors : ScanFactors{};
  float by = has(use, Use::ends_branch) ? layer.join.scale : 1;
  if (role == Role::attn_out) by *= out(a);
  if (role == Role::scan_out) by *= out(r);
  if (role == Role::down) by *= out(f);
  if (role == Role::gate && f && f->multipliers) by *= f->multipliers->in;
  if (role == Role::scan_q) by *= factors.q;
  if (role == Role::scan_k) by *= factors.k;
  if (role == Role::scan_v) by *= factors.v;
  if (role == Role::scan_gate) by *= factors.gate;
  if (role == Role::scan_step) by *= factors.step;
  return by;
}

VectorId WeightReader::read_bias(Role role, std::size_t layer, std::int64_t length) {
  const TensorNames::Found found = names_.bias(role, layer);
  const Asked ask = asked(d_, role, layer);
  if (!found.tensor && ask.bias) names_.missing(role, layer, "bias");
  if (!found.tensor) return VectorId::none;
  Vector bias{.name = found.tensor->name, .values = ask.experts > 0 ? values_of_experts(found, ask) : values_of(found, length)};
  if (const float by = of_layer(role) ? bias_factor(d_.config.layer(layer), role, ask.use) : 1; by != 1) {
    for (float& value : bias.values) value *= by;
  }
  return d_.add(std::move(bias));
}

// Returns the `length` values that belong to a role in a tensor with one dimension. If `columns` is not 0, a GGUF file may store the tensor
// as a matrix with this many columns.
std::vector<float> WeightReader::values_of(const TensorNames::Found& found, std::int64_t length, std::int64_t columns) const {
  const files::TensorInfo& tensor = *found.tensor;
  require_format(*file_, tensor);
  const Part part = found.part.of_rows(length);
  const bool as_matrix = columns > 0 && d_.config.gguf && tensor.shape == std::vector{part.whole / columns, columns};
  const bool as_row = found.name.one_row && tensor.shape == std::vector{std::int64_t{1}, part.whole};
  const bool as_vector = tensor.shape == std::vector{part.whole};
  if (!as_matrix && !as_row && !as_vector) wrong_shape(*file_, tensor, str("[", part.whole, "]"));
  return values_in(tensor, part, length);
}

// Returns the biases of all experts, one expert after another. The tensor has the shape [experts, rows], and several roles may share its
// rows.
std::vector<float> WeightReader::values_of_experts(const TensorNames::Found& found, const Asked& ask) const {
  const files::TensorInfo& tensor = *found.tensor;
  require_format(*file_, tensor);
  const Part part = found.part.of_rows(ask.rows);
  if (tensor.shape != std::vector{std::int64_t{ask.experts}, part.whole})
    wrong_shape(*file_, tensor, str("[", ask.experts, ", ", part.whole, "]"));
  return values_in(tensor, part, ask.experts * ask.rows);
}

// Returns the first `count` values of the part `part` of a tensor.
std::vector<float> WeightReader::values_in(const files::TensorInfo& tensor, const Part& part, std::int64_t count) const {
  const std::vector<float> all = file_->read_floats(tensor);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = all[static_cast<std::size_t>(part.of(i))];
  return values;
}

WeightReader::Taps WeightReader::read_taps(Role role, std::size_t layer) const {
  const TensorNames::Found found = names_.weight(role, layer);
  if (!found.tensor) names_.missing(role, layer, "weight");
  const files::TensorInfo& tensor = *found.tensor;
  require_format(*file_, tensor);
  const Asked ask = asked(d_, role, layer);
  const Part part = found.part.of_rows(ask.rows);
  const auto needed = d_.config.gguf ? std::vector{part.whole, ask.cols} : std::vector{part.whole, std::int64_t{1}, ask.cols};
  if (tensor.shape != needed)
    wrong_shape(*file_, tensor, d_.config.gguf ? str("[", part.whole, ", ", ask.cols, "]") : str("[", part.whole, ", 1, ", ask.cols, "]"));
  const std::vector<float> all = file_->read_floats(tensor);
  Taps taps{.rows = {.name = tensor.name, .values = {}}, .bias = {}};
  for (std::int64_t row = 0; row < ask.rows; ++row) {
    const auto from = all.begin() + part.of(row) * ask.cols;
    taps.rows.values.insert(taps.rows.values.end(), from, from + ask.cols);
  }
  const TensorNames::Found bias = names_.bias(role, layer);
  if (!bias.tensor && ask.bias) names_.missing(role, layer, "bias");
  if (bias.tensor) taps.bias = values_of(bias, ask.rows);
  return taps;
}

Vector WeightReader::read_table(Role role) const {
  const files::TensorInfo* table = names_.weight(role, 0).tensor;
  if (!table) names_.missing(role, 0, "weight");
  require_format(*file_, *table);
  const Asked ask = asked(d_, role, 0);
  if (table->shape != std::vector{ask.rows, ask.cols}) wrong_shape(*file_, *table, str("[", ask.rows, ", ", ask.cols, "]"));
  return {.name = table->name, .values = file_->read_floats(*table)};
}

void WeightReader::tie_head(Parameter& head) {
  const Parameter& embedding = d_.global(Role::token_embedding);
  if (d_.config.head_columns)
    fail(ErrorKind::unsupported_model, file_->path(), ": a head that is normalised needs a matrix of its own (",
         names_.first_name(Role::head, 0, "weight"), "); the embedding in its place is not run");
  if (lora_.has(names_.adapter_names(Role::head, 0)) || lora_.has(names_.adapter_names(Role::token_embedding, 0))) {
    read_matrix(head, names_.weight(Role::token_embedding, 0), Role::head, 0);
  } else {
    head.matrix = embedding.matrix;
  }
  head.bias = read_bias(Role::head, 0, d_.matrix(head.matrix).rows);
}

void WeightReader::tie_mlm_decoder(Parameter& decoder) {
  read_matrix(decoder, names_.weight(Role::token_embedding, 0), Role::mlm_decoder, 0);
  decoder.bias = read_bias(Role::mlm_decoder, 0, d_.matrix(decoder.matrix).rows);
}

// Throws if the matrix cannot be read, or if reading it requires rounding and load() was called without quantize=. quantize= allows
// rounding.
void WeightReader::require_readable(const files::TensorInfo& tensor) const {
  require_format(*file_, tensor);
  if (!tensor.made) return;
  const bool exact = tensor.made->not_exact.empty();
  if (!exact && !quantize_)
    fail(ErrorKind::unsupported_model, file_->path(), ": tensor ", tensor.name, " is packed by ", tensor.made->packing, ", and ",
         tensor.made->not_exact, ": no format holds these weights exactly. load(..., quantize=\"q8_0\") reads and rounds them");
}

void WeightReader::note_formats() {
  if (const int all = in_bytes_ + not_in_bytes_; all > 0)
    d_.notes.push_back(str("a CPU multiplies ", in_bytes_, " of the ", all, " matrices in Q8_0 as 8-bit codes and ", not_in_bytes_,
                           " as 13-bit codes, which it makes of the file's weights (docs/numerics.md)"));

  for (const auto& [tensor, id] : packed_) {
    const Format now = d_.matrix(id).format;
    const bool asked = quantize_ && now == *quantize_ && now != *tensor->format;  // the matrix is rounded because of load(quantize=)
    const bool exact = tensor->made->not_exact.empty() && !asked;
    const Format format = exact ? *tensor->format : now;
    const char* const how = exact ? ", exactly" : info(format).quantized ? ", rounded" : ", not rounded";
    std::string note = str(tensor->made->packing, ": read as ", name(format), how);
    if (std::ranges::find(d_.notes, note) == d_.notes.end()) d_.notes.push_back(std::move(note));
  }
}

// Checks the tensor's shape, sets `part` to the rows of the tensor that belong to the role, and returns a matrix that reads these rows.
Matrix WeightReader::open(const TensorNames::Found& found, const Asked& ask, Part& part) const {
  const files::TensorInfo& tensor = *found.tensor;
  require_readable(tensor);
  const bool transposed = names_.transposed(found.name), any = ask.rows == 0;
  const std::size_t row_axis = transposed ? 1 : 0;
  const std::int64_t whole = found.part.of_rows(ask.rows).whole;
  // When llama.cpp quantizes a file, it drops a first dimension of 1, for example that of the classifier of a reranker with a single label.
  // This dimension is added again here.
  std::vector<std::int64_t> shape = tensor.shape;
  if (d_.config.gguf && shape.size() == 1) shape.insert(shape.begin(), 1);
  if (shape.size() != 2 || (!any && shape[row_axis] != whole) || shape[1 - row_axis] != ask.cols) {
    const std::string number = any ? "any" : std::to_string(whole);
    wrong_shape(*file_, tensor, transposed ? str("[", ask.cols, ", ", number, "]") : str("[", number, ", ", ask.cols, "]"));
  }
  part = found.part;
  part.whole = shape[row_axis];
  const std::int64_t rows = any ? shape[0] - part.first : ask.rows;
  if (rows < 1) wrong_shape(*file_, tensor, str("at least ", part.first + 1, part.first == 0 ? " row" : " rows"));
  if (shape[row_axis] > std::numeric_limits<std::int32_t>::max() / 2) wrong_shape(*file_, tensor, "fewer than 2^30 rows");
  part = part.of_rows(rows);
  Matrix matrix{.name = tensor.name, .format = *tensor.format, .rows = rows, .cols = ask.cols};
  matrix.read = transposed ? read_transposed(file_, tensor, part, ask.cols) : read_rows(file_, tensor, part, ask.cols);
  return matrix;
}

// Checks the tensor of MXFP4 codes and the tensor of their scales. Returns a function that reads rows of MXFP4 from both.
ReadRows WeightReader::open_mxfp4(const files::TensorInfo& blocks, const Asked& ask, const Part& part) const {
  const std::string scales_name = blocks.name.substr(0, blocks.name.size() - kBlocks.size()) + "_scales";
  const files::TensorInfo* scales = file_->find(scales_name);
  if (!scales) model::missing(*file_, scales_name);
  constexpr std::int64_t kBlock = 32;
  if (ask.cols % kBlock != 0)
    fail(ErrorKind::unsupported_model, file_->path(), ": tensor ", blocks.name, ": rows of ", ask.cols, " do not divide into blocks of ",
         kBlock);
  const std::int64_t count = ask.cols / kBlock;
  if (blocks.shape != std::vector{std::int64_t{ask.experts}, part.whole, count, kBlock / 2})
    wrong_shape(*file_, blocks, str("[", ask.experts, ", ", part.whole, ", ", count, ", ", kBlock / 2, "]"));
  if (scales->shape != std::vector{std::int64_t{ask.experts}, part.whole, count})
    wrong_shape(*file_, *scales, str("[", ask.experts, ", ", part.whole, ", ", count, "]"));
  for (const files::TensorInfo* tensor : {&blocks, scales}) {
    if (tensor->format_name != "U8")
      fail(ErrorKind::model_format, file_->path(), ": tensor ", tensor->name, " is ", tensor->format_name, "; U8 is needed");
  }
  return read_mxfp4(file_, blocks, *scales, part, ask.cols);
}

// Checks the shape of a tensor that has the matrices of all heads, one below another. Returns a stack with one matrix per head
// (Matrix::experts).
Matrix WeightReader::open_heads(const TensorNames::Found& found, const Asked& ask, Role role) const {
  const files::TensorInfo& tensor = *found.tensor;
  require_readable(tensor);
  const bool turned = role == Role::latent_key;  // true if the tensor stores each head's matrix transposed
  const std::int64_t cols = turned ? ask.rows : ask.cols;
  if (tensor.shape != std::vector{found.part.whole, cols}) wrong_shape(*file_, tensor, str("[", found.part.whole, ", ", cols, "]"));
  Matrix matrix{.name = tensor.name, .format = *tensor.format, .rows = ask.rows * ask.experts, .cols = ask.cols};
  matrix.experts = ask.experts;
  matrix.read = turned ? read_transposed_heads(file_, tensor, found.part, slices_) : read_rows(file_, tensor, found.part, cols);
  if (turned && info(matrix.format).block > 1) matrix.format = Format::F32;
  return matrix;
}

// Checks the shape of the tensor with all experts or, if each expert has a tensor of its own, of all these tensors. Returns a stack that
// reads the rows of the experts one after another.
Matrix WeightReader::open_stack(const TensorNames::Found& found, const Asked& ask, Role role, std::size_t layer) const {
  const std::int64_t rows = ask.rows * ask.experts;
  if (rows > std::numeric_limits<std::int32_t>::max() / 2)
    fail(ErrorKind::unsupported_model, file_->path(), ": ", found.tensor->name, ": ", ask.experts, " experts of ", ask.rows,
         " rows are more than 2^30 rows");
  if (of(role) == Of::latent_attention && found.name.fused != Fused::no) return open_heads(found, ask, role);
  Matrix matrix{.name = found.tensor->name, .format = Format::F32, .rows = rows, .cols = ask.cols};
  matrix.experts = ask.experts;
  const Part part = found.part.of_rows(ask.rows);
  if (found.tensor->name.ends_with(kBlocks)) {
    matrix.format = Format::MXFP4;
    matrix.read = open_mxfp4(*found.tensor, ask, part);
    return matrix;
  }
  require_readable(*found.tensor);
  matrix.format = *found.tensor->format;
  const std::vector<const files::TensorInfo*> each = names_.each_expert(found, layer, ask.experts);
  if (each.empty()) {
    const files::TensorInfo& tensor = *found.tensor;
    const bool transposed = names_.transposed(found.name);
    const std::int64_t first = transposed ? ask.cols : part.whole, second = transposed ? part.whole : ask.cols;
    // nomic-embed v2 stores all experts, one below another, in a tensor of two dimensions.
    const bool flat = !d_.config.gguf && tensor.shape == std::vector{ask.experts * first, second};
    if (!flat && tensor.shape != std::vector{std::int64_t{ask.experts}, first, second})
      wrong_shape(*file_, tensor, str("[", ask.experts, ", ", first, ", ", second, "]"));
    matrix.read = transposed ? read_transposed_experts(file_, tensor, part, ask.cols, slices_) : read_rows(file_, tensor, part, ask.cols);
    return matrix;
  }
  std::vector<ReadRows> parts;
  for (const files::TensorInfo* tensor : each) {
    require_readable(*tensor);
    if (tensor->shape != std::vector{part.whole, ask.cols}) wrong_shape(*file_, *tensor, str("[", part.whole, ", ", ask.cols, "]"));
    if (tensor->format != found.tensor->format)
      fail(ErrorKind::unsupported_model, file_->path(), ": ", tensor->name, " is ", name(*tensor->format), ", and ", found.tensor->name,
           " is ", name(*found.tensor->format), ": the experts of a layer need one format");
    parts.push_back(read_rows(file_, *tensor, part, ask.cols));
  }
  matrix.read = read_each(std::move(parts), ask.rows, row_bytes(matrix.format, matrix.cols));
  return matrix;
}

void WeightReader::read_matrix(Parameter& parameter, const TensorNames::Found& found, Role role, std::size_t layer) {
  const Asked ask = asked(d_, role, layer);
  if (ask.experts > 0) {
    for (const std::string& name : names_.adapter_names(role, layer)) {
      if (!lora_.has({&name, 1})) continue;
      fail(ErrorKind::unsupported_model, file_->path(), ": lora: an adapter changes ", name,
           ", a matrix of experts or of latent heads, and adapters of these are not run. Merge it into the model");
    }
    Matrix stack = open_stack(found, ask, role, layer);
    finish(stack, false);
    parameter.matrix = d_.add(std::move(stack));
    if (found.tensor->made) packed_.emplace_back(found.tensor, parameter.matrix);
    return;
  }
  Part part;
  Matrix matrix = open(found, ask, part);
  const std::vector<std::string> names = names_.adapter_names(role, layer);
  const auto key =
      std::tuple(found.tensor, part.first, part.run, lora_.has(names) ? names.front() : std::string(), has(ask.use, Use::product));
  // If layers share weights (ALBERT), the matrix may have been read already.
  if (const auto known = matrices_.find(key); known != matrices_.end()) {
    parameter = known->second;
    return;
  }
  merge(matrix, part, adapters_.of(*found.tensor, has(ask.use, Use::table)), Format::F32);
  std::optional<LowRank> low = lora_.of(names, part.whole, matrix.cols);
  if (low && !(info(matrix.format).block > 1 && has(ask.use, Use::apart))) {
    merge(matrix, part, adding(*std::move(low)), changed_format(matrix));
    low.reset();
  }
  if (const auto& columns = d_.config.head_columns; role == Role::head && columns)
    divide_by_lengths_of_columns(matrix, changed_format(matrix), columns->floor);
  if (has(ask.use, Use::product)) {
    const bool both_ways = of_layer(role) && !d_.config.causal();
    const bool late = layer + kByteLayers >= d_.config.layers.size();
    finish(matrix, both_ways && late && has(ask.use, Use::bytes));
  }
  parameter.matrix = d_.add(matrix);
  if (found.tensor->made) packed_.emplace_back(found.tensor, parameter.matrix);
  if (low) keep_apart(parameter, matrix, *low, part);
  if (matrices_.contains({found.tensor, part.first, part.run, std::get<3>(key), !std::get<4>(key)})) d_.copies.push_back(parameter.matrix);
  matrices_[key] = parameter;
}

// Quantizes the matrix as load(quantize=) requires. Sets Matrix::rounding, which says how far a backend may round the matrix. Rounding is
// allowed only in encoders without experts, because it moves a router's scores by about 1e-3. If two experts have nearly equal scores,
// another expert may then be chosen, which changes the token's row by up to 0.4. A matrix that becomes Q8_0 and may be rounded also gets
// Matrix::read_floats, from which a backend can read its floats.
void WeightReader::finish(Matrix& matrix, bool in_bytes) {
  const bool experts = std::ranges::any_of(d_.config.layers, [](const Layer& layer) { return layer.if_mixture() != nullptr; });
  const bool rounds = compute_ == Compute::automatic && !d_.config.has_head && !experts;
  auto floats = rounds && quantize_ == Format::Q8_0 ? floats_of(matrix) : nullptr;
  const bool quantized = quantize(matrix);
  if (rounds) matrix.rounding = Rounding::floats;
  if (!quantized || !floats) return;
  matrix.read_floats = std::move(floats);
  if (in_bytes) matrix.rounding = Rounding::bytes;
  ++(in_bytes ? in_bytes_ : not_in_bytes_);
}

// Returns the format that a matrix gets when an adapter changes its weights. It is F16 if the matrix is quantized in blocks, because the
// new weights do not fit the blocks' scales. Otherwise it is the matrix's own format, or F32 with compute="float32".
Format WeightReader::changed_format(const Matrix& matrix) const {
  if (info(matrix.format).block > 1) return Format::F16;
  return compute_ == Compute::float32 ? Format::F32 : matrix.format;
}

// Makes `matrix` add an adapter to its rows whenever they are read. `add` does this in float32, and the rows are then packed in the format
// `kept`.
void WeightReader::merge(Matrix& matrix, const Part& part, AddRow add, Format kept) const {
  if (!add) return;
  repack(matrix, kept, [part, add = std::move(add)](std::int64_t row, float* values) { add(part.of(row), values); });
}

// Keeps an adapter separate from a quantised matrix, so that the matrix does not change. The two factors of the adapter become two more
// matrices, by which the layer multiplies as well. The rank of these two matrices is padded with zeros to a multiple of 8, because kernels
// are faster for such ranks.
void WeightReader::keep_apart(Parameter& parameter, const Matrix& matrix, const LowRank& low, const Part& part) {
  const std::int64_t rank = (low.rank + 7) / 8 * 8;
  std::vector<float> a(static_cast<std::size_t>(rank * low.cols)), b(static_cast<std::size_t>(matrix.rows * rank));
  std::ranges::copy(low.right, a.begin());
  for (std::int64_t row = 0; row < matrix.rows; ++row)
    std::copy_n(low.left.begin() + part.of(row) * low.rank, low.rank, b.begin() + row * rank);
  const auto factor = [&](const char* which, std::vector<float> values, std::int64_t rows, std::int64_t cols) {
    return d_.add(Matrix{.name = str(matrix.name, " (adapter's ", which, ")"),
                         .format = Format::F32,
                         .rows = rows,
                         .cols = cols,
                         .read = read_floats(std::move(values), cols)});
  };
  parameter.lora_a = factor("a", std::move(a), rank, low.cols);
  parameter.lora_b = factor("b", std::move(b), matrix.rows, rank);
}

void WeightReader::quantize(MatrixId id) { quantize(d_.weights.matrices[static_cast<std::size_t>(id)]); }

// Quantizes the matrix as load(quantize=) requires. Returns false, and does not change the matrix, if load() has no quantize=, if the
// matrix is quantized already, or if its rows do not divide into blocks.
bool WeightReader::quantize(Matrix& matrix) {
  if (!quantize_ || info(matrix.format).quantized) return false;
  if (matrix.cols % info(*quantize_).block != 0) {
    d_.notes.push_back(str(matrix.name, " stays ", name(matrix.format), ": its rows of ", matrix.cols, " do not divide into blocks of ",
                           info(*quantize_).block, " for ", name(*quantize_)));
    return false;
  }
  repack(matrix, *quantize_);
  return true;
}

}  // namespace pumice::model
