#include "options.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "core/error.h"
#include "core/formats.h"
#include "engine/model.h"
#include "file.h"

namespace py = pybind11;
using namespace py::literals;

namespace pumice::bindings {

KvFormat kv_format(const std::string& name) {
  for (std::size_t f = 0; f < std::size(kKvFormats); ++f) {
    if (name == kKvFormats[f]) return static_cast<KvFormat>(f);
  }
  fail(ErrorKind::invalid_argument, "kv_dtype=\"", name, "\" is not known; there are \"f16\", \"f32\" and \"q8_0\"");
}

Compute compute_mode(const std::string& name) {
  if (name == "auto") return Compute::automatic;
  if (name == "float32") return Compute::float32;
  fail(ErrorKind::invalid_argument, "compute=\"", name, "\" is not known; there are \"auto\" and \"float32\"");
}

static bool packs(Format format) { return info(format).quantized && can_pack(format); }

std::vector<std::string> pack_formats() {
  std::vector<std::string> names;
  for (const FormatInfo& format : kFormats)
    if (packs(format.format)) names.emplace_back(format.name);
  return names;
}

namespace {

using engine::LoadOptions;

Format weight_format(const std::string& name) {
  const auto format = format_from_name(name);
  if (format && packs(*format)) return *format;
  std::string known;
  for (const std::string& each : pack_formats()) known += str(known.empty() ? "" : ", ", each);
  fail(ErrorKind::invalid_argument, "quantize=\"", name, "\" is not known; there are ", known);
}

model::ModuleSpec module_spec(const py::dict& module) {
  const auto get = [&]<class T>(const char* key, T otherwise) { return module.contains(key) ? module[key].cast<T>() : otherwise; };
  return {.kind = model::module_from_name(module["kind"].cast<std::string>()),
          .on_tokens = get("on_tokens", false),
          .file = file_name(get("file", py::str())),
          .in = get("in_features", std::int64_t{0}),
          .out = get("out_features", std::int64_t{0}),
          .bias = get("bias", false),
          .residual = get("residual", false),
          .activation = model::activation_from_name(get("activation", std::string("none")))};
}

model::LoraSpec lora_spec(const py::dict& d) {
  model::LoraSpec spec{.file = d["file"].cast<std::shared_ptr<files::ModelFile>>(), .modules = {}};
  for (const py::handle each : d["modules"]) {
    const auto [name, a, b, scale, layout] = each.cast<std::tuple<std::string, std::string, std::string, float, std::string>>();
    require(layout == "linear" || layout == "embedding" || layout == "embedding_rows", "lora: layout ", layout);
    spec.modules.push_back({.name = name,
                            .a = a,
                            .b = b,
                            .scale = scale,
                            .layout = layout == "linear"      ? model::LoraLayout::linear
                                      : layout == "embedding" ? model::LoraLayout::embedding
                                                              : model::LoraLayout::embedding_rows});
  }
  return spec;
}

model::MlmUse mlm_use(const std::string& name) {
  if (name == "never") return model::MlmUse::never;
  if (name == "maybe") return model::MlmUse::maybe;
  if (name == "always") return model::MlmUse::always;
  fail(ErrorKind::invalid_argument, "mlm_head=\"", name, "\" is not known; there are \"never\", \"maybe\" and \"always\"");
}

LoadOptions make_options(const std::string& device, std::optional<std::int64_t> gpu_layers,
                         const std::vector<std::int64_t>& gpu_layers_each, std::optional<std::int64_t> gpu_experts,
                         const std::optional<std::string>& quantize, std::optional<std::int64_t> n_ctx, const std::string& kv_dtype,
                         std::optional<std::int64_t> kv_budget, std::optional<std::int64_t> expert_cache, const std::string& compute,
                         std::optional<std::int64_t> threads, const std::vector<std::string>& pooling, const std::vector<py::dict>& modules,
                         const std::vector<std::int32_t>& score_ids, const std::optional<std::string>& task,
                         const std::vector<py::dict>& lora, bool sketch, bool mtp, const std::shared_ptr<files::ModelFile>& assistant,
                         const std::string& mlm_head, bool allow_unread) {
  LoadOptions options;
  options.device = device;
  options.gpu_layers = gpu_layers;
  options.gpu_layers_each = gpu_layers_each;
  require(gpu_experts.value_or(0) >= engine::kAllLayers, "gpu_experts is ", gpu_experts.value_or(0), "; it must be a number of layers");
  options.gpu_experts = gpu_experts;
  if (quantize) options.quantize = weight_format(*quantize);
  options.n_ctx = n_ctx;
  options.kv_format = kv_format(kv_dtype);
  if (kv_budget) {
    require(*kv_budget > 0, "kv_budget is ", *kv_budget, "; it must be a positive number of bytes");
    options.kv_budget = static_cast<std::uint64_t>(*kv_budget);
  }
  if (expert_cache) {
    require(*expert_cache > 0, "expert_cache is ", *expert_cache, "; it must be a positive number of bytes");
    options.expert_cache = static_cast<std::uint64_t>(*expert_cache);
  }
  options.compute = compute_mode(compute);
  if (threads) {
    require(*threads >= 1 && *threads <= 1024, "threads is ", *threads, "; it must lie between 1 and 1024");
    options.threads = static_cast<int>(*threads);
  }
  for (const std::string& name : pooling) options.pooling.push_back(model::pooling_from_name(name));
  for (const py::dict& module : modules) options.modules.push_back(module_spec(module));
  options.score_ids = score_ids;
  options.task = task.value_or("");
  for (const py::dict& spec : lora) options.lora.push_back(lora_spec(spec));
  options.sketch = sketch;
  options.mtp = mtp;
  options.assistant = assistant;
  options.mlm_head = mlm_use(mlm_head);
  options.allow_unread = allow_unread;
  return options;
}

}  // namespace

void bind_options(py::module_& module) {
  py::class_<LoadOptions>(module, "LoadOptions")
      .def(py::init(&make_options), py::kw_only(), "device"_a = "auto", "gpu_layers"_a = py::none(),
           "gpu_layers_each"_a = std::vector<std::int64_t>{}, "gpu_experts"_a = py::none(), "quantize"_a = py::none(),
           "n_ctx"_a = py::none(), "kv_dtype"_a = "f16", "kv_budget"_a = py::none(), "expert_cache"_a = py::none(), "compute"_a = "auto",
           "threads"_a = py::none(), "pooling"_a = std::vector<std::string>{}, "modules"_a = std::vector<py::dict>{},
           "score_ids"_a = std::vector<std::int32_t>{}, "task"_a = py::none(), "lora"_a = std::vector<py::dict>{}, "sketch"_a = true,
           "mtp"_a = true, "assistant"_a = py::none(), "mlm_head"_a = "maybe", "allow_unread"_a = false);
}

}  // namespace pumice::bindings
