#include "engine/placement.h"

#include <algorithm>
#include <set>

#include "core/checked.h"
#include "core/program_cut.h"
#include "engine/cache_budget.h"
#include "engine/runtime.h"

namespace pumice::engine {
namespace {

using model::Description;
using model::ModelProgram;
using model::ModelPrograms;
using model::Output;
using model::Role;

constexpr std::uint64_t kMiB = 1 << 20;

// Small sizes are in KiB, so that two sizes that differ by less than a MiB do not look equal.
std::string mib(std::uint64_t bytes) {
  return bytes < 10 * kMiB ? str((bytes + 1023) / 1024, " KiB") : str((bytes + kMiB - 1) / kMiB, " MiB");
}

std::uint64_t add(std::uint64_t a, std::uint64_t b) {
  const auto sum = checked_add(a, b);
  if (!sum) fail(ErrorKind::out_of_memory, "the model takes more bytes than can be addressed");
  return *sum;
}
std::uint64_t times(std::uint64_t pages, std::uint64_t bytes) { return mul_or_fail<std::uint64_t>(pages, bytes, "keys and values"); }
std::uint64_t less(std::uint64_t a, std::uint64_t b) { return a > b ? a - b : 0; }
std::uint64_t pages_for(std::int64_t positions) { return static_cast<std::uint64_t>(ceil_div(positions, kPageTokens)); }

Cost both(const Cost& a, const Cost& b) {
  return {.weights = add(a.weights, b.weights),
          .page = add(a.page, b.page),
          .state = add(a.state, b.state),
          .scratch = std::max(a.scratch, b.scratch),
          .experts = add(a.experts, b.experts),
          .experts_least = std::max(a.experts_least, b.experts_least)};
}
CacheUnits units(const Cost& cost) { return {cost.page, cost.state}; }
std::uint64_t bytes_with(const Cost& cost, std::uint64_t pages) {
  return add(add(cost.weights, cost.scratch), units(cost).bytes_for(pages));
}
// What a sequence's past takes, in words.
const char* kept(const Cost& cost) { return cost.state == 0 ? "keys and values" : cost.page == 0 ? "states" : "keys, values and states"; }
bool keeps_past(const Cost& cost) { return cost.page > 0 || cost.state > 0; }

bool in_host_memory(const DeviceInfo& device) {
  return device.type == DeviceType::cpu || device.type == DeviceType::integrated || device.type == DeviceType::software;
}

// Returns how many bytes of the device's free memory a model may take. On a GPU with memory of its own, a sixteenth of the free memory (at
// most 512 MiB) is left for a second workspace, upload buffers, pipelines, and the driver's rounding of sizes.
std::uint64_t usable(const DeviceInfo& device) {
  return in_host_memory(device) ? device.memory_free : device.memory_free - std::min(device.memory_free / 16, 512 * kMiB);
}

// The cost of each part of a model on one device.
struct Parts {
  std::shared_ptr<Backend> backend;
  DeviceInfo info;
  std::uint64_t free = 0;  // bytes that the model may take (usable())
  Cost embedding, head, modules, classifier, sparse, draft;
  Cost sketch;             // what the program of Top needs beside the head
  std::int32_t ranks = 0;  // Placement::ranks, if the head is on this device
  std::vector<Cost> layers;
  // By layer: the cost of its operations Experts, and of all others. Empty if the model has no experts, or cannot be cut around them.
  std::vector<Cost> experts, others;
};

// The size of a memory, and what the model needs of it. The memory is that of one device, or the machine's memory, which several devices
// may share.
struct Bound {
  std::string name;
  ErrorKind kind;
  std::uint64_t free;
  Cost cost;
  std::uint64_t room() const { return less(free, add(cost.weights, cost.scratch)); }
};

class Placer {
 public:
  Placer(const ModelPrograms& programs, const LoadOptions& options)
      : programs_(programs), d_(programs.description()), options_(options), layers_(d_.config.layers.size()) {
    const Description& d = d_;
    p_.notes = d.notes;
    p_.incomplete = d.incomplete;
    p_.n_ctx = options.n_ctx.value_or(d.config.n_ctx);
    require(p_.n_ctx >= 1 && p_.n_ctx <= d.config.n_ctx, "n_ctx=", p_.n_ctx, ": the model was trained for 1 to ", d.config.n_ctx,
            " positions");
    generates_ = d.config.has_head;
    p_.encodes_first = !generates_ || !options.pooling.empty() || d.config.pooling;
    tied_ = generates_ && d.global(Role::head).matrix == d.global(Role::token_embedding).matrix;
  }

  Placement on(const Devices& devices) {
    p_.notes.insert(p_.notes.end(), devices.notes.begin(), devices.notes.end());
    p_.fallback = devices.fallback;
    const std::int64_t asked = options_.gpu_layers.value_or(kAllLayers);
    require(asked <= static_cast<std::int64_t>(layers_), "gpu_layers=", asked, ": the model has ", layers_, " layers; give 0 to ", layers_,
            ", or \"all\"");
    rows_ = batch_rows({devices.cpu, devices.gpu});
    require(has_experts() || (!options_.gpu_experts && !options_.expert_cache),
            options_.gpu_experts ? str("gpu_experts=", experts_asked()) : str("expert_cache=", options_.expert_cache.value_or(0)),
            ": this model has no experts");
    if (!devices.gpu || asked == 0) {
      if (devices.gpu) p_.notes.push_back(str(devices.gpu->info().id, " is idle: gpu_layers=0"));
      require(options_.gpu_experts.value_or(0) == 0, "gpu_experts=", experts_asked(), ": no layer is on a GPU");
      stage(measure(devices.cpu), 0, layers_);
      return finish(0);
    }
    Parts cpu = measure(devices.cpu), gpu = measure(devices.gpu);
    if (in_host_memory(gpu.info)) gpu.free = std::min(gpu.free, cpu.free);
    if (has_experts() && gpu.experts.empty() && options_.gpu_experts.value_or(kAllLayers) != kAllLayers)
      fail(ErrorKind::unsupported_model, "gpu_experts=", *options_.gpu_experts,
           ": the layers of this model cannot be cut around their experts");
    const Share largest = largest_share(cpu, gpu);
    const Share share =
        !options_.gpu_layers ? largest : share_of(cpu, gpu, asked == kAllLayers ? layers_ : static_cast<std::size_t>(asked));
    const std::size_t count = share.layers;
    if (count > largest.layers) {
      too_many(cpu, gpu, share, largest.layers);
    } else if (count == 0 && devices.gpu_named) {
      problem(ErrorKind::out_of_device_memory, gpu.info.id, " holds not one of the model's ", layers_, " layers: the last one needs ",
              need(cpu, gpu, share_of(cpu, gpu, 1)).text(), ", ", mib(gpu.free),
              " may be used. Take a smaller n_ctx or kv_budget, or device=\"cpu\"");
    }
    const std::size_t border = layers_ - count;
    if (border > 0 || share.away > 0) {
      Cost all = cost(cpu, 0, border);
      if (share.away > 0) all = both(all, experts_cost(cpu, border, share.away));
      add_device(cpu, all, least_experts(cpu, 0, border + share.away),
                 in_host_memory(gpu.info) && count > 0 ? need(cpu, gpu, share).bytes : 0);
      if (border > 0) add_stage(cpu, 0, border, 0);
    }
    if (count > 0) {
      add_device(gpu, cost(gpu, border, layers_, share.away), 0, 0);
      add_stage(gpu, border, layers_, share.away);
    }
    say_why(cpu, gpu, count, devices.gpu_named);
    if (share.away > 0) {
      p_.experts_device = 0;
      say_why_experts(cpu, gpu, share);
    }
    return finish(target_pages(cache(cpu, gpu, count)));
  }

  Placement evenly(const std::vector<std::shared_ptr<Backend>>& backends) {
    const std::size_t devices = std::min(backends.size(), layers_);
    rows_ = batch_rows(backends);
    for (std::size_t i = 0; i < devices; ++i) stage(measure(backends[i]), layers_ * i / devices, layers_ * (i + 1) / devices);
    for (std::size_t i = devices; i < backends.size(); ++i) {
      p_.notes.push_back(str(backends[i]->info().id, " is idle: the model has only ", layers_, " layers"));
    }
    return finish(0);
  }

 private:
  // ---------------------------------------------------------------- costs
  // Returns the number of rows that scratch is planned for. encode() makes its batches as large as the device that wants the most rows asks
  // for, even if other devices run some of the layers.
  std::int64_t batch_rows(const std::vector<std::shared_ptr<Backend>>& backends) const {
    std::int64_t rows = kPlannedRows;
    for (const auto& backend : backends) {
      if (backend && p_.encodes_first) rows = std::max(rows, backend->batch_rows());
    }
    return rows;
  }

  const ModelProgram& embedding() const { return programs_.body(0, 0, Output::hidden); }
  const ModelProgram& layer(std::size_t layer) const { return programs_.body(layer, layer + 1, Output::hidden); }
  std::string experts_asked() const {
    return options_.gpu_experts.value_or(0) == kAllLayers ? "\"all\"" : str(options_.gpu_experts.value_or(0));
  }
  bool has_experts() const {
    return std::ranges::any_of(d_.config.layers, [](const model::Layer& layer) { return layer.if_mixture() != nullptr; });
  }
  bool has_modules() const { return !d_.modules.empty() || d_.global(Role::projection).present(); }
  const ModelProgram& end(Output output) const { return programs_.body(layers_ - 1, layers_, output); }

  Parts measure(const std::shared_ptr<Backend>& backend) const {
    Parts parts{.backend = backend, .info = backend->info()};
    parts.free = usable(parts.info);
    const auto cost = [&](const ModelProgram& p) { return backend->cost(p.program, programs_.shapes(), options_.kv_format, rows_); };
    parts.embedding = cost(embedding());
    for (std::size_t l = 0; l < layers_; ++l) parts.layers.push_back(cost(layer(l)));
    const auto behind_layers = [&](Output output) {
      Cost end = cost(this->end(output));
      end.weights = less(end.weights, parts.layers.back().weights);
      end.page = end.state = 0;
      return end;
    };
    if (has_modules()) parts.modules = behind_layers(Output::pooled);
    if (d_.labels > 0) parts.classifier = behind_layers(Output::classes);
    if (d_.gives_sparse()) {
      parts.sparse = behind_layers(Output::sparse);
      parts.sparse.scratch = add(parts.sparse.scratch, kMostPooled * sizeof(float));  // cost() counts the row of one text
    }
    if (has_experts()) measure_experts(parts);
    // The program of layer 0 includes the embedding, which counts as a part of its own.
    for (std::vector<Cost>* layers : {&parts.layers, &parts.others})
      if (!layers->empty()) layers->front().weights = less(layers->front().weights, parts.embedding.weights);
    if (generates_) measure_head(parts);
    if (d_.drafts()) parts.draft = draft_cost(parts, *backend);
    return parts;
  }

  void measure_experts(Parts& parts) const {
    parts.experts.resize(layers_);
    parts.others.resize(layers_);
    const auto is_experts = [](const Op& op) { return std::holds_alternative<Experts>(op); };
    try {
      cut_program(programs_.body(0, layers_, Output::hidden).program, programs_.shapes(),
                  is_experts);  // throws if two layers share a cache
      for (std::size_t l = 0; l < layers_; ++l) {
        for (const ProgramPart& part : cut_program(layer(l).program, programs_.shapes(), is_experts)) {
          Cost& sum = (part.apart ? parts.experts : parts.others)[l];
          sum = both(sum, parts.backend->cost(part.program, programs_.shapes(), options_.kv_format, rows_));
        }
      }
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::unsupported_model) throw;
      parts.experts.clear();
      parts.others.clear();
    }
  }

  // Measures the head. Its programs share weights and one workspace, so scratch is that of the program that needs the most.
  void measure_head(Parts& parts) const {
    const auto cost = [&](const ModelProgram& p) {
      return parts.backend->cost(p.program, programs_.shapes(), options_.kv_format, head_rows(d_.vocab_size));
    };
    parts.head = cost(programs_.head());
    parts.head.scratch = std::max(parts.head.scratch, cost(programs_.log_probs()).scratch);
    if (!options_.sketch && !is_gpu(parts.info)) return;
    const MatrixShape& head = programs_.shapes().matrices[static_cast<std::size_t>(d_.global(Role::head).matrix)];
    parts.ranks = std::min(parts.backend->ranks(head, step_bytes()), model::kTopLogits);
    if (parts.ranks == 0) return;
    const Cost top = cost(programs_.top());
    parts.sketch.weights = less(top.weights, parts.head.weights);
    parts.head.scratch = std::max(parts.head.scratch, top.scratch);
  }

  // Returns how many bytes of weights, as in the file, a step of one row reads: of a mixture, the experts of one row.
  std::uint64_t step_bytes() const {
    const ModelProgram& body = programs_.body(0, layers_, Output::selected);
    std::vector<bool> read = body.matrices;
    std::vector<std::int32_t> chosen(read.size());
    for (const Op& op : body.program.ops) {
      const auto each = [](std::initializer_list<MatrixId> ids, const auto& set) {
        for (const MatrixId id : ids)
          if (id != MatrixId::none) set(static_cast<std::size_t>(id));
      };
      if (const auto* embed = std::get_if<Embed>(&op))
        each({embed->tokens, embed->positions, embed->types}, [&](std::size_t id) { read[id] = false; });
      if (const auto* experts = std::get_if<Experts>(&op))
        each({experts->gate, experts->up, experts->down}, [&](std::size_t id) { chosen[id] = experts->route.width / 2; });
    }
    read[static_cast<std::size_t>(d_.global(Role::head).matrix)] = true;
    std::uint64_t sum = 0;
    for (std::size_t m = 0; m < read.size(); ++m) {
      const MatrixShape& matrix = programs_.shapes().matrices[m];
      const std::int64_t rows = chosen[m] > 0 ? matrix.rows_each() * chosen[m] : matrix.rows;
      if (read[m])
        sum = add(sum, times(static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(row_bytes(matrix.format, matrix.cols))));
    }
    return sum;
  }

  // Returns the cost of the draft head, whose layer the body's last stage computes a part of, for the keys and values of all rows. For an
  // assistant, the pages are those of earlier layers' keys and values, which the last stage also keeps.
  Cost draft_cost(const Parts& parts, const Backend& backend) const {
    const auto cost = [&](const ModelProgram& p, std::int64_t rows) {
      return backend.cost(p.program, programs_.shapes(), options_.kv_format, rows);
    };
    const Cost last = cost(end(Output::selected), rows_);
    Cost draft = cost(programs_.draft(layers_ - 1, false), kGuessedRows);  // it has all matrices of the program for first guesses
    const Cost first = cost(programs_.draft(layers_ - 1, true), kGuessedRows);
    const Cost logits = cost(programs_.draft_logits(), head_rows(d_.vocab_size));
    draft.scratch = std::max({draft.scratch, first.scratch, last.scratch, logits.scratch});
    if (d_.assistant) draft.weights = add(draft.weights, logits.weights);
    draft.page = less(last.page, parts.layers.back().page);
    draft.state = less(last.state, parts.layers.back().state);
    return draft;
  }

  // Returns the cost of the draft head or the assistant on a device whose stage begins with layer `first`. It needs a second copy of the
  // embedding's matrix if neither the embedding nor a head that shares this matrix is there. The keys and values that an assistant attends
  // to cost nothing if layers of the stage have them anyway.
  Cost draft_beside(const Parts& parts, std::size_t first) const {
    Cost draft = parts.draft;
    if (tied_ || first == 0) draft.weights = less(draft.weights, parts.embedding.weights);
    for (const std::size_t source : d_.config.read_by_assistant) {
      if (d_.config.cache_of(layers_ - 1) == source) continue;
      for (std::size_t l = first; l + 1 < layers_; ++l) {
        if (d_.config.cache_of(l) != source) continue;
        draft.page = less(draft.page, parts.layers[source].page);
        break;
      }
    }
    return draft;
  }

  // Returns whether a stage with the model's last layer has the draft head or the assistant. An assistant needs the keys and values of
  // several layers, which a stage whose experts are elsewhere keeps in parts. A draft head needs only its own.
  bool drafts(std::size_t away) const { return d_.drafts() && (away == 0 || !d_.assistant); }

  // Returns the cost of the head on a device; `embedding` says whether the embedding is on that device too. If so, a head that uses the
  // embedding's matrix adds no weights.
  Cost head_beside(const Parts& parts, bool embedding) const {
    Cost head = parts.head;
    if (tied_ && embedding) head.weights = less(head.weights, parts.embedding.weights);
    return head;
  }

  // Returns whether layer `other` uses all matrices that `layer` uses. This is true in ALBERT, whose layers share their matrices.
  bool shares_weights(std::size_t layer, std::size_t other) const {
    const std::vector<bool>&mine = this->layer(layer).matrices, &others = this->layer(other).matrices;
    for (std::size_t m = 0; m < mine.size(); ++m) {
      if (mine[m] && !others[m]) return false;
    }
    return true;
  }

  // Returns the cost of `layer` in a stage whose first layer is `first`. Weights that layers share are counted once. Several layers may
  // read the keys and values of the same layer. measure() counted a cache for each of these layers, but a stage has that cache only once,
  // so here only the first of these layers in the stage counts it. The experts of the stage's first `away` layers are elsewhere.
  Cost layer_cost(const Parts& parts, std::size_t first, std::size_t layer, std::size_t away) const {
    Cost cost = layer < first + away ? parts.others[layer] : parts.layers[layer];
    const std::size_t loop = layers_ / d_.config.loops;  // the number of layers after which the same weights are used again
    if (layer > first && (shares_weights(layer, first) || layer >= first + loop)) cost.weights = 0;
    for (std::size_t l = first; l < layer; ++l) {
      if (d_.config.cache_of(l) == d_.config.cache_of(layer)) cost.page = 0;
    }
    return cost;
  }

  Cost cost(const Parts& parts, std::size_t first, std::size_t last, std::size_t away = 0) const {
    Cost sum;
    if (first == last) return sum;
    if (first == 0) sum = parts.embedding;
    for (std::size_t layer = first; layer < last; ++layer) sum = both(sum, layer_cost(parts, first, layer, away));
    if (last == layers_) {
      sum = both(both(sum, both(head_beside(parts, first == 0), parts.sketch)), both(both(parts.modules, parts.classifier), parts.sparse));
      if (drafts(away)) sum = both(sum, draft_beside(parts, first));
    }
    return sum;
  }

  // Returns the cost of the experts of `count` layers.
  Cost experts_cost(const Parts& parts, std::size_t first, std::size_t count) const {
    Cost sum;
    for (std::size_t l = first; l < first + count; ++l) sum = both(sum, parts.experts[l]);
    return sum;
  }

  // ---------------------------------------------------------------- how many layers
  // What a GPU gets: the last `layers` layers. The experts of the first `away` of these layers stay on the CPU.
  struct Share {
    std::size_t layers = 0, away = 0;
  };

  // Returns the bytes of one cache page and of one state, on both devices together, if `count` layers are on the GPU.
  CacheUnits cache(const Parts& cpu, const Parts& gpu, std::size_t count) const {
    const std::size_t border = layers_ - count;
    return units(both(cost(cpu, 0, border), cost(gpu, border, layers_)));
  }

  // Returns how many cache pages must fit beside the layers.
  std::uint64_t target_pages(const CacheUnits& cache) const {
    if (cache.page_bytes == 0 && cache.state_bytes == 0) return 0;
    if (options_.kv_budget) return cache.pages_in(*options_.kv_budget);
    return pages_for(options_.n_ctx.value_or(std::min(d_.config.n_ctx, kPlannedPositions)));
  }

  // The memory that a GPU needs for a given number of layers.
  struct Need {
    Cost cost;
    std::uint64_t pages, bytes;
    std::uint64_t missing;  // how many bytes more than the free ones are needed; 0 if the layers fit
    std::string text() const {
      const std::string kv =
          keeps_past(cost) ? str(", ", kept(cost), " of ", pages * kPageTokens, " positions ", mib(units(cost).bytes_for(pages))) : "";
      return str(mib(bytes), " (weights ", mib(cost.weights), kv, ", scratch ", mib(cost.scratch), ")");
    }
  };
  Need need(const Parts& cpu, const Parts& gpu, Share share) const {
    Need need{.cost = cost(gpu, layers_ - share.layers, layers_, share.away),
              .pages = target_pages(cache(cpu, gpu, share.layers)),
              .bytes = 0,
              .missing = 0};
    need.bytes = bytes_with(need.cost, need.pages);
    need.missing = less(need.bytes, gpu.free);
    return need;
  }

  bool is_mixture(std::size_t layer) const { return d_.config.layers[layer].if_mixture() != nullptr; }
  // Returns the share without dense layers at the end of those whose experts are away.
  Share trimmed(Share share) const {
    while (share.away > 0 && !is_mixture(layers_ - share.layers + share.away - 1)) --share.away;
    return share;
  }
  // Returns the share with `count` layers that gpu_experts= asks for. Without gpu_experts=, returns the share that fits and has the most
  // experts on the GPU. If none fits, returns the one without experts on the GPU.
  Share share_of(const Parts& cpu, const Parts& gpu, std::size_t count) const {
    if (gpu.experts.empty() || cpu.experts.empty()) return {count, 0};
    if (options_.gpu_experts) {
      const std::int64_t asked = *options_.gpu_experts;
      std::size_t away = 0;
      std::int64_t there = 0;
      for (std::size_t l = layers_; asked != kAllLayers && l > layers_ - count && away == 0; --l)
        if (is_mixture(l - 1) && ++there > asked) away = l - (layers_ - count);
      return {count, away};
    }
    if (need(cpu, gpu, {count, count}).missing > 0) return trimmed({count, count});
    std::size_t most = count;  // with the experts of so many layers away, the others fit
    for (std::size_t least = 0; least < most;) {
      const std::size_t middle = least + (most - least) / 2;
      if (need(cpu, gpu, {count, middle}).missing > 0) {
        least = middle + 1;
      } else {
        most = middle;
      }
    }
    return trimmed({count, most});
  }

  Share largest_share(const Parts& cpu, const Parts& gpu) const {
    for (std::size_t count = layers_; count > 0; --count) {
      const Share share = share_of(cpu, gpu, count);
      if (need(cpu, gpu, share).missing == 0) return share;
    }
    return {};
  }

  void too_many(const Parts& cpu, const Parts& gpu, const Share& share, std::size_t most) {
    problem(ErrorKind::out_of_device_memory, share.layers, " of ", layers_, " layers need ", need(cpu, gpu, share).text(), " on ",
            gpu.info.id, ", where ", mib(gpu.free), " may be used: ", most, most == 1 ? " layer" : " layers",
            " would fit. Give gpu_layers=", most, " or \"auto\", a smaller n_ctx or kv_budget, or kv_dtype=\"q8_0\"",
            options_.gpu_experts.value_or(0) != 0 ? ", or a smaller gpu_experts" : "");
  }

  // Adds rows for the experts that are on the CPU although their layers are on the GPU, and a note that says why they are there.
  void say_why_experts(const Parts& cpu, const Parts& gpu, const Share& share) {
    const std::size_t border = layers_ - share.layers;
    const bool all_experts = p_.devices.front().expert_bytes == kAllExperts;
    for (std::size_t l = border; l < border + share.away; ++l) {
      if (cpu.experts[l].weights == 0) continue;
      p_.rows.push_back({.name = str("experts of layer ", l),
                         .device = cpu.info.id,
                         .weights = all_experts ? cpu.experts[l].weights : 0,
                         .formats = {},
                         .why = options_.gpu_experts ? "gpu_experts" : str("too much for ", gpu.info.id)});
    }
    if (border == 0) add_expert_row(p_.devices.front());
    if (options_.gpu_experts) return;
    const Need more = need(cpu, gpu, {share.layers, share.away - 1});
    p_.notes.push_back(str("the experts of ", share.away, " of ", share.layers, " layers stay on the CPU: with those of layer ",
                           border + share.away - 1, " ", gpu.info.id, " would have to hold ", more.text(), ", ", mib(more.missing),
                           " more than may be used"));
  }

  // Sets PlacementRow::why of each layer that is not on the GPU. It says how many bytes the GPU lacks to hold that layer and all after it.
  void say_why(const Parts& cpu, const Parts& gpu, std::size_t count, bool gpu_named) {
    const std::size_t border = layers_ - count;
    if (border == 0) return;
    std::size_t layer = 0;
    for (PlacementRow& row : p_.rows) {  // the first row is the embedding, then come the layers from 0 on
      if (row.device != cpu.info.id || layer >= border) continue;
      row.why = options_.gpu_layers ? str("gpu_layers=", count)
                                    : str(mib(need(cpu, gpu, share_of(cpu, gpu, layers_ - layer)).missing), " too much for ", gpu.info.id);
      if (row.name != "embedding") ++layer;
    }
    if (options_.gpu_layers) return;
    const Need more = need(cpu, gpu, share_of(cpu, gpu, count + 1));
    const std::string would = str("with layer ", border - 1, " it would have to hold ", more.text(), ", ", mib(more.missing),
                                  " more than may be used; a smaller n_ctx or kv_budget, or kv_dtype=\"q8_0\", makes room");
    if (count == 0 && gpu_named) return;
    if (count == 0) {
      p_.fallback = str(gpu.info.id, " is not used, the model runs on the CPU: ", would);
    } else {
      p_.notes.push_back(str(count, " of ", layers_, " layers are on ", gpu.info.id, ": ", would));
    }
  }

  // ---------------------------------------------------------------- the table
  // Decides how many bytes of a device's experts are in memory, and changes `cost`, what the device holds, accordingly. Without
  // expert_cache=, all experts are kept in memory if they fit beside the planned keys and values. If they do not, as many are kept as leave
  // a sixteenth of the free memory to the system, which caches parts of the file there. `least` is the least number of bytes. `beside` is
  // the number of bytes that another device takes of the same memory.
  std::uint64_t limit_experts(const Parts& parts, std::uint64_t least, std::uint64_t beside, Cost& cost) {
    if (cost.experts == 0) return kAllExperts;
    experts_on_cpu_ = true;
    const std::uint64_t rest = add(less(cost.weights, cost.experts), add(cost.scratch, beside));
    const std::uint64_t caches = units(cost).bytes_for(target_pages(units(cost)));
    std::uint64_t bytes = options_.expert_cache.value_or(kAllExperts);
    if (!options_.expert_cache && add(add(rest, cost.experts), caches) > parts.free)
      bytes = less(parts.free, add(add(rest, caches), parts.free / 16));
    if (bytes >= cost.experts) return kAllExperts;
    if (bytes < least && options_.expert_cache) {
      problem(ErrorKind::out_of_memory, "expert_cache=", bytes, " is too small: the experts of one layer of each size take ", least,
              " bytes, and a step needs all experts of a layer at once");
    }
    bytes = std::max(bytes, least);
    p_.notes.push_back(str(mib(bytes), " of ", mib(cost.experts), " of experts are in memory",
                           options_.expert_cache ? " (expert_cache)" : "", "; the others are read from the file when a token needs them",
                           options_.expert_cache ? "" : ". A smaller quantization, n_ctx or kv_budget makes room for more"));
    cost.weights = add(less(cost.weights, cost.experts), bytes);
    cost.experts = bytes;
    return bytes;
  }
  // Returns the sum over the distinct sizes of a layer's experts. A cache of this size is never too small for them.
  std::uint64_t least_experts(const Parts& parts, std::size_t first, std::size_t last) const {
    std::set<std::uint64_t> sizes;
    for (std::size_t l = first; l < last; ++l) sizes.insert(parts.layers[l].experts_least);
    std::uint64_t sum = 0;
    for (const std::uint64_t size : sizes) sum = add(sum, size);
    return sum;
  }

  // Adds a device that holds what `all` says. `least` and `beside` are as in limit_experts().
  void add_device(const Parts& parts, Cost all, std::uint64_t least, std::uint64_t beside) {
    const std::uint64_t expert_bytes = limit_experts(parts, least, beside, all);
    p_.devices.push_back({.backend = parts.backend,
                          .id = parts.info.id,
                          .name = parts.info.name,
                          .weights = all.weights,
                          .scratch = all.scratch,
                          .kv_page = all.page,
                          .state = all.state,
                          .memory_free = parts.info.memory_free,
                          .expert_bytes = expert_bytes,
                          .in_host_memory = in_host_memory(parts.info)});
    bounds_.push_back({.name = parts.info.id,
                       .kind = is_gpu(parts.info) ? ErrorKind::out_of_device_memory : ErrorKind::out_of_memory,
                       .free = parts.free,
                       .cost = all});
    if (p_.devices.back().in_host_memory) hosts_.push_back(bounds_.back());
  }

  void add_row(std::string name, const Cost& cost, const std::vector<bool>& matrices) {
    const PlacedDevice& device = p_.devices.back();
    const bool all_experts = device.expert_bytes == kAllExperts;
    p_.rows.push_back({.name = std::move(name),
                       .device = device.id,
                       .weights = all_experts ? cost.weights : less(cost.weights, cost.experts),
                       .kv = cost.page,
                       .state = cost.state,
                       .formats = formats_of(matrices),
                       .why = {}});
  }

  // Adds a row for the experts that are in a device's memory, if not all of its experts are.
  void add_expert_row(const PlacedDevice& device) {
    if (device.expert_bytes == kAllExperts) return;
    p_.rows.push_back({.name = "experts in memory", .device = device.id, .weights = device.expert_bytes, .formats = {}, .why = {}});
  }

  // Adds the stage of layers [first, last), which run on the device that was added last. The experts of the first `away` layers are
  // elsewhere.
  void add_stage(const Parts& parts, std::size_t first, std::size_t last, std::size_t away) {
    p_.stages.push_back({.device = p_.devices.size() - 1, .first = first, .last = last, .away = away});
    if (first == 0) add_row("embedding", parts.embedding, embedding().matrices);
    for (std::size_t l = first; l < last; ++l) add_row(str("layer ", l), layer_cost(parts, first, l, away), layer(l).matrices);
    add_expert_row(p_.devices.back());
    if (last != layers_) return;
    if (generates_) add_row(tied_ ? "head (the embedding)" : "head", head_beside(parts, first == 0), programs_.head().matrices);
    p_.ranks = parts.ranks;
    if (parts.sketch.weights > 0) add_row("sketch of the head", parts.sketch, {});
    if (drafts(away)) {
      p_.drafts = true;
      std::vector<bool> used = programs_.draft(layers_ - 1, false).matrices;
      const std::vector<bool>& of_logits = programs_.draft_logits().matrices;
      for (std::size_t m = 0; d_.assistant && m < used.size(); ++m) used[m] = used[m] || of_logits[m];
      add_row(d_.assistant ? "assistant" : "draft head", draft_beside(parts, first), used);
    } else if (d_.drafts()) {
      p_.why_no_draft = "the experts of some of its layers are on another device, and an assistant then does not run";
      p_.notes.push_back(str("the assistant is not used: ", p_.why_no_draft));
    }
    if (has_modules()) add_row(d_.modules.empty() ? "projection" : "modules", parts.modules, end(Output::pooled).matrices);
    if (d_.labels > 0) add_row("classifier", parts.classifier, end(Output::classes).matrices);
    if (d_.gives_sparse()) add_row("MLM head", parts.sparse, end(Output::sparse).matrices);
  }

  // Adds a device and a stage of layers [first, last) that lie wholly on it.
  void stage(const Parts& parts, std::size_t first, std::size_t last) {
    add_device(parts, cost(parts, first, last), least_experts(parts, first, last), 0);
    add_stage(parts, first, last, 0);
  }
  static bool is_gpu(const DeviceInfo& device) { return device.type != DeviceType::cpu; }

  std::string formats_of(const std::vector<bool>& used) const {
    std::set<std::string_view> names;
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (used[i]) names.insert(name(d_.weights.matrices[i].format));
    }
    std::string text;
    for (std::string_view n : names) text += (text.empty() ? "" : ", ") + std::string(n);
    return text;
  }

  template <class... Parts>
  void problem(ErrorKind kind, const Parts&... parts) {
    if (!p_.problem) p_.problem = Error(kind, str(parts...));  // later problems follow from the first one
  }

  // Checks that everything fits, plans the caches, and returns the placement. `wanted` is the number of cache pages for which room was left
  // when the GPU got its layers; 0 if no GPU takes part.
  Placement finish(std::uint64_t wanted) {
    if (options_.expert_cache && !experts_on_cpu_) {
      require(!options_.gpu_experts, "expert_cache=", *options_.expert_cache, ": no experts are on the CPU");
      p_.notes.push_back("expert_cache is not used: all experts are on the GPU");
    }
    if (hosts_.size() > 1) {
      Bound together{.name = "", .kind = ErrorKind::out_of_memory, .free = 0, .cost = {}};
      for (const Bound& host : hosts_) {
        together.name += str(together.name.empty() ? "" : " and ", host.name);
        together.free = std::max(together.free, host.free);
        const std::uint64_t scratch = add(together.cost.scratch, host.cost.scratch);
        together.cost = both(together.cost, host.cost);
        together.cost.scratch = scratch;
      }
      bounds_.push_back(std::move(together));
    }
    for (const PlacedDevice& device : p_.devices) {
      p_.weights = add(p_.weights, device.weights);
      p_.scratch = add(p_.scratch, device.scratch);
      p_.kv_page = add(p_.kv_page, device.kv_page);
      p_.state = add(p_.state, device.state);
    }
    std::uint64_t host = 0;  // free memory of the machine, counted once because its devices share it
    for (const Bound& bound : hosts_) host = std::max(host, bound.free);
    for (const PlacedDevice& device : p_.devices) {
      if (!device.in_host_memory) p_.memory_free = add(p_.memory_free, device.memory_free);
    }
    p_.memory_free = add(p_.memory_free, host);
    for (const Bound& bound : bounds_) {
      if (add(bound.cost.weights, bound.cost.scratch) <= bound.free) continue;
      problem(bound.kind, p_.devices.size() == 1 ? "the model" : str("what lies on ", bound.name), " needs ", mib(bound.cost.weights),
              " for weights and ", mib(bound.cost.scratch), " for scratch; ", mib(bound.free),
              " of memory is free. Take a smaller quantization, or close other programs");
    }
    if (p_.kv_page > 0 || p_.state > 0) plan_caches(wanted);
    for (PlacementRow& row : p_.rows) row.kv = times(row.kv, pages_for(p_.n_ctx));
    return std::move(p_);
  }

  // ---------------------------------------------------------------- keys and values
  // How many cache pages fit beside the weights. A page id means the same positions on every device, so all devices have the same number of
  // pages, and the memory with the least room decides. `pages` is the number of pages that fit into the free memory, and `quarter` is the
  // number that fit into a quarter of it.
  struct Room {
    std::uint64_t pages, quarter;
    const Bound* tightest;
  };
  Room room() const {
    Room room{UINT64_MAX, UINT64_MAX, nullptr};
    for (const Bound& bound : bounds_) {
      if (!keeps_past(bound.cost)) continue;
      const std::uint64_t pages = units(bound.cost).pages_in(bound.room());
      if (!room.tightest || pages < room.pages) room.tightest = &bound;
      room.pages = std::min(room.pages, pages);
      room.quarter = std::min(room.quarter, units(bound.cost).pages_in(bound.room() / 4));
    }
    return room;
  }

  // Sets kv_budget, and lowers n_ctx if the budget holds fewer positions. One sequence needs pages for n_ctx positions. An automatic budget
  // holds four such sequences or takes a quarter of the free memory, whichever is less, but it holds at least the `wanted` pages if they
  // fit.
  void plan_caches(std::uint64_t wanted) {
    const Room free = room();
    const CacheUnits cache{p_.kv_page, p_.state};
    const std::uint64_t asked = pages_for(p_.n_ctx);
    const std::string left =
        str(mib(free.tightest->room()), " free after weights", p_.devices.size() == 1 ? "" : " on " + free.tightest->name);
    if (options_.kv_budget) {
      p_.kv_budget = *options_.kv_budget;
      if (cache.pages_in(p_.kv_budget) > free.pages) {
        problem(free.tightest->kind, "kv_budget of ", mib(p_.kv_budget), " asked for, ", left, "; give a smaller kv_budget");
      }
    } else {
      std::uint64_t pages = std::max(std::min(wanted, free.pages), std::min(free.quarter, 4 * asked));
      if (options_.n_ctx && asked > pages) pages = asked;
      p_.kv_budget = cache.bytes_for(pages);
      if (pages > free.pages) {
        problem(free.tightest->kind, "n_ctx=", p_.n_ctx, " needs ", mib(units(free.tightest->cost).bytes_for(pages)), " for ",
                kept(free.tightest->cost), ", ", left, "; give a smaller n_ctx, or kv_dtype=\"q8_0\"");
      }
    }
    const std::int64_t fits = static_cast<std::int64_t>(std::min<std::uint64_t>(cache.pages_in(p_.kv_budget), 1u << 26)) * kPageTokens;
    if (fits < kPageTokens) {
      problem(free.tightest->kind, "kv_budget of ", p_.kv_budget, " bytes holds not even ", kPageTokens, " positions (", cache.bytes_for(1),
              " bytes)");
    } else if (fits < p_.n_ctx && options_.n_ctx) {
      problem(free.tightest->kind, "n_ctx=", p_.n_ctx, " needs ", mib(cache.bytes_for(asked)), " for ",
              p_.state == 0 ? "keys and values" : "keys, values and states", ", kv_budget is ", mib(p_.kv_budget),
              "; give a larger kv_budget, a smaller n_ctx, or kv_dtype=\"q8_0\"");
    } else if (fits < p_.n_ctx) {
      p_.notes.push_back(str("n_ctx is ", fits, ", not the model's ", p_.n_ctx, ": kv_budget of ", mib(p_.kv_budget),
                             " holds no more; set n_ctx or kv_budget"));
      p_.n_ctx = fits;
    }
  }

  const ModelPrograms& programs_;
  const Description& d_;
  const LoadOptions& options_;
  const std::size_t layers_;
  bool generates_ = false, tied_ = false;
  bool experts_on_cpu_ = false;  // a device that can read experts from the file has some
  std::int64_t rows_ = kPlannedRows;
  Placement p_;
  std::vector<Bound> bounds_, hosts_;
};

}  // namespace

Placement place(const ModelPrograms& programs, const Devices& devices, const LoadOptions& options) {
  return Placer(programs, options).on(devices);
}

Placement place_evenly(const ModelPrograms& programs, const std::vector<std::shared_ptr<Backend>>& backends, const LoadOptions& options) {
  return Placer(programs, options).evenly(backends);
}

}  // namespace pumice::engine
