#include "model/modules.h"

#include <cmath>
#include <memory>

#include "core/checked.h"
#include "core/error.h"
#include "files/model_file.h"

namespace pumice::model {
namespace {

constexpr std::string_view kModuleKinds[] = {"dense", "layer_norm", "normalize"};
// The largest number of columns that a module's output may have, 64 times that of the widest known module.
constexpr std::int64_t kMostColumns = 1 << 20;

class Adder {
 public:
  Adder(Description& d, const ModuleSpec& spec, std::int32_t width) : d_(d), spec_(spec), width_(width) {}

  std::int32_t run() {
    Module module{.kind = spec_.kind, .on_tokens = spec_.on_tokens, .width = width_, .weight = {}, .shortcut = {}};
    switch (spec_.kind) {
      case ModuleKind::dense:
        dense(module);
        break;
      case ModuleKind::layer_norm:
        layer_norm(module);
        break;
      case ModuleKind::normalize:  // an rms norm scales a row to the length sqrt(width); the weights scale it to 1
        module.weight.vector =
            keep({.name = "1 / sqrt(width)",
                  .values = std::vector<float>(static_cast<std::size_t>(width_), static_cast<float>(1 / std::sqrt(double{1.0} * width_)))});
        break;
    }
    d_.modules.push_back(module);
    return module.width;
  }

 private:
  void dense(Module& module) {
    open();
    takes(spec_.in);
    if (spec_.out < 1 || spec_.out > kMostColumns) wrong("out_features", str("is ", spec_.out, "; it must be 1 to ", kMostColumns));
    module.width = static_cast<std::int32_t>(spec_.out);
    module.activation = spec_.activation;
    module.weight.matrix = matrix(spec_.tensor + ".weight");
    if (spec_.bias) module.weight.bias = vector(spec_.tensor + ".bias", spec_.out);
    module.residual = spec_.residual;
    if (spec_.residual && spec_.in != spec_.out) module.shortcut.matrix = matrix("residual.weight");
  }

  void layer_norm(Module& module) {
    open();
    takes(spec_.in);
    module.weight.vector = vector("norm.weight", spec_.in);
    module.weight.bias = vector("norm.bias", spec_.in);
  }

  void open() {
    file_ = spec_.opened ? spec_.opened : files::ModelFile::open_weights(spec_.file);
    d_.files.push_back(file_);
  }
  void takes(std::int64_t size) const {
    if (size == width_) return;
    const std::string before = str(", and what comes before this module gives ", width_);
    if (spec_.opened) wrong(spec_.tensor + ".weight", str("has ", size, " columns", before));
    wrong(spec_.kind == ModuleKind::dense ? "in_features" : "dimension", str("is ", size, before));
  }

  const files::TensorInfo& find(const std::string& name, const std::vector<std::int64_t>& shape) const {
    const files::TensorInfo* tensor = file_->find(name);
    if (!tensor) wrong(name, "is missing");
    file_->format(*tensor);  // throws if pumice does not know the format
    if (tensor->shape == shape) return *tensor;
    const auto text = [](const std::vector<std::int64_t>& sizes) {
      std::string all;
      for (const std::int64_t size : sizes) all += (all.empty() ? "[" : ", ") + std::to_string(size);
      return all + "]";
    };
    wrong(name, str("has shape ", text(tensor->shape), "; the module's configuration needs ", text(shape)));
  }
  MatrixId matrix(const std::string& name) {
    const files::TensorInfo& tensor = find(name, {spec_.out, spec_.in});
    Matrix matrix{.name = str(spec_.file, ": ", name), .format = file_->format(tensor), .rows = spec_.out, .cols = spec_.in, .read = {}};
    matrix.read = [file = file_, &tensor, bytes = row_bytes(matrix.format, matrix.cols)](std::int64_t first, std::int64_t count,
                                                                                         std::uint8_t* out) {
      file->read(tensor, static_cast<std::uint64_t>(first * bytes), static_cast<std::uint64_t>(count * bytes), out);
    };
    d_.parameters += static_cast<std::uint64_t>(spec_.out * spec_.in);
    d_.weights.matrices.push_back(std::move(matrix));
    return static_cast<MatrixId>(d_.weights.matrices.size() - 1);
  }
  VectorId vector(const std::string& name, std::int64_t length) {
    d_.parameters += static_cast<std::uint64_t>(length);
    return keep({.name = str(spec_.file, ": ", name), .values = file_->read_floats(find(name, {length}))});
  }
  VectorId keep(Vector vector) {
    d_.weights.vectors.push_back(std::move(vector));
    return static_cast<VectorId>(d_.weights.vectors.size() - 1);
  }

  [[noreturn]] void wrong(const std::string& field, const std::string& what) const {
    throw Error(ErrorKind::model_format, str(spec_.file, ": ", field, " ", what)).in_file(spec_.file).at_field(field);
  }

  Description& d_;
  const ModuleSpec& spec_;
  const std::int32_t width_;
  std::shared_ptr<const files::ModelFile> file_;
};

}  // namespace

ModuleKind module_from_name(const std::string& name) {
  for (std::size_t i = 0; i < std::size(kModuleKinds); ++i) {
    if (name == kModuleKinds[i]) return static_cast<ModuleKind>(i);
  }
  fail(ErrorKind::invalid_argument, "module \"", name, "\" is not known; there are dense, layer_norm and normalize");
}

Activation activation_from_name(const std::string& name) {
  for (std::size_t i = 0; i < std::size(kActivations); ++i) {
    if (name == kActivations[i] && static_cast<Activation>(i) != Activation::xielu) return static_cast<Activation>(i);
  }
  fail(ErrorKind::invalid_argument, "activation \"", name, "\" is not known");
}

std::vector<ModuleSpec> modules_in(const std::shared_ptr<const files::ModelFile>& file, const Config& config) {
  std::vector<ModuleSpec> specs;
  for (const std::string& name : config.dense) {
    std::vector<std::int64_t> shape = file->find(name + ".weight")->shape;
    shape.resize(2);
    specs.push_back({.file = file->path(), .opened = file, .tensor = name, .in = shape[1], .out = shape[0], .bias = false});
  }
  return specs;
}

void add_modules(Description& d, const std::vector<PoolKind>& pooling, const std::vector<ModuleSpec>& specs) {
  if (!pooling.empty())
    d.pooling = pooling;
  else if (d.config.pooling)
    d.pooling = {*d.config.pooling};
  const std::int32_t hidden = d.config.hidden_size;
  std::int32_t width = d.row_size();
  bool pooled = false;
  const auto pool = [&] {
    if (d.global(Role::projection).present() && width != hidden)
      fail(ErrorKind::unsupported_model, "modules before pooling make rows of ", width, "; this model projects pooled rows of ", hidden);
    width = checked_narrow<std::int32_t>(d.pooled_size()).value_or(0);
    pooled = true;
  };
  for (const ModuleSpec& spec : specs) {
    require(!(pooled && spec.on_tokens), "a module of tokens follows one of pooled rows");
    if (!spec.on_tokens && !pooled) pool();
    width = Adder(d, spec, width).run();
  }
  if (!pooled) pool();
}

void add_score(Description& d, const std::vector<std::int32_t>& ids) {
  const Parameter head = d.global(Role::head);
  if (!head.present()) fail(ErrorKind::unsupported_model, "a reranker that reads logits needs a decoder with an output head");
  for (const std::int32_t id : ids)
    require(id >= 0 && id < d.vocab_size, "token id ", id, " of the score; this model's are 0 to ", d.vocab_size - 1);
  const Matrix& all = d.matrix(head.matrix);
  Matrix rows{.name = all.name + " (rows of the score)",
              .format = all.format,
              .rows = static_cast<std::int64_t>(ids.size()),
              .cols = all.cols,
              .read = {}};
  rows.read = [read = all.read, ids, bytes = row_bytes(all.format, all.cols)](std::int64_t first, std::int64_t count, std::uint8_t* out) {
    for (std::int64_t i = 0; i < count; ++i) read(ids[static_cast<std::size_t>(first + i)], 1, out + i * bytes);
  };
  if (head.bias != VectorId::none) {
    Vector bias{.name = "bias of the score", .values = {}};
    for (const std::int32_t id : ids)
      bias.values.push_back(d.weights.vectors[static_cast<std::size_t>(head.bias)].values[static_cast<std::size_t>(id)]);
    d.weights.vectors.push_back(std::move(bias));
    d.score.bias = static_cast<VectorId>(d.weights.vectors.size() - 1);
  }
  d.weights.matrices.push_back(std::move(rows));
  d.score.matrix = static_cast<MatrixId>(d.weights.matrices.size() - 1);
  d.labels = static_cast<std::int32_t>(ids.size());
}

}  // namespace pumice::model
