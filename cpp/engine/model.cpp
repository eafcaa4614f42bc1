#include "engine/model.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <system_error>
#include <utility>

#include "core/version.h"
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

// Returns the pooling to use if neither the options nor the file name a pooling. A decoder uses the last row, because only that row has
// attended to the whole text.
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

// Calls Backend::foresee() on a thread of its own, so that a GPU compiles its pipelines while weights are packed and uploaded.
class Foresight {
 public:
  Foresight(const std::vector<PlacedProgram>& placed, const Placement& placement, const Weights& weights, Compute compute) {
    if (std::all_of(placement.devices.begin(), placement.devices.end(),
                    [](const PlacedDevice& p) { return p.backend->info().type == DeviceType::cpu; }))
      return;
    // Collects the programs before the thread starts. If the thread took the lock of ModelPrograms instead, a fork at that moment would
    // leave the lock taken in the child for ever.
    std::vector<std::pair<Backend*, const Program*>> programs;
    for (const PlacedProgram& each : placed)
      if (each.at_load) programs.emplace_back(placement.devices[each.device].backend.get(), each.program);
    try {
      thread_ = os::Thread([this, programs = std::move(programs), &weights, compute] {
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
  const std::vector<PlacedProgram> placed = placed_programs(programs_, placement_, *parts_);
  std::vector<std::vector<const Program*>> programs(placement_.devices.size());
  for (const PlacedProgram& each : placed) programs[each.device].push_back(each.program);
  const Foresight foresight(placed, placement_, description_.weights, options.compute);
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < programs.size(); ++i) {
    const Progress here = progress ? Progress([&](std::uint64_t bytes) { progress(done + bytes); }) : Progress();
    try {
      weights_.push_back(
          placement_.devices[i].backend->pack(description_.weights, programs[i], here, cancel, placement_.devices[i].expert_bytes));
    } catch (const Error& error) {  // adds the file to the error, because a backend knows only the tensor
      if (error.kind() != ErrorKind::numeric || !error.file().empty()) throw;
      files::fail_at(error.kind(), file_->path(), "", std::nullopt, error.what());
    }
    done += weights_.back()->bytes();
  }
  for (const auto& file : description_.files) file->require_unchanged();
  fingerprint_ = engine::fingerprint(*file_);
  made_by_ = what_made_it(options);
  for (const auto& file : description_.files) file->finish_sums();

  builder_ = std::make_unique<const PipelineBuilder>(programs_, placement_, *parts_, weights_, options.compute);
  inspector_ = std::make_unique<const Inspector>(
      *builder_, [this](const Cancel& cancel) -> Runtime& { return prepared(Output::hidden, [&] { return builder_->layers(cancel); }); },
      preparing_);
  const model::Description& d = description_;
  if (d.config.has_head) {
    std::vector<std::unique_ptr<CacheStore>> stores;
    for (const StagePlan& stage : placement_.stages) {
      for (const StageParts::Part& part : parts_->of(programs_.body(stage.first, stage.last, Output::selected), stage.device))
        stores.push_back(placement_.devices[part.device].backend->make_caches(part.program.program, options.kv_format));
    }
    pages_ = std::make_unique<PagePool>(CacheSet(std::move(stores)), placement_.kv_budget);
    decoder_ = make_runner(builder_->of(Output::selected, cancel), pages_.get());
    if (placement_.sides.empty())
      decoder_->runtime.why_no_draft = str(file_->path(), ": ", d.sides.empty() ? d.config.why_no_draft : placement_.why_no_side);
    scheduler_ = std::make_unique<Scheduler>(decoder_->runtime);
  } else {
    std::unique_ptr<Runner>& pooled = runners_[static_cast<std::size_t>(Output::pooled)];
    pooled = make_runner(builder_->of(Output::pooled, cancel), nullptr);
    pooled->runtime.text_end = d.config.text_end;
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
    return inspector_->where_not_finite(ids, types, cancel);
  };
  for (const model::Layer& layer : d.config.layers) {
    if (const model::Mixture* mixture = layer.if_mixture())
      runner->runtime.pace.at_least(rows_of_mixture(mixture->router.experts, mixture->router.chosen));
  }
  return runner;
}

Runtime& Model::prepared(Output output, const std::function<Pipeline()>& build) const {
  const std::lock_guard<ProcessLock> lock(preparing_);
  std::unique_ptr<Runner>& runner = runners_[static_cast<std::size_t>(output)];
  if (!runner) runner = make_runner(build(), nullptr);
  return runner->runtime;
}

std::string Model::what_made_it(const LoadOptions& options) const {
  std::string text = str("pumice ", version(), ", kv_dtype ", kKvFormats[static_cast<std::size_t>(options.kv_format)], ", compute ",
                         options.compute == Compute::float32 ? "float32" : "auto");
  if (options.quantize) text += str(", quantize ", name(*options.quantize));
  if (!options.task.empty()) text += str(", task ", options.task);
  if (!options.lora.empty()) text += str(", adapters ", in_base(engine::fingerprint(options.lora), 16));
  // Appends which additional keys and values the pages hold for side parts. A draft head has keys and values of its own ("mtp"). An
  // assistant attends to layers of the model. If such a layer is not in the last stage, the pages hold a copy of its keys and values.
  const std::size_t first = placement_.stages.back().first, layers = description_.config.layers.size();
  for (const model::SidePart& side : description_.sides) {
    if (side.reads.empty()) text += ", mtp";
    for (const std::size_t source : side.reads) {
      bool there = false;
      for (std::size_t l = first; l < layers; ++l) there = there || description_.config.cache_of(l) == source;
      if (!there) text += str(", layer ", source, " for ", side.name().one);
    }
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

namespace {

// Describes a task. The index in kTasks is the value of Task.
struct TaskRow {
  Output output;             // what the model's programs compute for the task
  const char *call, *needs;  // the Python call for the task, and the kind of model that has the task, for error messages
  bool (*is_given)(const model::Description& d);
};
constexpr TaskRow kTasks[] = {
    {Output::selected, "generate()", "a decoder with an output head", [](const model::Description& d) { return d.config.has_head; }},
    {Output::pooled, "encode()", "", [](const model::Description&) { return true; }},
    {Output::tokens, "encode(output=\"tokens\")", "", [](const model::Description&) { return true; }},
    {Output::sparse, "encode(output=\"sparse\")", "an encoder with a head that predicts masked tokens (a folder of a class ...ForMaskedLM)",
     [](const model::Description& d) { return d.gives_sparse(); }},
    {Output::classes, "predict()", "a sequence classifier or cross-encoder",
     [](const model::Description& d) { return d.labels > 0 && !d.labels_tokens(); }},
    {Output::classes, "label_tokens()", "a classifier of tokens", [](const model::Description& d) { return d.labels_tokens(); }},
};

// Returns the Python call that fits a model best, for error messages.
const char* main_call(const model::Description& d) {
  const Task task = d.labels > 0 ? (d.labels_tokens() ? Task::token_labels : Task::labels) : d.config.has_head ? Task::text : Task::vectors;
  return kTasks[static_cast<std::size_t>(task)].call;
}

}  // namespace

void Model::require_task(Task task) const {
  const TaskRow& row = kTasks[static_cast<std::size_t>(task)];
  if (row.is_given(description_)) return;
  fail(ErrorKind::unsupported_task, row.call, " needs ", row.needs, "; ", file_->path(), " is \"", description_.config.family->name,
       "\". Use ", main_call(description_));
}

Runtime& Model::decoder() const {
  require_task(Task::text);
  return decoder_->runtime;
}
Scheduler& Model::scheduler() const {
  decoder();
  return *scheduler_;
}
Runtime& Model::runtime(Task task) const {
  if (task == Task::text) return decoder();
  require_task(task);
  const Output output = kTasks[static_cast<std::size_t>(task)].output;
  return prepared(output, [&] { return builder_->of(output, {}); });
}
EncodeQueue& Model::queue(Task task) const {
  runtime(task);
  return runners_[static_cast<std::size_t>(kTasks[static_cast<std::size_t>(task)].output)]->queue;
}

Placement plan(std::shared_ptr<const files::ModelFile> file, const LoadOptions& options) {
  const model::Description description = describe(file, options);
  return place(ModelPrograms(description, options.kv_format), open_devices(options), options);
}

}  // namespace pumice::engine
