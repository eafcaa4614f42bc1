#include "engine/placement.h"

#include <algorithm>
#include <set>

#include "core/checked.h"
#include "model/programs.h"

namespace pumice::engine {
namespace {

using model::Description;
using model::Output;
using model::Role;

constexpr std::uint64_t kMiB = 1 << 20;

std::string mib(std::uint64_t bytes) { return str((bytes + kMiB - 1) / kMiB, " MiB"); }

std::string formats_of(const Description& d, const Program& program) {
  std::set<std::string_view> names;
  const auto used = model::used_matrices(program, d.weights.matrices.size());
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i]) names.insert(name(d.weights.matrices[i].format));
  }
  std::string text;
  for (std::string_view n : names) text += (text.empty() ? "" : ", ") + std::string(n);
  return text;
}

Program embedding_program(const Description& d) {
  Program program = model::body_program(d, 0, 0, Output::tokens);
  program.ops.resize(1);  // Embed alone
  return program;
}

// One sequence needs pages for n_ctx positions; automatic budgets hold up to four such sequences, in a quarter of what is free.
void plan_caches(Placement& p, const Description& d, const LoadOptions& options) {
  p.n_ctx = options.n_ctx.value_or(d.config.n_ctx);
  require(p.n_ctx >= 1 && p.n_ctx <= d.config.n_ctx, "n_ctx=", p.n_ctx, ": the model was trained for 1 to ", d.config.n_ctx, " positions");
  if (p.kv_page == 0) return;  // encoders keep nothing
  const std::uint64_t used = p.weights + p.scratch;
  const std::uint64_t free = p.memory_free > used ? p.memory_free - used : 0;
  const auto bytes_for = [&](std::int64_t positions) { return mul_or_fail(static_cast<std::uint64_t>(ceil_div(positions, kPageTokens)), p.kv_page, "kv cache"); };
  if (options.kv_budget) {
    p.kv_budget = *options.kv_budget;
    if (p.kv_budget > free) {
      fail(ErrorKind::out_of_memory, "kv_budget of ", mib(p.kv_budget), " asked for, ", mib(free), " free after weights; give a smaller kv_budget");
    }
  } else {
    p.kv_budget = std::min(free / 4, mul_or_fail<std::uint64_t>(4, bytes_for(p.n_ctx), "kv cache"));
    if (options.n_ctx && bytes_for(p.n_ctx) > p.kv_budget) p.kv_budget = bytes_for(p.n_ctx);
    if (p.kv_budget > free) {
      fail(ErrorKind::out_of_memory, "n_ctx=", p.n_ctx, " needs ", mib(p.kv_budget), " for keys and values, ", mib(free),
           " free after weights; give a smaller n_ctx, or kv_dtype=\"q8_0\"");
    }
  }
  const std::int64_t fits = static_cast<std::int64_t>(std::min<std::uint64_t>(p.kv_budget / p.kv_page, 1u << 30)) * kPageTokens;
  if (fits < kPageTokens) {
    fail(ErrorKind::out_of_memory, "kv_budget of ", mib(p.kv_budget), " holds not even ", kPageTokens, " positions (", p.kv_page, " bytes)");
  }
  if (fits < p.n_ctx) {
    if (options.n_ctx) {
      fail(ErrorKind::out_of_memory, "n_ctx=", p.n_ctx, " needs ", mib(bytes_for(p.n_ctx)), " for keys and values, kv_budget is ", mib(p.kv_budget),
           "; give a larger kv_budget, a smaller n_ctx, or kv_dtype=\"q8_0\"");
    }
    p.notes.push_back(str("n_ctx is ", fits, ", not the model's ", p.n_ctx, ": kv_budget of ", mib(p.kv_budget), " holds no more; set n_ctx or kv_budget"));
    p.n_ctx = fits;
  }
}

}  // namespace

Placement place(const Description& d, const std::vector<std::shared_ptr<Backend>>& backends, const LoadOptions& options) {
  Placement p;
  p.notes = d.notes;
  for (const auto& backend : backends) p.devices.push_back(backend->info().id);
  const std::size_t layers = d.config.layers.size();
  const bool generates = d.config.architecture->task == model::Task::generate;
  // One device takes everything; several share the layers evenly, in order. A device without a layer has no stage.
  const std::size_t devices = std::min(backends.size(), layers);
  for (std::size_t i = 0; i < devices; ++i) {
    p.stages.push_back({.device = i, .first = layers * i / devices, .last = layers * (i + 1) / devices});
  }
  for (std::size_t i = devices; i < backends.size(); ++i) p.notes.push_back(str(p.devices[i], " is idle: the model has only ", layers, " layers"));
  const auto add = [&](std::string row, const Backend& backend, const std::string& device, const Program& program, std::uint64_t known,
                       std::int64_t batch_rows = kPlannedRows) {
    const Cost cost = backend.cost(program, d.weights, options.kv_format, batch_rows);
    p.rows.push_back({.name = std::move(row), .device = device, .weights = cost.weights - std::min(known, cost.weights), .kv = cost.page,
                      .formats = formats_of(d, program)});
    p.weights += p.rows.back().weights;
    p.kv_page += cost.page;
    p.scratch = std::max(p.scratch, cost.scratch);
  };
  const Backend& front = *backends.front();
  const Program embedding = embedding_program(d);
  add("embedding", front, p.devices.front(), embedding, 0);
  const std::uint64_t embedding_bytes = p.weights;
  for (const StagePlan& stage : p.stages) {
    const Backend& backend = *backends[stage.device];
    for (std::size_t layer = stage.first; layer < stage.last; ++layer) {
      add(str("layer ", layer), backend, p.devices[stage.device], model::body_program(d, layer, layer + 1, Output::tokens),
          layer == 0 ? embedding_bytes : 0);
    }
  }
  if (generates) {
    const bool tied = d.global(Role::head).matrix == d.global(Role::token_embedding).matrix;
    const bool same_device = p.stages.back().device == 0;
    add(tied ? "head (the embedding)" : "head", *backends[p.stages.back().device], p.devices[p.stages.back().device], model::head_program(d),
        tied && same_device ? embedding_bytes : 0, kPlannedHeadRows);
  }
  p.memory_free = front.info().memory_free;
  if (p.weights + p.scratch > p.memory_free) {
    fail(ErrorKind::out_of_memory, "the model needs ", mib(p.weights), " for weights and ", mib(p.scratch), " for scratch; ", mib(p.memory_free),
         " of memory is free. Take a smaller quantisation, or close other programs");
  }
  plan_caches(p, d, options);
  for (PlacementRow& row : p.rows) row.kv *= static_cast<std::uint64_t>(ceil_div(p.n_ctx, kPageTokens));
  return p;
}

}  // namespace pumice::engine
