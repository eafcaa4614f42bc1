#include "requests.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "engine/request.h"
#include "engine/saved_prefix.h"
#include "file.h"
#include "grammar.h"
#include "params.h"

namespace py = pybind11;
using namespace py::literals;

namespace pumice::bindings {
namespace {

// Converts `news` to a list with one dict for each sequence that has new tokens or has ended.
py::list news_list(const std::vector<engine::News>& news, bool logprobs) {
  py::list out;
  for (const engine::News& n : news) {
    py::dict item("sequence"_a = n.sequence, "ids"_a = to_array(n.ids), "finish_reason"_a = py::none());
    if (n.finish == engine::Finish::eos) item["finish_reason"] = "eos";
    if (n.finish == engine::Finish::length) item["finish_reason"] = "length";
    if (n.finish == engine::Finish::grammar) item["finish_reason"] = "grammar";
    // A request ends at its deadline as if the caller had closed it then.
    if (n.finish == engine::Finish::deadline) item["finish_reason"] = "cancelled";
    if (n.reasoning_cut >= 0) item["reasoning_cut"] = n.reasoning_cut;
    if (logprobs) {
      item["logprobs"] = to_array(n.logprobs);
      item["top_ids"] = to_array(n.top_ids, n.top_count);
      item["top_logprobs"] = to_array(n.top_logprobs, n.top_count);
    }
    out.append(std::move(item));
  }
  return out;
}

class RequestHandle {
 public:
  // `params` has one element for all prompts, or one element for each prompt.
  RequestHandle(const ModelHandle& handle, const py::sequence& prompts, const std::vector<const GenerateParams*>& params)
      : model_(handle.get()) {
    std::vector<std::vector<std::int32_t>> ids;
    for (const auto& prompt : prompts) {
      if (!py::isinstance<py::array>(prompt)) fail(ErrorKind::wrong_type, "prompts must be arrays of int32");
      const auto tokens = ids_of(py::reinterpret_borrow<py::array>(prompt));
      ids.emplace_back(tokens.begin(), tokens.end());
    }
    std::vector<engine::GenerateParams> all;
    for (const GenerateParams* each : params) {
      if (!each) fail(ErrorKind::wrong_type, "params must be a sequence of GenerateParams");
      engine::GenerateParams& one = all.emplace_back(each->engine);
      if (!each->grammar.is_none()) one.filters.push_back(each->grammar.cast<const GrammarHandle&>().grammar->filter());
      if (!each->reasoning.is_none()) one.reasoning = each->reasoning.cast<const ReasoningHandle&>().marks;
      if (!each->draft.is_none()) one.speculation.drafter = model_->drafter(each->draft.cast<const ModelHandle&>().get());
      one.shows_logits = !each->logits_processor.is_none();
      logprobs_ = logprobs_ || one.sampling.logprobs >= 0;
      processors_.push_back(each->logits_processor);
    }
    const WithoutGil released;
    request_ = model_->scheduler().request(ids, all);
  }
  ~RequestHandle() {
    const WithoutGil released;
    request_.reset();
    model_.reset();
  }
  RequestHandle(const RequestHandle&) = delete;
  RequestHandle& operator=(const RequestHandle&) = delete;

  engine::Request& get() const { return *request_; }

  py::list advance(std::int32_t steps, double max_ms) {
    bool came = false;
    wait_interruptibly(max_ms, [&](double ms) { return came = request_->wait(steps, ms); });
    if (!came) return py::list();
    if (std::ranges::any_of(processors_, [](const py::object& each) { return !each.is_none(); })) process_logits();
    const std::vector<engine::News> news = [&] {
      const WithoutGil released;
      return request_->take();
    }();
    return news_list(news, logprobs_);
  }

  py::dict timings() const {
    const auto t = [&] {
      const WithoutGil released;
      return request_->timings();
    }();
    py::dict result("prefill_tokens"_a = static_cast<double>(t.prefill_tokens), "prefill_seconds"_a = t.prefill_seconds,
                    "decode_tokens"_a = static_cast<double>(t.decode_tokens), "decode_seconds"_a = t.decode_seconds,
                    "drafted_tokens"_a = static_cast<double>(t.drafted_tokens),
                    "accepted_tokens"_a = static_cast<double>(t.accepted_tokens));
    if (t.queued_seconds) result["queued_seconds"] = *t.queued_seconds;
    if (t.first_token_seconds) result["first_token_seconds"] = *t.first_token_seconds;
    return result;
  }

 private:
  // Calls the logits processors in the caller's thread, so that the caller gets the exceptions of its own processors, and other requests do
  // not wait for them.
  void process_logits() {
    const std::vector<engine::Request::Shown> shown = [&] {
      const WithoutGil released;
      return request_->shown();
    }();
    const auto per_prompt = static_cast<std::size_t>(request_->sequences()) / request_->prompt_tokens().size();
    for (const auto& [sequence, ids, logits] : shown) {
      const std::size_t prompt = static_cast<std::size_t>(sequence) / per_prompt;
      py::array_t<float> row = to_array(logits);
      const py::object result = call(processors_[processors_.size() == 1 ? 0 : prompt], py::make_tuple(to_array(ids), row));
      if (!result.is_none())
        fail(ErrorKind::wrong_type, "logits_processor gave back ", repr_of(result).substr(0, 100),
             "; it must change the row of logits in place and return None");
      const std::span<const float> changed{row.data(), static_cast<std::size_t>(row.size())};
      const WithoutGil released;
      request_->answer(sequence, changed);
    }
  }

  std::vector<py::object> processors_;  // the logits_processor of each element of `params`; may be None
  std::shared_ptr<engine::Model> model_;
  std::shared_ptr<engine::Request> request_;
  bool logprobs_ = false;
};

// Waits for events of those requests of a model for which start() was called. A Pump keeps the model alive, so the Python code
// drops it when no such request is left.
class Pump {
 public:
  explicit Pump(const ModelHandle& handle) : model_(handle.get()) { model_->scheduler(); }
  ~Pump() {
    const WithoutGil released;
    model_.reset();
  }
  Pump(const Pump&) = delete;
  Pump& operator=(const Pump&) = delete;

  py::list wait(double max_ms) {
    std::vector<engine::RequestNews> all;
    {
      const WithoutGil released;
      all = model_->scheduler().pump(max_ms);
    }
    py::list out;
    for (const engine::RequestNews& each : all) {
      const bool logprobs = std::ranges::any_of(each.news, [](const engine::News& n) { return !n.logprobs.empty(); });
      out.append(py::make_tuple(each.tag, news_list(each.news, logprobs), each.ended));
    }
    return out;
  }
  void wake() {
    const WithoutGil released;
    model_->scheduler().wake_pump();
  }

 private:
  std::shared_ptr<engine::Model> model_;
};

// ---------------------------------------------------------------- the batch and its cache
py::dict cache_stats(const ModelHandle& handle) {
  const auto m = handle.get();
  const auto stats = m->decoder().pages->stats();
  const engine::Model::ExpertCounts experts = m->expert_counts();
  return py::dict("prompt_tokens"_a = stats.prompt_tokens, "reused_tokens"_a = stats.reused_tokens, "pages_in_use"_a = stats.pages_in_use,
                  "pages_cached"_a = stats.pages_cached, "pages_evicted"_a = stats.pages_evicted, "states_in_use"_a = stats.states_in_use,
                  "states_cached"_a = stats.states_cached, "expert_hits"_a = experts.hits, "expert_reads"_a = experts.reads);
}

py::dict stats(const ModelHandle& handle) {
  const auto m = handle.get();
  engine::SchedulerStats s;
  engine::PagePool::Stats pages;
  {
    const WithoutGil released;
    s = m->scheduler().stats();
    pages = m->decoder().pages->stats();
  }
  return py::dict("running"_a = s.running, "waiting"_a = s.waiting, "lagging"_a = s.lagging, "step_rows"_a = s.rows, "steps"_a = s.steps,
                  "prompt_tokens"_a = s.prompt_tokens, "decoded_tokens"_a = s.decoded_tokens, "preempted"_a = s.preempted,
                  "busy_seconds"_a = s.busy_seconds, "pages_in_use"_a = pages.pages_in_use, "pages_cached"_a = pages.pages_cached,
                  "pages_budget"_a = pages.pages_budget, "states_in_use"_a = pages.states_in_use, "states_cached"_a = pages.states_cached,
                  "states_budget"_a = pages.states_budget);
}

py::dict set_limits(const ModelHandle& handle, std::optional<std::int32_t> running, std::optional<std::int32_t> waiting,
                    std::optional<double> step_seconds) {
  const auto m = handle.get();
  engine::Limits limits;
  {
    const WithoutGil released;
    engine::Scheduler& scheduler = m->scheduler();
    limits = scheduler.limits();
    limits = {running.value_or(limits.running), waiting.value_or(limits.waiting), step_seconds.value_or(limits.step_seconds)};
    scheduler.set_limits(limits);
  }
  return py::dict("running"_a = limits.running, "waiting"_a = limits.waiting, "step_seconds"_a = limits.step_seconds);
}

std::uint64_t save_prefix(const ModelHandle& handle, const py::str& path, const py::array& ids) {
  const auto m = handle.get();
  const auto tokens = ids_of(ids);
  const std::string file = file_name(path);
  std::uint64_t bytes = 0;
  interruptible([&](const Cancel& cancel) { bytes = engine::save_prefix(*m, file, tokens, cancel); });
  return bytes;
}

py::tuple load_prefix(const ModelHandle& handle, const py::str& path) {
  const auto m = handle.get();
  const std::string file = file_name(path);
  engine::LoadedPrefix found;
  interruptible([&](const Cancel& cancel) { found = engine::load_prefix(*m, file, cancel); });
  return py::make_tuple(to_array(found.ids), found.recomputed);
}

}  // namespace

void bind_requests(py::module_& module, py::class_<ModelHandle>& model) {
  // The class Request is defined before the function that returns one, because pybind11 writes the name of the class into the docstring of
  // the function.
  py::class_<RequestHandle> request(module, "Request");
  py::class_<Pump>(module, "Pump")
      .def(py::init<const ModelHandle&>(), "model"_a)
      .def("wait", &Pump::wait, "max_ms"_a)
      .def("wake", &Pump::wake);
  request.def_property_readonly("sequences", [](const RequestHandle& g) { return g.get().sequences(); })
      .def_property_readonly("prompt_tokens", [](const RequestHandle& g) { return g.get().prompt_tokens(); })
      .def_property_readonly(
          "reused_tokens",
          [](const RequestHandle& g) {
            const WithoutGil released;
            return g.get().reused_tokens();
          },
          py::return_value_policy::move)
      .def_property_readonly("seeds", [](const RequestHandle& g) { return g.get().seeds(); })
      .def_property_readonly(
          "done",
          [](const RequestHandle& g) {
            const WithoutGil released;
            return g.get().done();
          },
          py::return_value_policy::move)
      .def("advance", &RequestHandle::advance, "steps"_a, "max_ms"_a)
      .def(
          "start",
          [](const RequestHandle& g, std::uint64_t tag, std::int32_t steps) {
            const WithoutGil released;
            g.get().start(tag, steps);
          },
          "tag"_a, "steps"_a)
      .def(
          "hold",
          [](const RequestHandle& g, bool held) {
            const WithoutGil released;
            g.get().hold(held);
          },
          "held"_a)
      .def(
          "finish",
          [](const RequestHandle& g, std::int32_t sequence) {
            const WithoutGil released;
            g.get().finish(sequence);
          },
          "sequence"_a)
      .def("timings", &RequestHandle::timings)
      .def("close", [](const RequestHandle& g) {
        const WithoutGil released;
        g.get().close();
      });
  model.def("cache_stats", &cache_stats)
      .def("stats", &stats)
      .def("set_limits", &set_limits, "running"_a = py::none(), "waiting"_a = py::none(), "step_seconds"_a = py::none())
      .def("save_prefix", &save_prefix, "path"_a, "ids"_a)
      .def("load_prefix", &load_prefix, "path"_a)
      .def(
          "request",
          [](const ModelHandle& handle, const py::sequence& prompts, const std::vector<const GenerateParams*>& params) {
            return std::make_unique<RequestHandle>(handle, prompts, params);
          },
          "prompts"_a, "params"_a);
}

}  // namespace pumice::bindings
