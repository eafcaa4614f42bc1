#include "engine/calibration.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <set>

#include "core/error.h"

namespace pumice::engine {
namespace {

using model::ModelProgram;
using model::Output;

// Maximum number of token rows in a batch. A text with more tokens runs alone, in a larger batch. In larger batches, the sums of products
// (quantize::Products) take less time per row, but the rows take more memory.
constexpr std::int32_t kBatchRows = 1024;
constexpr std::int64_t kRowsRead = 64;  // number of rows of a matrix that one job reads from the file
// most_bytes() multiplies the sum of all buffers by 1 + 1/kKeptByMalloc, because malloc keeps freed memory. A model with 16 layers of 61
// million weights each took 1.12 times that sum.
constexpr std::uint64_t kKeptByMalloc = 8;
constexpr auto kPiece = std::chrono::milliseconds(40);  // intended maximum duration of a call of Backend::parallel()

// Returns a function that runs jobs in several calls of Backend::parallel(), each shorter than about kPiece, because a device runs nothing
// else during such a call.
quantize::Parallel in_pieces(Backend& backend, const Cancel& cancel) {
  return [&backend, &cancel](std::int64_t jobs, const std::function<void(std::int64_t)>& job) {
    std::int64_t count = backend.workers();
    for (std::int64_t first = 0, next = 0; first < jobs; first = next) {
      next = std::min(jobs, first + count);
      const auto begun = Cancel::Clock::now();
      backend.parallel(next - first, [&](std::int64_t index, int) { job(first + index); }, cancel);
      cancel.check();
      if (Cancel::Clock::now() - begun < kPiece / 2) count *= 2;
    }
  };
}

std::int64_t rows_of(const std::vector<std::vector<std::int32_t>>& texts) {
  std::int64_t rows = 0;
  for (const auto& text : texts) rows += static_cast<std::int64_t>(text.size());
  return rows;
}

std::int64_t longest_batch(const CalibrationTexts& texts) {
  std::size_t longest = kBatchRows;
  for (const auto* some : {&texts.seen, &texts.held}) {
    for (const auto& text : *some) longest = std::max(longest, text.size());
  }
  return static_cast<std::int64_t>(longest);
}

void check_texts(const CalibrationTexts& texts, std::int64_t n_ctx) {
  require(!texts.seen.empty() && !texts.held.empty(), "calibration: there are ", texts.seen.size(), " texts, and ", texts.held.size(),
          " that are kept back; one of each is needed");
  for (const auto* some : {&texts.seen, &texts.held}) {
    for (const auto& text : *some) {
      require(!text.empty(), "calibration: a text has no tokens");
      if (n_ctx > 0 && static_cast<std::int64_t>(text.size()) > n_ctx)
        fail(ErrorKind::context_length, "calibration: a text of ", text.size(), " tokens; the model takes ", n_ctx);
    }
  }
  require(rows_of(texts.seen) + rows_of(texts.held) <= std::int64_t{1} << 30, "calibration: more than 2^30 tokens");
}

}  // namespace

Calibration::Calibration(std::shared_ptr<Backend> backend, std::shared_ptr<const files::ModelFile> file, CalibrationTexts texts,
                         const std::vector<Wanted>& wanted)
    : backend_(std::move(backend)),
      file_(std::move(file)),
      texts_(std::move(texts)),
      // Compute::float32 keeps activations unquantized, so that only the file's own weights determine the rows.
      description_(model::describe(file_, {.quantize = {}, .compute = Compute::float32, .draft = false, .task = {}, .lora = {}})),
      programs_(description_) {
  check_texts(texts_, description_.config.n_ctx);
  find_places(wanted);
  bytes_ = most_bytes(wanted);
}

void Calibration::find_places(const std::vector<Wanted>& wanted) {
  std::map<std::string, std::set<Place>> found;
  std::set<std::string> otherwise;  // tensors that are also used by operations whose inputs are not known
  const auto& matrices = description_.weights.matrices;
  const std::size_t layers = description_.config.layers.size();
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const ModelProgram& program = programs_.products(layer);
    std::vector<bool> others = program.matrices;
    for (std::size_t input = 0; input < program.inputs.size(); ++input) {
      for (const MatrixId id : program.inputs[input].matrices) {
        found[description_.matrix(id).name].emplace(layer, input);
        others[static_cast<std::size_t>(id)] = false;
      }
    }
    for (std::size_t id = 0; id < others.size(); ++id) {
      if (others[id]) otherwise.insert(matrices[id].name);
    }
    needed_.emplace_back(program.inputs.size());
  }
  for (const Wanted& each : wanted) {
    const auto known = found.find(each.tensor);
    if (known == found.end() || known->second.size() != 1 || otherwise.contains(each.tensor)) continue;
    const Place place = *known->second.begin();
    const files::TensorInfo* tensor = file_->find(each.tensor);
    // Skips every tensor that is not a matrix with rows of the input's width, for example a matrix that the file stores transposed.
    const auto cols = programs_.products(place.first).inputs[place.second].width;
    if (!tensor || !tensor->format || tensor->shape.size() != 2 || tensor->shape[1] != cols) continue;
    places_.emplace(each.tensor, place);
    needed_[place.first][place.second] = true;
  }
}

std::uint64_t Calibration::most_bytes(const std::vector<Wanted>& wanted) const {
  const std::int64_t rows = rows_of(texts_.seen) + rows_of(texts_.held), batch = longest_batch(texts_);
  const auto floats = [](std::int64_t count, std::int64_t width) { return static_cast<std::uint64_t>(count * width) * sizeof(float); };
  std::vector<std::uint64_t> products(needed_.size()), packing(needed_.size());
  for (const Wanted& each : wanted) {
    const auto place = places_.find(each.tensor);
    if (place == places_.end()) continue;
    const files::TensorInfo& tensor = *file_->find(each.tensor);
    const std::int64_t cols = tensor.shape[1], count = tensor.shape[0];
    const std::uint64_t bytes = floats(count, cols) + static_cast<std::uint64_t>(count * row_bytes(each.format, cols)) +
                                quantize::CalibratedPacker::bytes(cols, count, each.format);
    packing[place->second.first] = std::max(packing[place->second.first], bytes);
  }
  std::uint64_t most = 0;
  for (std::size_t layer = 0; layer < needed_.size(); ++layer) {
    const ModelProgram& program = programs_.products(layer);
    for (std::size_t input = 0; input < needed_[layer].size(); ++input) {
      if (needed_[layer][input]) products[layer] += quantize::Input::bytes(program.inputs[input].width);
    }
    const Cost cost = backend_->cost(program.program, programs_.shapes(), KvFormat::f16, batch);
    const std::int64_t out = programs_.layer(layer).output_width;
    const std::uint64_t running =
        cost.weights + cost.scratch + floats(rows, out) + floats(batch, program.output_width + program.input_width) + products[layer];
    most = std::max(most, floats(rows, program.input_width) + running);
    most = std::max(most, floats(rows, out) + products[layer] + packing[layer]);
  }
  return most + most / kKeptByMalloc;
}

Calibration::Place Calibration::place_of(const std::string& tensor) const {
  const auto place = places_.find(tensor);
  require(place != places_.end(), "calibration: it is not known what ", tensor, " is multiplied with");
  return place->second;
}

// Throws out_of_memory if less than bytes_ is free. The message says how many tokens would fit. Only two buffers get smaller with fewer
// tokens, and they are the hidden rows that a layer reads and those that it writes.
void Calibration::require_room() const {
  const std::uint64_t free = backend_->info().memory_free;
  if (bytes_ <= free) return;
  const auto tokens = static_cast<std::uint64_t>(rows_of(texts_.seen) + rows_of(texts_.held));
  std::uint64_t each = 0;
  for (std::size_t layer = 0; layer < needed_.size(); ++layer) {
    const ModelProgram& program = programs_.layer(layer);
    each = std::max(each, static_cast<std::uint64_t>(program.input_width + program.output_width) * sizeof(float));
  }
  const std::uint64_t more = bytes_ - free;
  const bool fits = each > 0 && more / each + 1 < tokens;
  fail(ErrorKind::out_of_memory, file_->path(), ": calibration takes up to ", bytes_ >> 20, " MiB, and ", free >> 20, " MiB are free; ",
       fits ? str("with ", tokens - more / each - 1, " tokens in place of ", tokens, " it fits")
            : std::string("fewer tokens are not enough, because of the largest layer"));
}

// Runs a program on all texts, batch by batch. Returns the first `kept` columns of its output rows. Calls `look` with all columns of each
// batch.
std::vector<float> Calibration::run(const ModelProgram& program, std::int32_t kept, const Look& look, const Cancel& cancel) const {
  const Program* programs[] = {&program.program};
  const auto weights = backend_->pack(description_.weights, programs, {}, cancel);
  const auto executable = backend_->prepare(program.program, weights, Compute::float32, cancel);
  const auto space = backend_->make_workspace(Crew::team);
  std::vector<float> result(static_cast<std::size_t>(rows_of(texts_.seen) + rows_of(texts_.held)) * static_cast<std::size_t>(kept)), out;
  const auto width_in = static_cast<std::size_t>(program.input_width), width_out = static_cast<std::size_t>(program.output_width);
  std::size_t done = 0;  // number of rows computed so far
  for (const bool held : {false, true}) {
    const auto& texts = held ? texts_.held : texts_.seen;
    for (std::size_t next = 0; next < texts.size();) {
      std::vector<std::int32_t> ids;
      std::vector<Segment> segments;
      while (next < texts.size() && (ids.empty() || ids.size() + texts[next].size() <= kBatchRows)) {
        const auto count = static_cast<std::int32_t>(texts[next].size());
        segments.push_back({.first = static_cast<std::int32_t>(ids.size()), .rows = count, .length = count});
        ids.insert(ids.end(), texts[next].begin(), texts[next].end());
        ++next;
      }
      out.resize(ids.size() * width_out);
      const auto in =
          width_in == 0 ? std::span<const float>() : std::span<const float>(rows_).subspan(done * width_in, ids.size() * width_in);
      const auto count = static_cast<std::int32_t>(ids.size());
      executable->run(*space, nullptr, {.rows = count, .ids = ids, .segments = segments}, {.in = in, .out = out}, cancel);
      if (!std::ranges::all_of(out, [](float value) { return std::isfinite(value); })) {
        fail(ErrorKind::numeric, file_->path(), ": ", program.program.name,
             ": a NaN or an infinity for a text. The file is damaged, or its activations are too large for float32");
      }
      for (std::size_t row = 0; row < ids.size(); ++row)
        std::copy_n(out.begin() + static_cast<std::ptrdiff_t>(row * width_out), kept,
                    result.begin() + static_cast<std::ptrdiff_t>((done + row) * static_cast<std::size_t>(kept)));
      if (look) look(out, count, held);
      done += ids.size();
    }
  }
  return result;
}

void Calibration::embed(const Cancel& cancel) {
  const ModelProgram& program = programs_.body(0, 0, Output::hidden);
  rows_ = run(program, program.output_width, {}, cancel);
  at_ = 0;
}

// Runs layer `layer` on rows_, which then holds the input of the next layer. If `gathers` is true, also computes the sums of products
// (quantize::Products) for those inputs that are marked in needed_.
void Calibration::pass(std::size_t layer, bool gathers, const Cancel& cancel) {
  const std::int32_t kept = programs_.layer(layer).output_width;
  std::vector<std::unique_ptr<quantize::Input>> inputs;
  Look look;
  const ModelProgram& program = gathers ? programs_.products(layer) : programs_.layer(layer);
  const quantize::Parallel parallel = in_pieces(*backend_, cancel);
  if (gathers) {
    for (std::size_t i = 0; i < program.inputs.size(); ++i)
      inputs.push_back(needed_[layer][i] ? std::make_unique<quantize::Input>(program.inputs[i].width) : nullptr);
    look = [&](std::span<const float> rows, std::int32_t count, bool held) {
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (!inputs[i]) continue;
        quantize::Products& products = held ? inputs[i]->held : inputs[i]->seen;
        products.add(rows.data() + program.inputs[i].col, count, program.output_width, parallel, cancel);
      }
    };
  }
  rows_ = run(program, kept, look, cancel);
  at_ = layer + 1;
  if (!gathers) return;
  inputs_ = std::move(inputs);
  gathered_ = layer;
}

const quantize::Input& Calibration::input_at(const Place& place, const Cancel& cancel) {
  const auto [layer, number] = place;
  if (gathered_ != layer) {
    packer_.reset();
    inputs_.clear();
    gathered_.reset();
    if (!at_ || *at_ > layer) {
      if (!at_) require_room();
      at_.reset();
      embed(cancel);
    }
    while (*at_ < layer) pass(*at_, false, cancel);
    pass(layer, true, cancel);
  }
  return *inputs_[number];
}

const quantize::Input& Calibration::input(const std::string& tensor, const Cancel& cancel) {
  const std::lock_guard lock(mutex_);
  return input_at(place_of(tensor), cancel);
}

Calibration::Packed Calibration::pack(const std::string& tensor, Format format, const Cancel& cancel) {
  const std::lock_guard lock(mutex_);
  const Place place = place_of(tensor);
  cancel.check();
  const quantize::Input& input = input_at(place, cancel);
  if (!packer_ || packs_ != place) {
    packer_.reset();
    packer_ = std::make_unique<quantize::CalibratedPacker>(input);
    packs_ = place;
  }
  const files::TensorInfo& source = *file_->find(tensor);
  const std::int64_t rows = source.shape[0], cols = source.shape[1], width = row_bytes(*source.format, cols);
  const quantize::Parallel parallel = in_pieces(*backend_, cancel);
  std::vector<float> weights(static_cast<std::size_t>(rows * cols));
  parallel((rows + kRowsRead - 1) / kRowsRead, [&](std::int64_t job) {
    const std::int64_t first = job * kRowsRead, count = std::min(kRowsRead, rows - first);
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count * width));
    file_->read(source, static_cast<std::uint64_t>(first * width), bytes.size(), bytes.data());
    unpack(*source.format, bytes.data(), count * cols, weights.data() + first * cols);
  });
  file_->require_unchanged();
  Packed packed{.rows = std::vector<std::uint8_t>(static_cast<std::size_t>(rows * row_bytes(format, cols))), .losses = {}};
  packed.losses = packer_->pack(format, weights.data(), rows, packed.rows.data(), parallel, cancel);
  return packed;
}

}  // namespace pumice::engine
