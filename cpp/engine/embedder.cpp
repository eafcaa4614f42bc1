#include "engine/embedder.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <numeric>
#include <vector>

#include "core/checked.h"
#include "core/error.h"
#include "core/finite.h"

namespace pumice::engine {
namespace {

constexpr std::int64_t kMostTokens = 1 << 20;
// Intended duration of a round of run_all(), in seconds. A round occupies the device. So it must be short enough that other calls can run
// in between, and long enough that its start and end cost little.
constexpr double kRoundSeconds = 0.1;

std::int64_t length(const Texts& texts, std::int64_t i) { return texts.offsets[i + 1] - texts.offsets[i]; }

void check(const Runtime& runtime, const Texts& texts) {
  require(!texts.offsets.empty(), "offsets is empty; needed: one more than there are texts");
  require(texts.types.empty() || texts.types.size() == texts.ids.size(), "there are ", texts.types.size(), " type ids for ",
          texts.ids.size(), " tokens");
  const auto count = static_cast<std::int64_t>(texts.offsets.size()) - 1;
  require(texts.offsets.front() >= 0 && texts.offsets.back() <= static_cast<std::int64_t>(texts.ids.size()), "offsets run from ",
          texts.offsets.front(), " to ", texts.offsets.back(), ", outside the ", texts.ids.size(), " ids");
  require(texts.unseen.empty() || static_cast<std::int64_t>(texts.unseen.size()) == count, "there are ", texts.unseen.size(),
          " numbers of unseen tokens for ", count, " texts");
  for (std::int64_t i = 0; i < count; ++i) {
    require(texts.offsets[i] < texts.offsets[i + 1], "text ", i, " has no tokens: offsets ", texts.offsets[i], " and ",
            texts.offsets[i + 1]);
    require(texts.offsets[i + 1] <= texts.offsets.back(), "offsets are not ascending at text ", i);
    if (length(texts, i) > runtime.n_ctx)
      fail(ErrorKind::context_length, "text ", i, " has ", length(texts, i), " tokens, the model takes ", runtime.n_ctx, ": shorten it");
    require(texts.prompt >= 0 && texts.prompt < length(texts, i), "text ", i, " has ", length(texts, i), " tokens, and a prompt of ",
            texts.prompt, " leaves none to pool");
    const std::int32_t unseen = texts.unseen.empty() ? 0 : texts.unseen[i];
    require(unseen >= 0 && unseen < length(texts, i), "text ", i, " has ", length(texts, i), " tokens, of which ", unseen,
            " are unseen; one must be seen");
    const auto first = static_cast<std::size_t>(texts.offsets[i]), size = static_cast<std::size_t>(length(texts, i));
    runtime.check_ids(texts.ids.subspan(first, size), "text", i);
    if (texts.types.empty()) continue;
    for (const std::int32_t type : texts.types.subspan(first, size))
      require(type >= 0 && type < std::max(1, runtime.types), "text ", i, ": type id ", type, "; this model's are 0 to ",
              std::max(1, runtime.types) - 1);
  }
}

// The indices of the texts in the order in which they run, divided into micro-batches. Batch b is order[first[b] .. first[b + 1]).
struct MicroBatches {
  std::vector<std::int64_t> order, first;
  std::int64_t batches() const { return static_cast<std::int64_t>(first.size()) - 1; }
  std::span<const std::int64_t> members(std::int64_t b) const { return std::span(order).subspan(first[b], first[b + 1] - first[b]); }

  std::int64_t most_texts = 1;  // maximum number of texts in a micro-batch

  // Divides the texts of batch b and of all later batches anew, into batches of at most token_budget tokens.
  void cut(const Texts& texts, std::int64_t b, std::int64_t token_budget) {
    const auto begin = b < static_cast<std::int64_t>(first.size()) ? static_cast<std::size_t>(first[b]) : 0;
    first.resize(static_cast<std::size_t>(b));
    std::int64_t tokens = 0;
    for (std::size_t i = begin; i < order.size(); ++i) {
      const std::int64_t more = length(texts, order[i]);
      if (i == begin || tokens + more > token_budget || full(i)) {
        first.push_back(static_cast<std::int64_t>(i));
        tokens = 0;
      }
      tokens += more;
    }
    first.push_back(static_cast<std::int64_t>(order.size()));
  }
  // Returns true if the last micro-batch has most_texts texts already, so that text order[i] must begin a new one.
  bool full(std::size_t i) const { return static_cast<std::int64_t>(i) - first.back() >= most_texts; }
};

// Sorts the texts by length and divides them into micro-batches. If token_budget is not 0, it is the maximum number of tokens in a
// micro-batch. Otherwise the maximum is batch_rows(), and the texts are divided into rounds, with one micro-batch for each worker.
//
// The workers compute the micro-batches of a round at the same time, so these get nearly the same size. For example, 8 texts with 217
// tokens in all took a fifth longer in micro-batches of 144 and 73 tokens than in two of about 109 tokens. Each round has a size of its
// own, because one size for all rounds depends on the longest of all texts. With one size, a single text of 158 tokens among 500 sentences
// made all micro-batches as small as 72 tokens, and one of two workers waited for the other 8.7 % of the time, instead of 2.3 %.
MicroBatches pack(const Runtime& runtime, const Texts& texts, std::int64_t token_budget) {
  MicroBatches plan;
  plan.most_texts = std::max<std::int64_t>(1, kMostPooled / runtime.pipeline.hidden_size());
  plan.order.resize(texts.offsets.size() - 1);
  std::iota(plan.order.begin(), plan.order.end(), std::int64_t{0});
  std::stable_sort(plan.order.begin(), plan.order.end(),
                   [&](std::int64_t a, std::int64_t b) { return length(texts, a) > length(texts, b); });
  const std::int64_t all = texts.offsets.back() - texts.offsets.front(), most = runtime.pipeline.batch_rows();
  if (token_budget > 0 || all <= most) {
    plan.cut(texts, 0, token_budget > 0 ? token_budget : most);
    return plan;
  }
  const std::int64_t workers = std::max(1, runtime.pipeline.narrowest().workers());
  std::int64_t left = all;
  for (std::size_t i = 0; i < plan.order.size();) {
    // Divides the remaining tokens, in the order of the texts, into equal ranges, one for each batch that is still needed. This round takes
    // one range per worker. A text belongs to the batch whose range contains the middle of the text. So batches differ in size by at most
    // one text.
    const std::int64_t longest = length(texts, plan.order[i]), mean = std::max<std::int64_t>(1, most / longest) * longest;
    const double share = static_cast<double>(left) / static_cast<double>(round_up(ceil_div(left, mean), workers));
    std::int64_t before = 0, tokens = 0, batches = 0;
    for (double batch = -1; i < plan.order.size(); ++i) {
      const std::int64_t more = length(texts, plan.order[i]);
      const double own = std::floor((static_cast<double>(before) + 0.5 * static_cast<double>(more)) / share);
      if (own != batch || tokens + more > most || plan.full(i)) {
        if (batches++ == workers) break;
        plan.first.push_back(static_cast<std::int64_t>(i));
        tokens = 0;
      }
      batch = own;
      before += more;
      tokens += more;
    }
    left -= before;
  }
  plan.first.push_back(static_cast<std::int64_t>(plan.order.size()));
  return plan;
}

struct Scratch {
  std::vector<std::int32_t> ids, types, selected;
  std::vector<Segment> segments;
  std::vector<float> rows;
};

// A function that copies the rows computed for a text to the caller's memory.
using Deliver = std::function<void(std::int64_t text, std::span<const float> rows)>;

void run_batch(const Runtime& runtime, const Texts& texts, std::span<const std::int64_t> members, Rows unit, RunSpace& space,
               Scratch& scratch, const Deliver& deliver, const Cancel& cancel) {
  scratch.ids.clear();
  scratch.types.clear();
  scratch.segments.clear();
  for (const std::int64_t text : members) {
    const auto from = static_cast<std::size_t>(texts.offsets[text]), size = static_cast<std::size_t>(length(texts, text));
    const auto first = static_cast<std::int32_t>(scratch.ids.size()), rows = static_cast<std::int32_t>(size);
    const std::int32_t unseen = texts.unseen.empty() ? 0 : texts.unseen[static_cast<std::size_t>(text)];
    scratch.segments.push_back({.first = first, .rows = rows, .length = rows, .prompt = texts.prompt, .unseen = unseen});
    const auto append = [&](std::vector<std::int32_t>& to, std::span<const std::int32_t> values) {
      if (!values.empty()) to.insert(to.end(), values.begin() + from, values.begin() + from + size);
    };
    append(scratch.ids, texts.ids);
    append(scratch.types, texts.types);
  }
  const bool by_token = unit == Rows::tokens;
  const auto width = static_cast<std::size_t>(runtime.pipeline.hidden_size());
  scratch.selected.resize(by_token ? scratch.ids.size() : 0);
  std::iota(scratch.selected.begin(), scratch.selected.end(), 0);
  const std::size_t values = (by_token ? scratch.ids.size() : members.size()) * width;
  if (scratch.rows.size() < values) scratch.rows.resize(values);
  const Batch batch{.rows = static_cast<std::int32_t>(scratch.ids.size()),
                    .ids = scratch.ids,
                    .types = scratch.types,
                    .segments = scratch.segments,
                    .selected = scratch.selected};
  runtime.pipeline.body(space, nullptr, batch, std::span(scratch.rows).first(values), cancel);
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Segment& segment = scratch.segments[i];
    const std::size_t first = by_token ? segment.first : i, count = by_token ? segment.rows : 1;
    deliver(members[i], std::span<const float>(scratch.rows).subspan(first * width, count * width));
  }
}

// Runs all micro-batches. As long as at least one micro-batch per worker is left, each worker computes micro-batches of its own. The last
// micro-batches run one after another, each on all workers. Both ways compute the same bits.
//
// Only an attempt shows whether a micro-batch fits into the memory of a GPU, because other processes use that memory too. If a micro-batch
// does not fit, this micro-batch and all later ones are divided anew, into micro-batches of at most half its tokens.
void run_all(Runtime& runtime, EncodeCounts::Turn& turn, const Texts& texts, MicroBatches plan, Rows unit, const Deliver& deliver,
             const TextsDone& progress, const Cancel& cancel) {
  Backend& device = runtime.pipeline.narrowest();
  const std::int64_t workers = std::max(1, device.workers());
  std::vector<Scratch> scratch(static_cast<std::size_t>(workers));
  std::int64_t next = 0;
  double seconds_per_batch = 0;
  while (next < plan.batches()) {
    cancel.check();
    const auto start = std::chrono::steady_clock::now();
    std::int64_t round = 1;
    if (workers == 1 || plan.batches() - next < workers) {
      const auto lease = runtime.spaces.take(Crew::team, cancel);
      const EncodeCounts::Run run(turn);
      try {
        run_batch(runtime, texts, plan.members(next), unit, lease[0], scratch[0], deliver, cancel);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::out_of_device_memory || plan.members(next).size() == 1) throw;
        plan.cut(texts, next, static_cast<std::int64_t>(scratch[0].ids.size()) / 2);
        continue;
      }
    } else {
      const double fit = seconds_per_batch > 0 ? kRoundSeconds / seconds_per_batch * static_cast<double>(workers) : 0;
      round = std::clamp(static_cast<std::int64_t>(std::min(fit, 65536.0)) / workers * workers, workers, plan.batches() - next);
      const auto lease = runtime.spaces.take(Crew::solo, cancel);
      const EncodeCounts::Run run(turn);
      device.parallel(
          round,
          [&](std::int64_t job, int worker) {
            run_batch(runtime, texts, plan.members(next + job), unit, lease[worker], scratch[worker], deliver, cancel);
          },
          cancel);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      const std::int64_t turns = (round + workers - 1) / workers;  // number of micro-batches per worker
      seconds_per_batch = seconds / static_cast<double>(turns);
    }
    std::int64_t tokens = 0;
    for (std::int64_t i = plan.first[next]; i < plan.first[next + round]; ++i) tokens += length(texts, plan.order[i]);
    runtime.encode_counts->done(plan.first[next + round] - plan.first[next], tokens, round);
    next += round;
    if (progress) progress(plan.first[next]);
  }
}

// Copies of the texts, cut after their end token if pooling takes the row of that token (model::TextEnd). The tokens after the end token
// need not be computed, because in causal attention a row does not attend to later tokens.
class EndedTexts {
 public:
  EndedTexts(const Texts& texts, const std::optional<model::TextEnd>& end) : texts_(texts) {
    if (!end) return;
    offsets_.push_back(0);
    for (std::size_t i = 0; i + 1 < texts.offsets.size(); ++i) {
      const auto first = static_cast<std::size_t>(texts.offsets[i]);
      const auto ids = texts.ids.subspan(first, static_cast<std::size_t>(length(texts, static_cast<std::int64_t>(i))));
      const auto at = end->id ? std::ranges::find(ids, *end->id) : std::ranges::max_element(ids);
      const std::size_t count = std::min(ids.size(), static_cast<std::size_t>(at - ids.begin()) + 1);
      ids_.insert(ids_.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count));
      if (!texts.types.empty()) {
        const auto types = texts.types.subspan(first, count);
        types_.insert(types_.end(), types.begin(), types.end());
      }
      offsets_.push_back(static_cast<std::int64_t>(ids_.size()));
    }
    texts_ = {.ids = ids_, .offsets = offsets_, .types = types_, .prompt = texts_.prompt};
  }
  const Texts& get() const { return texts_; }

 private:
  std::vector<std::int32_t> ids_, types_;
  std::vector<std::int64_t> offsets_;
  Texts texts_;
};

// Thrown for a text whose result is not finite. run_call() catches it after the run, and throws an error that names the layer where values
// are first not finite.
struct NotFinite : Error {
  explicit NotFinite(std::int64_t text) : Error(ErrorKind::numeric, "a text's result is not finite"), text(text) {}
  std::int64_t text;
};

// Returns the error for the text with index `text` in `texts`. The error's message gives `shown`, the caller's index of the text. If
// `cancel` is not null, the text is computed again to find the layer where values are first not finite.
Error not_a_number(const Runtime& runtime, const Texts& texts, std::int64_t text, std::int64_t shown, const Cancel* cancel) {
  const auto first = static_cast<std::size_t>(texts.offsets[static_cast<std::size_t>(text)]);
  const auto of_text = [&](std::span<const std::int32_t> all) {
    return all.empty() ? all : all.subspan(first, static_cast<std::size_t>(length(texts, text)));
  };
  return {ErrorKind::numeric, str("the result of text ", shown, " holds a NaN or an infinity", kWhyNotFinite,
                                  cancel ? runtime.where_not_finite(of_text(texts.ids), of_text(texts.types), *cancel) : std::string())};
}

// Runs all texts of a call (run_all). `token_budget` is that of encode(). If the result of a text is not finite, throws the error that
// not_a_number() returns.
void run_call(Runtime& runtime, EncodeCounts::Turn& turn, const Texts& texts, std::int64_t token_budget, Rows unit, const Deliver& deliver,
              const TextsDone& progress, const Cancel& cancel) {
  try {
    run_all(runtime, turn, texts, pack(runtime, texts, token_budget), unit, deliver, progress, cancel);
  } catch (const NotFinite& error) {
    throw not_a_number(runtime, texts, error.text, error.text, &cancel);
  }
}

}  // namespace

namespace {

void check_out(const Runtime& runtime, const Texts& texts, std::span<float> out, std::int32_t d) {
  const std::size_t count = texts.offsets.size() - 1;
  require(d >= 1 && d <= runtime.pipeline.hidden_size(), "vectors of this model have ", runtime.pipeline.hidden_size(),
          " values; asked for: ", d);
  require(out.size() == count * static_cast<std::size_t>(d), "encode: the result has room for ", out.size(), " values, needed: ", count,
          " x ", d);
}

void check_budget(std::int64_t token_budget) {
  require(token_budget >= 0 && token_budget <= kMostTokens, "token_budget must be between 1 and ", kMostTokens, " (0: automatic), not ",
          token_budget);
}

// Copies the first out.size() values of a pooled row to `out`, scaled to length 1 if `normalize` is set. Returns false if a value is not
// finite.
bool take_row(std::span<const float> row, bool normalize, std::span<float> out) {
  double squares = 0;  // a sum of squared floats cannot overflow a double
  for (std::size_t i = 0; i < out.size(); ++i) squares += static_cast<double>(row[i]) * row[i];
  if (!std::isfinite(squares)) return false;
  const double scale = normalize && squares > 0 ? 1.0 / std::sqrt(squares) : 1.0;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(row[i] * scale);
  return true;
}

}  // namespace

void encode(Runtime& runtime, const Texts& given, std::span<float> out, std::int32_t d, bool normalize, std::int64_t token_budget,
            const TextsDone& progress, const Cancel& cancel) {
  EncodeCounts::Turn turn(*runtime.encode_counts, cancel);
  check(runtime, given);
  const EndedTexts ended(given, runtime.text_end);
  const Texts& texts = ended.get();
  check(runtime, texts);  // checks again, because EndedTexts may have cut a text inside of its prompt, which leaves no row to pool
  check_out(runtime, texts, out, d);
  check_budget(token_budget);
  if (texts.offsets.size() == 1) return;
  const auto width = static_cast<std::size_t>(d);
  const auto deliver = [&](std::int64_t text, std::span<const float> row) {
    if (!take_row(row, normalize, out.subspan(static_cast<std::size_t>(text) * width, width))) throw NotFinite(text);
  };
  run_call(runtime, turn, texts, token_budget, Rows::segments, deliver, progress, cancel);
}

void check_call(const Runtime& runtime, const EncodeCall& call) {
  check(runtime, call.texts);
  const EndedTexts ended(call.texts, runtime.text_end);
  check(runtime, ended.get());
  check_out(runtime, call.texts, call.out, call.d);
}

void encode_together(Runtime& runtime, std::span<EncodeCall* const> calls, EncodeCounts::Turn& turn, const Cancel& cancel) {
  std::vector<std::int32_t> ids, types;
  std::vector<std::int64_t> offsets{0};
  std::vector<std::int64_t> first;  // index of the first text of each call
  for (const EncodeCall* call : calls) {
    const EndedTexts ended(call->texts, runtime.text_end);
    const Texts& texts = ended.get();
    const std::int64_t skipped = texts.offsets.front(), at = offsets.back() - skipped;
    const auto from = static_cast<std::size_t>(skipped), size = static_cast<std::size_t>(texts.offsets.back() - skipped);
    first.push_back(static_cast<std::int64_t>(offsets.size()) - 1);
    for (std::size_t i = 1; i < texts.offsets.size(); ++i) offsets.push_back(texts.offsets[i] + at);
    const auto append = [&](std::vector<std::int32_t>& to, std::span<const std::int32_t> values) {
      to.insert(to.end(), values.begin() + static_cast<std::ptrdiff_t>(from), values.begin() + static_cast<std::ptrdiff_t>(from + size));
    };
    append(ids, texts.ids);
    if (!texts.types.empty()) append(types, texts.types);
  }
  const Texts texts{.ids = ids, .offsets = offsets, .types = types, .prompt = calls.front()->texts.prompt};
  if (offsets.size() == 1) return;
  std::mutex found;
  std::vector<std::int64_t> not_finite;  // indices of the texts whose results are not finite
  const auto call_of = [&](std::int64_t text) {
    return static_cast<std::size_t>(std::upper_bound(first.begin(), first.end(), text) - first.begin() - 1);
  };
  const auto deliver = [&](std::int64_t text, std::span<const float> row) {
    const std::size_t which = call_of(text);
    const EncodeCall& call = *calls[which];
    const auto mine = static_cast<std::size_t>(text - first[which]), width = static_cast<std::size_t>(call.d);
    if (take_row(row, call.normalize, call.out.subspan(mine * width, width))) return;
    const std::lock_guard lock(found);
    not_finite.push_back(text);
  };
  run_all(runtime, turn, texts, pack(runtime, texts, 0), Rows::segments, deliver, {}, cancel);
  std::ranges::sort(not_finite);
  for (const std::int64_t text : not_finite) {
    const std::size_t which = call_of(text);
    if (calls[which]->error) continue;
    const bool looks = text == not_finite.front();  // computes only one text again to find the layer, because other calls wait meanwhile
    calls[which]->error = std::make_exception_ptr(not_a_number(runtime, texts, text, text - first[which], looks ? &cancel : nullptr));
  }
}

namespace {

struct SparseRow {
  std::vector<std::int32_t> indices;
  std::vector<float> values;
};

// Converts a row of logits to a sparse vector. Returns false if a logit is not finite.
bool cut_row(std::span<const float> logits, const SparseCut& cut, SparseRow& out) {
  std::vector<std::int32_t>& ids = out.indices;
  bool finite = true;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    finite = finite && std::isfinite(logits[i]);
    if (logits[i] > 0) ids.push_back(static_cast<std::int32_t>(i));
  }
  if (!finite) return false;
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  if (const auto most = static_cast<std::size_t>(cut.most); most > 0 && ids.size() > most) {
    const auto before = [&](std::int32_t a, std::int32_t b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; };
    std::ranges::nth_element(ids, ids.begin() + static_cast<std::ptrdiff_t>(most), before);
    ids.resize(most);
    std::ranges::sort(ids);
  }
  ids.shrink_to_fit();
  out.values.reserve(ids.size());
  for (const std::int32_t id : ids) {
    double value = logit(id);
    for (int i = 0; i < cut.logs; ++i) value = std::log1p(value);
    out.values.push_back(static_cast<float>(value));
  }
  return true;
}

}  // namespace

SparseRows encode_sparse(Runtime& runtime, const Texts& texts, const SparseCut& cut, std::int64_t token_budget, const TextsDone& progress,
                         const Cancel& cancel) {
  EncodeCounts::Turn turn(*runtime.encode_counts, cancel);
  check(runtime, texts);
  check_budget(token_budget);
  require(cut.most >= 0 && cut.most <= runtime.vocab, "a sparse vector of this model has at most ", runtime.vocab,
          " values; asked for: ", cut.most);
  require(cut.logs == 1 || cut.logs == 2, "a value is the logarithm of a logit once or twice, not ", cut.logs, " times");
  std::vector<SparseRow> found(texts.offsets.size() - 1);
  const auto deliver = [&](std::int64_t text, std::span<const float> row) {
    if (!cut_row(row, cut, found[static_cast<std::size_t>(text)])) throw NotFinite(text);
  };
  if (!found.empty()) run_call(runtime, turn, texts, token_budget, Rows::segments, deliver, progress, cancel);
  SparseRows all;
  all.offsets.push_back(0);
  for (const SparseRow& row : found) all.offsets.push_back(all.offsets.back() + std::ssize(row.values));
  all.indices.reserve(static_cast<std::size_t>(all.offsets.back()));
  all.values.reserve(static_cast<std::size_t>(all.offsets.back()));
  for (SparseRow& row : found) {
    all.indices.insert(all.indices.end(), row.indices.begin(), row.indices.end());
    all.values.insert(all.values.end(), row.values.begin(), row.values.end());
    row = {};  // frees the copied row at once, so that the vectors are not in memory twice
  }
  return all;
}

void encode_tokens(Runtime& runtime, const Texts& texts, std::span<float> out, const TextsDone& progress, const Cancel& cancel) {
  EncodeCounts::Turn turn(*runtime.encode_counts, cancel);
  check(runtime, texts);
  const auto width = static_cast<std::size_t>(runtime.pipeline.hidden_size());
  const auto tokens = static_cast<std::size_t>(texts.offsets.back() - texts.offsets.front());
  require(out.size() == tokens * width, "encode_tokens: the result has room for ", out.size(), " values, needed: ", tokens, " x ", width);
  if (texts.offsets.size() == 1) return;
  const auto deliver = [&](std::int64_t text, std::span<const float> rows) {
    if (!std::all_of(rows.begin(), rows.end(), [](float x) { return std::isfinite(x); })) throw NotFinite(text);
    std::copy(rows.begin(), rows.end(), out.begin() + (texts.offsets[text] - texts.offsets.front()) * static_cast<std::int64_t>(width));
  };
  run_call(runtime, turn, texts, 0, Rows::tokens, deliver, progress, cancel);
}

}  // namespace pumice::engine
