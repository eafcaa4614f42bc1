#include "engine/model.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <system_error>
#include <thread>

#include "engine/devices.h"
#include "engine/fingerprint.h"
#include "model/programs.h"

namespace pumice::engine {
namespace {

using model::Output;
using model::Role;

std::vector<bool> merge(std::vector<bool> a, const std::vector<bool>& b) {
  for (std::size_t i = 0; i < b.size(); ++i) a[i] = a[i] || b[i];
  return a;
}

// Where nothing is said: a decoder's last row has seen the whole text, and no other has.
PoolKind usual_pooling(const model::Description& d) { return d.config.layers.front().attention.causal ? PoolKind::last : PoolKind::mean; }

model::Description describe(const std::shared_ptr<const files::ModelFile>& file, const LoadOptions& options) {
  model::Description d =
      model::describe(file, {.quantize = options.quantize, .compute = options.compute, .task = options.task, .lora = options.lora});
  std::vector<PoolKind> pooling = options.pooling;
  if (pooling.empty()) pooling = {d.config.pooling.value_or(usual_pooling(d))};
  model::add_modules(d, pooling, options.modules.empty() ? model::modules_in(file, d.config) : options.modules);
  if (!options.score_ids.empty()) model::add_score(d, options.score_ids);
  return d;
}

LoadOptions with_sums(LoadOptions options) {
  for (model::LoraSpec& adapter : options.lora) adapter.file = adapter.file->summed();
  return options;
}

// What each device must hold: its layers, the embedding on the first; the head, the projection, modules and the classifier on the last.
std::vector<std::vector<bool>> matrices_by_device(const model::Description& d, const Placement& placement) {
  const std::size_t count = d.weights.matrices.size();
  std::vector<std::vector<bool>> used(placement.devices.size(), std::vector<bool>(count, false));
  for (const StagePlan& stage : placement.stages) {
    std::vector<bool>& mine = used[stage.device];
    mine = merge(mine, model::used_matrices(model::body_program(d, stage.first, stage.last, Output::hidden), d.weights));
  }
  std::vector<bool>& last = used[placement.stages.back().device];
  if (d.config.has_head) last = merge(last, model::used_matrices(model::head_program(d), d.weights));
  const auto also = [&](Output output) {
    const Program program = model::body_program(d, placement.stages.back().first, d.config.layers.size(), output);
    last = merge(last, model::used_matrices(program, d.weights));
  };
  if (!d.config.has_head || !d.modules.empty()) also(Output::pooled);
  if (d.labels > 0) also(Output::classes);
  return used;
}

// While weights are packed and uploaded, a thread tells devices which programs will follow: a GPU compiles its pipelines meanwhile.
class Foresight {
 public:
  Foresight(const model::Description& d, const Placement& placement, Compute compute) {
    if (std::all_of(placement.devices.begin(), placement.devices.end(),
                    [](const PlacedDevice& p) { return p.backend->info().type == "cpu"; }))
      return;
    try {
      thread_ = std::jthread([this, &d, &placement, compute] {
        try {
          const Output output = d.config.has_head ? Output::selected : Output::pooled;
          for (const StagePlan& stage : placement.stages) {
            tell(*placement.devices[stage.device].backend, model::body_program(d, stage.first, stage.last, output), d, compute);
          }
          if (output == Output::pooled) return;
          Backend& last = *placement.devices[placement.stages.back().device].backend;
          tell(last, model::head_program(d), d, compute);
          if (last.reads_back_slowly()) tell(last, model::top_program(d), d, compute);
        } catch (...) {  // prepare() meets it again
        }
      });
    } catch (const std::system_error&) {  // no thread to be had: prepare() does it all
    }
  }
  ~Foresight() {
    done_.request();
    if (process_ != ::getpid() && thread_.joinable())
      thread_.detach();  // forked inside of a progress function: the thread is the parent's, it never ends here
  }

 private:
  void tell(Backend& backend, const Program& program, const model::Description& d, Compute compute) const {
    backend.foresee(program, d.weights, compute, done_);
  }
  const pid_t process_ = ::getpid();
  Cancel done_;
  std::jthread thread_;  // ends before done_ does
};

// The softmax of each query's scores, as Attend says (core/ops.h): rows of `rows` hold its views q and k.
void attention_weights(const Attend& a, const Weights& weights, std::span<const float> rows, std::int64_t width, std::int64_t n,
                       std::span<float> out, const Cancel& cancel) {
  const std::int64_t heads = a.q.width / a.head_dim, group = heads / a.kv_heads;
  const auto values = [&](VectorId id) -> const float* {
    return id == VectorId::none ? nullptr : weights.vectors[static_cast<std::size_t>(id)].values.data();
  };
  const float *bias = values(a.bias), *slopes = values(a.slopes), *places = values(a.places);
  std::vector<double> scores(static_cast<std::size_t>(n));
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t i = 0; i < n; ++i) {
      if (i % 64 == 0) cancel.check();
      const std::int64_t first = a.window > 0 ? std::max<std::int64_t>(0, i - a.window + (a.causal ? 1 : 0)) : 0;
      const std::int64_t last = a.causal ? i : a.window > 0 ? std::min(n - 1, i + a.window) : n - 1;
      const float* q = rows.data() + i * width + a.q.col + head * a.head_dim;
      double largest = -std::numeric_limits<double>::infinity(), sum = 0;
      for (std::int64_t j = first; j <= last; ++j) {
        const float* k = rows.data() + j * width + a.k.col + head / group * a.head_dim;
        double score = 0;
        for (std::int32_t c = 0; c < a.head_dim; ++c) score += static_cast<double>(q[c]) * k[c];
        const std::int64_t bucket = std::clamp<std::int64_t>(j - i, -a.reach, a.reach) + a.reach;
        if (places) {
          const auto place = static_cast<std::int64_t>(places[bucket]);
          const auto of = [&](const View& view, std::int64_t row) {
            return view ? static_cast<double>(rows.data()[row * width + view.col + head * (view.width / heads) + place]) : 0.0;
          };
          score += of(a.by_query, i) + of(a.by_key, j);
        }
        score *= a.scale;
        if (a.softcap > 0) score = a.softcap * std::tanh(score / a.softcap);
        if (bias) score += bias[head * (2 * a.reach + 1) + bucket];
        if (slopes) score -= static_cast<double>(slopes[head]) * static_cast<double>(std::abs(i - j));
        scores[static_cast<std::size_t>(j)] = score;
        largest = std::max(largest, score);
      }
      for (std::int64_t j = first; j <= last; ++j)
        sum += scores[static_cast<std::size_t>(j)] = std::exp(scores[static_cast<std::size_t>(j)] - largest);
      float* to = out.data() + (head * n + i) * n;
      std::fill_n(to, n, 0.0f);
      for (std::int64_t j = first; j <= last; ++j) to[j] = static_cast<float>(scores[static_cast<std::size_t>(j)] / sum);
    }
  }
}

}  // namespace

std::shared_ptr<Model> Model::load(std::shared_ptr<const files::ModelFile> file, const LoadOptions& options, const Progress& progress,
                                   const Cancel& cancel) {
  return load_on(open_devices(options), std::move(file), options, progress, cancel);
}

std::shared_ptr<Model> Model::load_on(const Devices& devices, std::shared_ptr<const files::ModelFile> file, const LoadOptions& options,
                                      const Progress& progress, const Cancel& cancel) {
  const LoadOptions summed = with_sums(options);
  std::shared_ptr<Model> m(new Model(file->summed(), summed));
  m->load(place(m->description_, devices, summed), summed, progress, cancel);
  return m;
}

std::shared_ptr<Model> Model::load_on(const std::vector<std::shared_ptr<Backend>>& backends, std::shared_ptr<const files::ModelFile> file,
                                      const LoadOptions& options, const Progress& progress, const Cancel& cancel) {
  const LoadOptions summed = with_sums(options);
  std::shared_ptr<Model> m(new Model(file->summed(), summed));
  m->load(place_evenly(m->description_, backends, summed), summed, progress, cancel);
  return m;
}

Model::Model(std::shared_ptr<const files::ModelFile> file, const LoadOptions& options)
    : file_(std::move(file)), description_(describe(file_, options)) {}

void Model::load(Placement placement, const LoadOptions& options, const Progress& progress, const Cancel& cancel) {
  if (placement.problem) throw *placement.problem;
  placement_ = std::move(placement);

  const auto used = matrices_by_device(description_, placement_);
  const Foresight foresight(description_, placement_, options.compute);
  compute_ = options.compute;
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < used.size(); ++i) {
    const Progress here = progress ? Progress([&](std::uint64_t bytes) { progress(done + bytes); }) : Progress();
    weights_.push_back(placement_.devices[i].backend->pack(description_.weights, used[i], here, cancel));
    done += weights_.back()->bytes();
  }
  for (const auto& file : description_.files) file->require_unchanged();
  fingerprint_ = engine::fingerprint(*file_);
  made_by_ = what_made_it(options);

  const model::Description& d = description_;
  if (d.config.has_head) {
    std::vector<std::unique_ptr<CacheStore>> stores;
    for (const StagePlan& stage : placement_.stages) {
      const Program body = model::body_program(d, stage.first, stage.last, Output::selected);
      stores.push_back(placement_.devices[stage.device].backend->make_caches(body.caches, options.kv_format));
    }
    pages_ = std::make_unique<PagePool>(CacheSet(std::move(stores)), placement_.kv_budget);
    decoder_ = make_runner(build_pipeline(Output::selected, cancel), pages_.get());
    scheduler_ = std::make_unique<Scheduler>(decoder_->runtime);
  } else {
    pooled_ = make_runner(build_pipeline(Output::pooled, cancel), nullptr);
    pooled_->runtime.text_end = d.config.text_end;
  }
  for (const PlacedDevice& device : placement_.devices) {  // what showed when its programs were prepared
    const std::vector<std::string> notes = device.backend->info().notes;
    placement_.notes.insert(placement_.notes.end(), notes.begin(), notes.end());
  }
}

std::unique_ptr<Model::Runner> Model::make_runner(Pipeline pipeline, PagePool* pages) const {
  const model::Description& d = description_;
  const auto types = d.global(Role::type_embedding);
  const std::int32_t type_count = types.present() ? static_cast<std::int32_t>(d.matrix(types.matrix).rows) : 1;
  return std::make_unique<Runner>(std::move(pipeline), pages, static_cast<std::int32_t>(placement_.n_ctx), d.vocab_size, type_count,
                                  d.config.ropes);
}

Runtime& Model::prepared(std::unique_ptr<Runner>& runner, const std::function<Pipeline()>& build) const {
  const std::lock_guard lock(preparing_);
  if (!runner) runner = make_runner(build(), nullptr);
  return runner->runtime;
}

Pipeline::Stage Model::build_stage(std::size_t device, Program program, const Cancel& cancel) const {
  Backend& backend = *placement_.devices[device].backend;
  Pipeline::Stage stage{.backend = &backend, .backend_index = device};
  if (program.input >= 0) stage.input_width = program.slots[static_cast<std::size_t>(program.input)].width;
  stage.output_width = program.slots[static_cast<std::size_t>(program.output)].width;
  stage.executable = backend.prepare(std::move(program), weights_[device], compute_, cancel);
  return stage;
}

Pipeline Model::build_pipeline(Output output, const Cancel& cancel) const {
  std::vector<Pipeline::Stage> body;
  for (const StagePlan& plan : placement_.stages) {
    body.push_back(build_stage(plan.device, model::body_program(description_, plan.first, plan.last, output), cancel));
  }
  Pipeline::Stage head{}, log_probs{}, top{};
  if (output == Output::selected) {
    const std::size_t last = placement_.stages.back().device;
    head = build_stage(last, model::head_program(description_), cancel);
    log_probs = build_stage(last, model::log_prob_program(description_), cancel);
    if (placement_.devices[last].backend->reads_back_slowly()) top = build_stage(last, model::top_program(description_), cancel);
  }
  return Pipeline(backends(), std::move(body), std::move(head), std::move(log_probs), std::move(top));
}

Pipeline Model::build_layers(const Cancel& cancel) const {
  std::vector<Pipeline::Stage> body;
  body.push_back(build_stage(placement_.stages.front().device, model::body_program(description_, 0, 0, Output::tokens), cancel));
  for (const StagePlan& plan : placement_.stages) {
    for (std::size_t layer = plan.first; layer < plan.last; ++layer)
      body.push_back(build_stage(plan.device, model::layer_program(description_, layer), cancel));
  }
  return Pipeline(backends(), std::move(body), {}, {}, {});
}

Pipeline Model::build_queries(std::size_t layer, Attend& attend, const Cancel& cancel) const {
  std::vector<Pipeline::Stage> body;
  body.push_back(build_stage(placement_.stages.front().device, model::body_program(description_, 0, 0, Output::hidden), cancel));
  for (const StagePlan& plan : placement_.stages) {
    for (std::size_t i = plan.first; i < std::min(plan.last, layer); ++i)
      body.push_back(build_stage(plan.device, model::layer_program(description_, i), cancel));
    if (plan.first <= layer && layer < plan.last)
      body.push_back(build_stage(plan.device, model::query_program(description_, layer, attend), cancel));
  }
  return Pipeline(backends(), std::move(body), {}, {}, {});
}

void Model::attentions(std::span<const std::int32_t> ids, std::size_t layer, std::span<float> out, const Cancel& cancel) const {
  const auto n = static_cast<std::int64_t>(ids.size());
  require(layer < description_.config.layers.size(), "layer ", layer, " is not 0 to ", description_.config.layers.size() - 1);
  require(n > 0, "attentions: there are no ids");
  if (n > placement_.n_ctx) fail(ErrorKind::context_length, "attentions: ", n, " tokens; this model takes ", placement_.n_ctx);
  Attend attend;
  const Pipeline pipeline = build_queries(layer, attend, cancel);
  const std::int64_t heads = attend.q.width / attend.head_dim;
  require(static_cast<std::int64_t>(out.size()) == heads * n * n, "attentions: room for ", out.size(), " values, needed: ", heads * n * n);
  for (const std::int32_t id : ids) require(id >= 0 && id < description_.vocab_size, "id ", id, " is no token of this model");
  const auto count = static_cast<std::int32_t>(n);
  const Segment segment{.first = 0, .rows = count, .length = count};
  std::vector<float> rows(static_cast<std::size_t>(n * pipeline.hidden_size()));
  const auto space = pipeline.make_space(Crew::team);
  pipeline.body(*space, nullptr, {.rows = segment.rows, .ids = ids, .segments = {&segment, 1}}, rows, cancel);
  attention_weights(attend, description_.weights, rows, pipeline.hidden_size(), n, out, cancel);
}

std::vector<std::shared_ptr<Backend>> Model::backends() const {
  std::vector<std::shared_ptr<Backend>> all;
  for (const PlacedDevice& device : placement_.devices) all.push_back(device.backend);
  return all;
}

void Model::hidden_states(std::span<const std::int32_t> ids, std::span<const std::int32_t> layers, std::span<float> out,
                          const Cancel& cancel) const {
  Runtime& runtime = prepared(layers_, [&] { return build_layers(cancel); });
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
  const auto count = static_cast<std::int32_t>(ids.size());
  const Segment segment{.first = 0, .rows = count, .length = count};
  const Batch batch{.rows = segment.rows, .ids = ids, .segments = {&segment, 1}};
  std::vector<float> end(rows);
  const auto lease = runtime.spaces.take(Crew::team, cancel);
  runtime.pipeline.body(lease[0], nullptr, batch, end, cancel, [&](std::size_t stage, std::span<const float> given) {
    const std::size_t stride = given.size() / ids.size();  // rows between layers may have more columns, behind these
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (static_cast<std::size_t>(layers[i]) != stage) continue;
      for (std::size_t r = 0; r < ids.size(); ++r)
        std::ranges::copy(given.subspan(r * stride, width), out.subspan(i * rows + r * width).begin());
    }
  });
}

std::string Model::what_made_it(const LoadOptions& options) const {
  std::string text = str("pumice " PUMICE_VERSION ", kv_dtype ", kKvFormats[static_cast<std::size_t>(options.kv_format)], ", compute ",
                         options.compute == Compute::float32 ? "float32" : "auto");
  if (options.quantize) text += str(", quantize ", name(*options.quantize));
  if (!options.task.empty()) text += str(", task ", options.task);
  if (!options.lora.empty()) text += str(", adapters ", std::hex, engine::fingerprint(options.lora));
  for (const StagePlan& stage : placement_.stages) {
    const DeviceInfo info = placement_.devices[stage.device].backend->info();
    text += str(", layers ", stage.first, " to ", stage.last - 1, " on ", info.type == "cpu" ? "cpu" : info.name, " (", info.driver, ")");
  }
  return text.substr(0, 4000);
}

std::shared_ptr<Drafter> Model::drafter(const std::shared_ptr<Model>& smaller) const {
  require(smaller && smaller.get() != this, "draft= is the model itself: it must be a smaller one");
  Runtime& runtime = smaller->decoder();
  const std::lock_guard lock(drafting_);
  auto known = drafter_.lock();
  if (known && &known->runtime() == &runtime) return known;
  known = std::make_shared<Drafter>(smaller, runtime, [&scheduler = smaller->scheduler()] { scheduler.pages_came(); });
  drafter_ = known;
  return known;
}

void Model::wrong_task(const char* call, const char* needs, const char* instead) const {
  fail(ErrorKind::unsupported_task, call, " needs ", needs, "; ", file_->path(), " is \"", description_.config.family->name, "\". Use ",
       instead);
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
  if (description_.labels == 0) wrong_task("predict()", "a sequence classifier or cross-encoder", generates() ? "generate()" : "encode()");
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
  return place(describe(file, options), open_devices(options), options);
}

}  // namespace pumice::engine
