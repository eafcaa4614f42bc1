#include "engine/model.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <system_error>
#include <utility>

#include "core/finite.h"
#include "core/version.h"
#include "engine/attention_weights.h"
#include "engine/devices.h"
#include "engine/fingerprint.h"
#include "files/text.h"
#include "model/assistant.h"
#include "os/threads.h"

namespace pumice::engine {
namespace {

using model::ModelProgram;
using model::ModelPrograms;
using model::Output;
using model::Role;

// Returns the pooling to use if neither options nor file name one. In a decoder, only the last row has seen the whole text.
PoolKind usual_pooling(const model::Description& d) { return d.config.causal() ? PoolKind::last : PoolKind::mean; }

model::Description describe(const std::shared_ptr<const files::ModelFile>& file, const LoadOptions& options) {
  model::Description d = model::describe(file, {.quantize = options.quantize,
                                                .compute = options.compute,
                                                .mlm_head = options.mlm_head,
                                                .draft = options.mtp,
                                                .task = options.task,
                                                .lora = options.lora,
                                                .allow_unread = options.allow_unread});
  std::vector<PoolKind> pooling = options.pooling;
  if (pooling.empty()) pooling = {d.config.pooling.value_or(usual_pooling(d))};
  model::add_modules(d, pooling, options.modules.empty() ? model::modules_in(file, d.config) : options.modules);
  if (!options.score_ids.empty()) model::add_score(d, options.score_ids);
  if (options.assistant)
    model::add_assistant(d, options.assistant,
                         {.quantize = options.quantize, .compute = options.compute, .allow_unread = options.allow_unread});
  return d;
}

LoadOptions with_sums(LoadOptions options) {
  for (model::LoraSpec& adapter : options.lora) adapter.file = adapter.file->summed();
  if (options.assistant) options.assistant = options.assistant->summed();
  return options;
}

// Returns which output of the body load() prepares: selected rows for the head of a decoder, pooled rows for an encoder.
Output main_output(const model::Description& d) { return d.config.has_head ? Output::selected : Output::pooled; }

// Returns the programs of the draft head or the assistant, in the order of Pipeline::Draft.
std::array<const ModelProgram*, 3> draft_programs(const ModelPrograms& programs, const StagePlan& last) {
  return {&programs.draft(last.first, true), &programs.draft(last.first, false), &programs.draft_logits()};
}

// Returns the programs that each device runs: its stages of the body and, on the last device, the programs that follow the layers.
std::vector<std::vector<const Program*>> programs_by_device(const ModelPrograms& programs, const Placement& placement,
                                                            const StageParts& parts) {
  const model::Description& d = programs.description();
  std::vector<std::vector<const Program*>> all(placement.devices.size());
  const auto add = [&](const StagePlan& stage, Output output) {
    for (const StageParts::Part& part : parts.of(programs.body(stage.first, stage.last, output), stage.device))
      all[part.device].push_back(&part.program.program);
  };
  for (const StagePlan& stage : placement.stages) add(stage, main_output(d));
  const StagePlan& last = placement.stages.back();
  if (d.config.has_head) all[last.device].push_back(&programs.head().program);
  if (placement.ranks > 0) all[last.device].push_back(&programs.top().program);
  if (placement.drafts)
    for (const ModelProgram* p : draft_programs(programs, last)) all[last.device].push_back(&p->program);
  if (d.config.has_head && !d.modules.empty()) add(last, Output::pooled);
  if (d.labels > 0) add(last, Output::classes);
  if (d.gives_sparse()) add(last, Output::sparse);
  return all;
}

// Returns the program of the draft head's layer for the store of `shares`, the last part of the body. That part's last cache is the
// layer's, and it has fewer caches than the body if the body is cut into parts.
ModelProgram with_last_cache(ModelProgram draft, const Program& shares) {
  draft.program.caches = shares.caches;
  const auto last = static_cast<CacheId>(shares.caches.size() - 1);
  for (Op& op : draft.program.ops) {
    if (auto* store = std::get_if<Store>(&op)) store->cache = last;
    if (auto* attend = std::get_if<Attend>(&op)) attend->cache = last;
  }
  return draft;
}

// Calls Backend::foresee() on a thread of its own, so that a GPU compiles its pipelines while weights are packed and uploaded.
class Foresight {
 public:
  Foresight(const ModelPrograms& all, const Placement& placement, const StageParts& parts, Compute compute) {
    if (std::all_of(placement.devices.begin(), placement.devices.end(),
                    [](const PlacedDevice& p) { return p.backend->info().type == DeviceType::cpu; }))
      return;
    // Collects the programs before the thread starts. If the thread took the lock of ModelPrograms instead, a fork at that moment would
    // leave the lock taken in the child for ever.
    std::vector<std::pair<Backend*, const Program*>> programs;
    const auto add = [&](std::size_t device, const ModelProgram& p) {
      programs.emplace_back(placement.devices[device].backend.get(), &p.program);
    };
    const model::Description& d = all.description();
    for (const StagePlan& stage : placement.stages) {
      for (const StageParts::Part& part : parts.of(all.body(stage.first, stage.last, main_output(d)), stage.device))
        add(part.device, part.program);
    }
    const std::size_t last = placement.stages.back().device;
    if (d.config.has_head) add(last, all.head());
    if (placement.drafts)
      for (const ModelProgram* p : draft_programs(all, placement.stages.back())) add(last, *p);
    if (placement.ranks > 0) add(last, all.top());
    try {
      thread_ = os::Thread([this, programs = std::move(programs), &weights = d.weights, compute] {
        try {
          for (const auto& [backend, program] : programs) backend->foresee(*program, weights, compute, done_);
        } catch (...) {  // ignored, because prepare() raises the error again
        }
      });
    } catch (const std::system_error&) {  // no thread can be started, so prepare() does all of the work
    }
  }
  ~Foresight() {
    done_.request();
    if (process_ != ::getpid() && thread_.joinable())
      thread_.detach();  // the process forked inside a progress function; the child does not have the thread and must not wait for it
  }

 private:
  const pid_t process_ = ::getpid();
  Cancel done_;
  os::Thread thread_;  // declared last, so that it is joined before done_ is destroyed
};

}  // namespace

std::shared_ptr<Model> Model::load(std::shared_ptr<const files::ModelFile> file, const LoadOptions& options, const Progress& progress,
                                   const Cancel& cancel) {
  return load_on(open_devices(options), std::move(file), options, progress, cancel);
}

std::shared_ptr<Model> Model::load_on(const Devices& devices, std::shared_ptr<const files::ModelFile> file, const LoadOptions& options,
                                      const Progress& progress, const Cancel& cancel) {
  const LoadOptions summed = with_sums(options);
  std::shared_ptr<Model> m(new Model(file->summed(), summed));
  m->load(place(m->programs_, devices, summed), summed, progress, cancel);
  return m;
}

std::shared_ptr<Model> Model::load_on(const std::vector<std::shared_ptr<Backend>>& backends, std::shared_ptr<const files::ModelFile> file,
                                      const LoadOptions& options, const Progress& progress, const Cancel& cancel) {
  const LoadOptions summed = with_sums(options);
  std::shared_ptr<Model> m(new Model(file->summed(), summed));
  m->load(place_evenly(m->programs_, backends, summed), summed, progress, cancel);
  return m;
}

Model::Model(std::shared_ptr<const files::ModelFile> file, const LoadOptions& options)
    : file_(std::move(file)), description_(describe(file_, options)), programs_(description_, options.kv_format) {}

void Model::load(Placement placement, const LoadOptions& options, const Progress& progress, const Cancel& cancel) {
  if (placement.problem) throw *placement.problem;
  placement_ = std::move(placement);

  description_.weights.require_unchanged = [files = description_.files] {
    for (const auto& file : files) file->require_unchanged();
  };
  parts_ = std::make_unique<const StageParts>(programs_, placement_);
  for (const Matrix& matrix : description_.weights.matrices)
    if (matrix.prepare) matrix.prepare(cancel);
  const auto programs = programs_by_device(programs_, placement_, *parts_);
  const Foresight foresight(programs_, placement_, *parts_, options.compute);
  compute_ = options.compute;
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < programs.size(); ++i) {
    const Progress here = progress ? Progress([&](std::uint64_t bytes) { progress(done + bytes); }) : Progress();
    try {
      weights_.push_back(
          placement_.devices[i].backend->pack(description_.weights, programs[i], here, cancel, placement_.devices[i].expert_bytes));
    } catch (const Error& error) {  // a backend knows the tensor, but not the file
      if (error.kind() != ErrorKind::numeric || !error.file().empty()) throw;
      files::fail_at(error.kind(), file_->path(), "", std::nullopt, error.what());
    }
    done += weights_.back()->bytes();
  }
  for (const auto& file : description_.files) file->require_unchanged();
  fingerprint_ = engine::fingerprint(*file_);
  made_by_ = what_made_it(options);
  for (const auto& file : description_.files) file->finish_sums();

  const model::Description& d = description_;
  if (d.config.has_head) {
    std::vector<std::unique_ptr<CacheStore>> stores;
    for (const StagePlan& stage : placement_.stages) {
      for (const StageParts::Part& part : parts_->of(programs_.body(stage.first, stage.last, Output::selected), stage.device))
        stores.push_back(placement_.devices[part.device].backend->make_caches(part.program.program, options.kv_format));
    }
    pages_ = std::make_unique<PagePool>(CacheSet(std::move(stores)), placement_.kv_budget);
    decoder_ = make_runner(build_pipeline(Output::selected, cancel), pages_.get());
    if (!placement_.drafts)
      decoder_->runtime.why_no_draft = str(file_->path(), ": ", d.drafts() ? placement_.why_no_draft : d.config.why_no_draft);
    scheduler_ = std::make_unique<Scheduler>(decoder_->runtime);
  } else {
    pooled_ = make_runner(build_pipeline(Output::pooled, cancel), nullptr);
    pooled_->runtime.text_end = d.config.text_end;
  }
  for (const PlacedDevice& device : placement_.devices) {  // adds the notes that devices made while they prepared the programs
    const std::vector<std::string> notes = device.backend->info().notes;
    placement_.notes.insert(placement_.notes.end(), notes.begin(), notes.end());
  }
}

std::unique_ptr<Model::Runner> Model::make_runner(Pipeline pipeline, PagePool* pages) const {
  const model::Description& d = description_;
  const auto types = d.global(Role::type_embedding);
  const std::int32_t type_count = types.present() ? static_cast<std::int32_t>(d.matrix(types.matrix).rows) : 1;
  auto runner = std::make_unique<Runner>(std::move(pipeline), pages, static_cast<std::int32_t>(placement_.n_ctx), d.vocab_size, type_count,
                                         d.config.ropes);
  runner->runtime.encode_counts = encode_counts_;
  runner->runtime.where_not_finite = [this](std::span<const std::int32_t> ids, std::span<const std::int32_t> types, const Cancel& cancel) {
    return where_not_finite(ids, types, cancel);
  };
  for (const model::Layer& layer : d.config.layers) {
    if (const model::Mixture* mixture = layer.if_mixture())
      runner->runtime.pace.at_least(rows_of_mixture(mixture->router.experts, mixture->router.chosen));
  }
  return runner;
}

Runtime& Model::prepared(std::unique_ptr<Runner>& runner, const std::function<Pipeline()>& build) const {
  const std::lock_guard<ProcessLock> lock(preparing_);
  if (!runner) runner = make_runner(build(), nullptr);
  return runner->runtime;
}

Pipeline::Stage Model::build_stage(std::size_t device, const ModelProgram& program, const Cancel& cancel) const {
  Backend& backend = *placement_.devices[device].backend;
  return {.backend = &backend,
          .backend_index = device,
          .executable = backend.prepare(program.program, weights_[device], compute_, cancel),
          .input_width = program.input_width,
          .output_width = program.output_width};
}

void Model::build_stages(std::vector<Pipeline::Stage>& to, std::size_t device, const ModelProgram& program, const Cancel& cancel) const {
  const std::vector<StageParts::Part>& parts = parts_->of(program, device);
  for (const StageParts::Part& part : parts) {
    to.push_back(build_stage(part.device, part.program, cancel));
    to.back().unfinished = &part != &parts.back();
  }
}

Pipeline Model::build_pipeline(Output output, const Cancel& cancel) const {
  std::vector<Pipeline::Stage> body;
  for (const StagePlan& plan : placement_.stages) {
    build_stages(body, plan.device, programs_.body(plan.first, plan.last, output), cancel);
  }
  Pipeline::Stage head{}, log_probs{}, top{};
  Pipeline::Draft draft{};
  if (output == Output::selected) {
    const std::size_t last = placement_.stages.back().device;
    head = build_stage(last, programs_.head(), cancel);
    log_probs = build_stage(last, programs_.log_probs(), cancel);
    if (placement_.ranks > 0) {
      top = build_stage(last, programs_.top(), cancel);
      top.ranks = placement_.ranks;
    }
    if (placement_.drafts) {
      const StagePlan& plan = placement_.stages.back();
      const auto [first, next, logits] = draft_programs(programs_, plan);
      const Program& shares = parts_->of(programs_.body(plan.first, plan.last, output), plan.device).back().program.program;
      const auto stage = [&](const ModelProgram& program) {
        return build_stage(last, description_.assistant ? program : with_last_cache(program, shares), cancel);
      };
      draft = {.first = stage(*first),
               .next = stage(*next),
               .logits = build_stage(last, *logits, cancel),
               .fixed = description_.assistant != nullptr};
    }
  }
  return Pipeline(backends(), std::move(body), std::move(head), std::move(log_probs), std::move(top), std::move(draft));
}

Pipeline Model::build_layers(const Cancel& cancel) const {
  std::vector<Pipeline::Stage> body;
  body.push_back(build_stage(placement_.stages.front().device, programs_.body(0, 0, Output::hidden), cancel));
  for (const StagePlan& plan : placement_.stages) {
    for (std::size_t layer = plan.first; layer < plan.last; ++layer) build_stages(body, plan.device, programs_.layer(layer), cancel);
  }
  return Pipeline(backends(), std::move(body), {}, {}, {});
}

std::size_t Model::device_of(std::size_t layer) const {
  const auto& stages = placement_.stages;
  return std::find_if(stages.begin(), stages.end(), [&](const StagePlan& stage) { return layer < stage.last; })->device;
}

Runtime& Model::layer_by_layer(const Cancel& cancel) const {
  return prepared(layers_, [&] { return build_layers(cancel); });
}

// Uses the stages of layer_by_layer() for the embedding and for the layers before `layer`.
const Model::Queries& Model::queries(std::size_t layer, const Cancel& cancel) const {
  const std::vector<Pipeline::Stage>& layers = layer_by_layer(cancel).pipeline.stages();
  const std::lock_guard<ProcessLock> lock(preparing_);
  if (const auto known = queries_.find(layer); known != queries_.end()) return known->second;
  auto end = layers.begin();
  for (std::size_t before = 0; before <= layer; ++end) before += end->unfinished ? 0 : 1;
  std::vector<Pipeline::Stage> body(layers.begin(), end);
  // The programs are read with the lock held, because it is the lock that tells the child of a fork if another thread was writing them.
  const model::ModelProgram& program = programs_.queries(layer);
  body.push_back(build_stage(device_of(layer), program, cancel));
  return queries_.emplace(layer, Queries{Pipeline(backends(), std::move(body), {}, {}, {}), program.attend}).first->second;
}

void Model::attentions(std::span<const std::int32_t> ids, std::size_t layer, std::span<float> out, const Cancel& cancel) const {
  const auto n = static_cast<std::int64_t>(ids.size());
  require(layer < description_.config.layers.size(), "layer ", layer, " is not 0 to ", description_.config.layers.size() - 1);
  require(n > 0, "attentions: there are no ids");
  if (n > placement_.n_ctx) fail(ErrorKind::context_length, "attentions: ", n, " tokens; this model takes ", placement_.n_ctx);
  Runtime& runtime = layer_by_layer(cancel);
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
  attention_weights(attend, description_.weights, rows, pipeline.hidden_size(), pipeline.widest(), out, cancel);
  const auto bad = std::ranges::find_if(out, [](float x) { return !std::isfinite(x); });
  if (bad == out.end()) return;
  fail(ErrorKind::numeric, "an attention weight of layer ", layer + 1, " is ", name_not_finite(*bad), kWhyNotFinite,
       where_not_finite(ids, {}, cancel));
}

std::vector<std::shared_ptr<Backend>> Model::backends() const {
  std::vector<std::shared_ptr<Backend>> all;
  for (const PlacedDevice& device : placement_.devices) all.push_back(device.backend);
  return all;
}

void Model::hidden_states(std::span<const std::int32_t> ids, std::span<const std::int32_t> layers, std::span<float> out,
                          const Cancel& cancel) const {
  Runtime& runtime = layer_by_layer(cancel);
  const auto last = static_cast<std::int32_t>(description_.config.layers.size());
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

void Model::run_layers(std::span<const std::int32_t> ids, std::span<const std::int32_t> types, const LookAtLayer& look,
                       const Cancel& cancel) const {
  Runtime& runtime = layer_by_layer(cancel);
  const auto count = static_cast<std::int32_t>(ids.size());
  const Segment segment{.first = 0, .rows = count, .length = count};
  const Batch batch{.rows = segment.rows, .ids = ids, .types = types, .segments = {&segment, 1}};
  std::vector<float> end(ids.size() * static_cast<std::size_t>(runtime.pipeline.hidden_size()));
  const auto lease = runtime.spaces.take(Crew::team, cancel);
  const auto look_at = [&](std::size_t stage, std::span<const float> rows) { look(stage, rows, batch, lease[0]); };
  runtime.pipeline.body(lease[0], nullptr, batch, end, cancel, look_at);
}

std::string Model::beyond_f16(std::size_t layer, std::span<const float> rows, const Batch& batch, RunSpace& space,
                              const Cancel& cancel) const {
  constexpr float kRoundsToInfinity = 65520;  // F16 has numbers up to 65504
  if (layer >= description_.config.layers.size() || description_.config.layers[layer].attention_heads() == 0) return {};
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
      return str("a ", what, " of layer ", layer + 1, " of ", description_.config.layers.size(), " (on ",
                 placement_.devices[device_of(layer)].backend->info().id, ") is ", *beyond, " at token ", row);
    }
  }
  return {};
}

// The engine's thread calls this too, and computes no other step meanwhile. So a decoder's text is cut to the rows of one step.
std::string Model::where_not_finite(std::span<const std::int32_t> ids, std::span<const std::int32_t> types,
                                    const Cancel& cancel) const noexcept {
  try {
    const bool cut = decoder_ && ids.size() > kPlannedRows;
    if (cut) ids = ids.first(kPlannedRows);
    const std::size_t layers = description_.config.layers.size();
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
                    placement_.devices[device_of(stage - 1)].backend->info().id, "), at token ", token);
      }
    };
    run_layers(ids, types, look, cancel);
    if (!where.empty()) return where;
    if (decoder_ && programs_.kv_format() == KvFormat::f16) {  // without caches no number was rounded to F16
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
  } catch (...) {  // the caller reports the NaN without its place
    return {};
  }
}

std::string Model::what_made_it(const LoadOptions& options) const {
  std::string text = str("pumice ", version(), ", kv_dtype ", kKvFormats[static_cast<std::size_t>(options.kv_format)], ", compute ",
                         options.compute == Compute::float32 ? "float32" : "auto");
  if (options.quantize) text += str(", quantize ", name(*options.quantize));
  if (!options.task.empty()) text += str(", task ", options.task);
  if (!options.lora.empty()) text += str(", adapters ", in_base(engine::fingerprint(options.lora), 16));
  if (description_.config.draft) text += ", mtp";  // pages have its keys and values, too
  // Pages have copies of the keys and values that an assistant reads, if they are not those of a layer of the last stage.
  const std::size_t first = placement_.stages.back().first, layers = description_.config.layers.size();
  for (const std::size_t source : description_.config.read_by_assistant) {
    bool there = false;
    for (std::size_t l = first; l < layers; ++l) there = there || description_.config.cache_of(l) == source;
    if (!there) text += str(", layer ", source, " for an assistant");
  }
  for (const StagePlan& stage : placement_.stages) {
    const DeviceInfo info = placement_.devices[stage.device].backend->info();
    text += str(", layers ", stage.first, " to ", stage.last - 1, " on ", info.type == DeviceType::cpu ? "cpu" : info.name, " (",
                info.driver, ")");
    if (stage.away > 0) text += str(", experts of ", stage.away, " of them on cpu");
  }
  return text.substr(0, 4000);
}

std::shared_ptr<Drafter> Model::drafter(const std::shared_ptr<Model>& smaller) const {
  require(smaller && smaller.get() != this, "draft= is the model itself: it must be a smaller one");
  Runtime& runtime = smaller->decoder();
  if (runtime.pages->has_states())
    fail(ErrorKind::unsupported_model, "draft=: ", smaller->file().path(), " has recurrent layers, which cannot take back a wrong guess; ",
         "give a model with attention alone, or speculate= without draft=");
  const std::lock_guard<ProcessLock> lock(drafting_);
  auto known = drafter_.lock();
  if (known && &known->runtime() == &runtime) return known;
  known = std::make_shared<Drafter>(smaller, runtime, [&scheduler = smaller->scheduler()] { scheduler.pages_came(); });
  drafter_ = known;
  return known;
}

Model::ExpertCounts Model::expert_counts() const {
  ExpertCounts counts;
  for (const auto& weights : weights_) {
    counts.hits += weights->expert_hits();
    counts.reads += weights->expert_reads();
  }
  return counts;
}

void Model::wrong_task(const char* call, const char* needs, const char* instead) const {
  fail(ErrorKind::unsupported_task, call, " needs ", needs, "; ", file_->path(), " is \"", description_.config.family->name, "\". Use ",
       instead);
}

const char* Model::main_call() const {
  if (description_.labels > 0) return description_.labels_tokens() ? "label_tokens()" : "predict()";
  return generates() ? "generate()" : "encode()";
}

Runtime& Model::decoder() const {
  if (!decoder_) wrong_task("generate()", "a decoder with an output head", "encode()");
  return decoder_->runtime;
}
Scheduler& Model::scheduler() const {
  decoder();
  return *scheduler_;
}
Runtime& Model::pooled() const {
  return prepared(pooled_, [&] { return build_pipeline(Output::pooled, {}); });
}
Runtime& Model::tokens() const {
  return prepared(tokens_, [&] { return build_pipeline(Output::tokens, {}); });
}
Runtime& Model::classes() const {
  if (description_.labels == 0 || description_.labels_tokens())
    wrong_task("predict()", "a sequence classifier or cross-encoder", main_call());
  return prepared(classes_, [&] { return build_pipeline(Output::classes, {}); });
}
Runtime& Model::sparse() const {
  if (!description_.gives_sparse())
    wrong_task("encode(output=\"sparse\")", "an encoder with a head that predicts masked tokens (a folder of a class ...ForMaskedLM)",
               main_call());
  return prepared(sparse_, [&] { return build_pipeline(Output::sparse, {}); });
}
Runtime& Model::token_classes() const {
  if (!description_.labels_tokens()) wrong_task("label_tokens()", "a classifier of tokens", main_call());
  return prepared(classes_, [&] { return build_pipeline(Output::classes, {}); });
}
EncodeQueue& Model::pooled_queue() const {
  pooled();
  return pooled_->queue;
}
EncodeQueue& Model::classes_queue() const {
  classes();
  return classes_->queue;
}

Placement plan(std::shared_ptr<const files::ModelFile> file, const LoadOptions& options) {
  const model::Description description = describe(file, options);
  return place(ModelPrograms(description, options.kv_format), open_devices(options), options);
}

}  // namespace pumice::engine
