#include "engine/inspector.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>

#include "core/finite.h"
#include "engine/attention_weights.h"

namespace pumice::engine {

Inspector::Inspector(const PipelineBuilder& builder, std::function<Runtime&(const Cancel&)> layer_by_layer, ProcessLock& preparing)
    : builder_(builder),
      layer_by_layer_(std::move(layer_by_layer)),
      preparing_(preparing),
      decodes_(builder.description().config.has_head) {}

// Returns the pipeline that computes the queries and keys of `layer`. The first call builds this pipeline. It shares the stages for the
// embedding and for the layers before `layer` with the pipeline of layer_by_layer_().
const Inspector::Queries& Inspector::queries(std::size_t layer, const Cancel& cancel) const {
  const std::vector<Pipeline::Stage>& layers = layer_by_layer_(cancel).pipeline.stages();
  const std::lock_guard<ProcessLock> lock(preparing_);
  if (const auto known = queries_.find(layer); known != queries_.end()) return known->second;
  auto end = layers.begin();
  for (std::size_t before = 0; before <= layer; ++end) before += end->unfinished ? 0 : 1;
  std::vector<Pipeline::Stage> body(layers.begin(), end);
  // Programs must be accessed with preparing_ locked. If the process forks while another thread builds programs, locking preparing_ throws
  // an error in the child (ProcessLock).
  const model::ModelProgram& program = builder_.programs().queries(layer);
  body.push_back(builder_.stage(builder_.device_of(layer), program, cancel));
  return queries_.emplace(layer, Queries{builder_.of(std::move(body)), program.attend}).first->second;
}

void Inspector::attentions(std::span<const std::int32_t> ids, std::size_t layer, std::span<float> out, const Cancel& cancel) const {
  const auto n = static_cast<std::int64_t>(ids.size());
  require(layer < builder_.description().config.layers.size(), "layer ", layer, " is not 0 to ",
          builder_.description().config.layers.size() - 1);
  require(n > 0, "attentions: there are no ids");
  if (n > builder_.placement().n_ctx)
    fail(ErrorKind::context_length, "attentions: ", n, " tokens; this model takes ", builder_.placement().n_ctx);
  Runtime& runtime = layer_by_layer_(cancel);
  runtime.check_ids(ids, "text", 0);
  const auto& [pipeline, attend] = queries(layer, cancel);
  const std::int64_t heads = attend.q.width / attend.key_dim;
  require(static_cast<std::int64_t>(out.size()) == heads * n * n, "attentions: room for ", out.size(), " values, needed: ", heads * n * n);
  std::vector<float> rows(ids.size() * static_cast<std::size_t>(pipeline.hidden_size()));
  {
    const auto count = static_cast<std::int32_t>(n);
    const Segment segment{.first = 0, .rows = count, .length = count};
    const auto lease = runtime.spaces.take(Crew::team, cancel);
    pipeline.body(lease[0], nullptr, {.rows = segment.rows, .ids = ids, .segments = {&segment, 1}}, rows, cancel);
  }
  attention_weights(attend, builder_.description().weights, rows, pipeline.hidden_size(), pipeline.widest(), out, cancel);
  const auto bad = std::ranges::find_if(out, [](float x) { return !std::isfinite(x); });
  if (bad == out.end()) return;
  fail(ErrorKind::numeric, "an attention weight of layer ", layer + 1, " is ", name_not_finite(*bad), kWhyNotFinite,
       where_not_finite(ids, {}, cancel));
}

void Inspector::hidden_states(std::span<const std::int32_t> ids, std::span<const std::int32_t> layers, std::span<float> out,
                              const Cancel& cancel) const {
  Runtime& runtime = layer_by_layer_(cancel);
  const auto last = static_cast<std::int32_t>(builder_.description().config.layers.size());
  const auto width = static_cast<std::size_t>(runtime.pipeline.hidden_size());
  require(!ids.empty(), "hidden_states: there are no ids");
  if (static_cast<std::int64_t>(ids.size()) > runtime.n_ctx)
    fail(ErrorKind::context_length, "hidden_states: ", ids.size(), " tokens; this model takes ", runtime.n_ctx);
  runtime.check_ids(ids, "text", 0);
  for (const std::int32_t layer : layers)
    require(layer >= 0 && layer <= last, "layers: ", layer, " is not 0 (what the first layer reads) to ", last,
            " (what the last one gives)");
  const std::size_t rows = ids.size() * width;
  require(out.size() == layers.size() * rows, "hidden_states: room for ", out.size(), " values, needed: ", layers.size() * rows);
  const auto look = [&](std::size_t stage, std::span<const float> given, const Batch&, RunSpace&) {
    const std::size_t stride = given.size() / ids.size();  // rows between layers may have more than hidden_size columns
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (static_cast<std::size_t>(layers[i]) != stage) continue;
      for (std::size_t r = 0; r < ids.size(); ++r)
        std::ranges::copy(given.subspan(r * stride, width), out.subspan(i * rows + r * width).begin());
    }
  };
  run_layers(ids, {}, look, cancel);
}

void Inspector::run_layers(std::span<const std::int32_t> ids, std::span<const std::int32_t> types, const LookAtLayer& look,
                           const Cancel& cancel) const {
  Runtime& runtime = layer_by_layer_(cancel);
  const auto count = static_cast<std::int32_t>(ids.size());
  const Segment segment{.first = 0, .rows = count, .length = count};
  const Batch batch{.rows = segment.rows, .ids = ids, .types = types, .segments = {&segment, 1}};
  std::vector<float> end(ids.size() * static_cast<std::size_t>(runtime.pipeline.hidden_size()));
  const auto lease = runtime.spaces.take(Crew::team, cancel);
  const auto look_at = [&](std::size_t stage, std::span<const float> rows) { look(stage, rows, batch, lease[0]); };
  runtime.pipeline.body(lease[0], nullptr, batch, end, cancel, look_at);
}

std::string Inspector::beyond_f16(std::size_t layer, std::span<const float> rows, const Batch& batch, RunSpace& space,
                                  const Cancel& cancel) const {
  constexpr float kRoundsToInfinity = 65520;  // the smallest float that becomes infinite in F16, whose largest number is 65504
  if (layer >= builder_.description().config.layers.size() || builder_.description().config.layers[layer].attention_heads() == 0) return {};
  const auto& [pipeline, attend] = queries(layer, cancel);
  const Pipeline::Stage& stage = pipeline.stages().back();
  const auto width = static_cast<std::size_t>(stage.output_width);
  std::vector<float> found(static_cast<std::size_t>(batch.rows) * width);
  stage.executable->run(*space.workspaces[stage.backend_index], nullptr, batch, {.in = rows, .out = found}, cancel);
  for (std::size_t row = 0; row < static_cast<std::size_t>(batch.rows); ++row) {
    for (const auto& [what, view] : {std::pair{"key", attend.k}, std::pair{"value", attend.v}}) {
      const std::span<const float> columns =
          std::span(found).subspan(row * width + static_cast<std::size_t>(view.col), static_cast<std::size_t>(view.width));
      const auto beyond = std::ranges::find_if(columns, [](float x) { return std::abs(x) >= kRoundsToInfinity; });
      if (beyond == columns.end()) continue;
      return str("a ", what, " of layer ", layer + 1, " of ", builder_.description().config.layers.size(), " (on ",
                 builder_.placement().devices[builder_.device_of(layer)].backend->info().id, ") is ", *beyond, " at token ", row);
    }
  }
  return {};
}

// Runs a text layer by layer to find the layer after which a value is first not finite. In a decoder, runs only as many tokens as a step
// may have rows. The engine thread calls this function, too, and then computes no step for other requests until it returns.
std::string Inspector::where_not_finite(std::span<const std::int32_t> ids, std::span<const std::int32_t> types,
                                        const Cancel& cancel) const noexcept {
  try {
    const bool cut = decodes_ && ids.size() > kPlannedRows;
    if (cut) ids = ids.first(kPlannedRows);
    const std::size_t layers = builder_.description().config.layers.size();
    std::string where;
    const auto look = [&](std::size_t stage, std::span<const float> rows, const Batch&, RunSpace&) {
      if (!where.empty()) return;
      const auto bad = std::ranges::find_if(rows, [](float x) { return !std::isfinite(x); });
      if (bad == rows.end()) return;
      const auto token = static_cast<std::size_t>(bad - rows.begin()) / (rows.size() / ids.size());
      if (stage == 0) {
        where = str("; computed alone, the embedding of its token ", token, " is not finite");
      } else {
        where = str("; computed alone, the rows are first not finite after layer ", stage, " of ", layers, " (on ",
                    builder_.placement().devices[builder_.device_of(stage - 1)].backend->info().id, "), at token ", token);
      }
    };
    run_layers(ids, types, look, cancel);
    if (!where.empty()) return where;
    // Looks for keys and values that become infinite in F16. The run above could not find them, because it used no caches.
    if (decodes_ && builder_.programs().kv_format() == KvFormat::f16) {
      const auto look_at_keys = [&](std::size_t stage, std::span<const float> rows, const Batch& batch, RunSpace& space) {
        if (where.empty()) where = beyond_f16(stage, rows, batch, space, cancel);
      };
      run_layers(ids, types, look_at_keys, cancel);
      if (!where.empty())
        return str("; computed alone, its rows are finite, but ", where,
                   ", and kv_dtype=\"f16\" holds numbers up to 65504: load(kv_dtype=\"f32\") holds it");
    }
    return str("; computed alone, the rows of its ", cut ? "first " : "", ids.size(), " tokens are finite after each of ", layers,
               " layers");
  } catch (...) {  // the caller reports the NaN without naming a layer
    return {};
  }
}

}  // namespace pumice::engine
