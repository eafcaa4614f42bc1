#include "engine/admission.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "engine/snapshots.h"

namespace pumice::engine {
namespace {

using Life = Sequence::Life;

// Lower bound of Plan::prompt_rows while a prompt is unfinished. It ensures that prompts make progress even if many sequences decode.
constexpr std::int64_t kPromptRows = 32;
// If Limits::step_seconds limits a step, the number of its rows is a multiple of kTileRows, because a single row more would take as long as
// a whole tile. 12 is a multiple of the tile heights of all kernels (4 and 6 rows).
constexpr std::int64_t kTileRows = 12;
constexpr std::int64_t kSharedRows = 16;  // takes the place of kPromptRows in a step that Limits::step_seconds limits

std::uint64_t at_stage(std::uint64_t prefix, std::int64_t stage) {
  return prefix + static_cast<std::uint64_t>(stage) * 0x94d049bb133111ebull;
}

}  // namespace

Plan Admission::plan(std::span<const std::shared_ptr<RequestState>> requests, const Limits& limits) {
  plan_ = {};
  gather(requests, limits.running);
  follow_rope();
  make_room();
  const auto running = std::ranges::count_if(live_, [](const Sequence* s) { return s->life == Life::running; });
  const bool shared = others_decode();
  const std::int64_t most = runtime_.pace.most();
  std::int64_t wanted = runtime_.pace.rows();
  if (shared) {
    const std::int64_t all = runtime_.pace.rows_within(limits.step_seconds, kSharedRows) + running;
    wanted = std::max(kSharedRows, all / kTileRows * kTileRows - running);
  }
  const std::int64_t prefill = std::max<std::int64_t>(0, std::min<std::int64_t>(wanted, most - running));
  std::int64_t unfinished = 0;
  for (const Sequence* s : live_) unfinished += s->reads_prompt() ? s->pending() : 0;
  admit(prefill - unfinished);
  const bool prompts = std::ranges::any_of(live_, [](const Sequence* s) { return s->reads_prompt(); });
  plan_.prompt_rows = prompts ? std::max(prefill, std::min(shared ? kSharedRows : kPromptRows, (most + 1) / 2)) : 0;
  plan_.decode_rows = most - plan_.prompt_rows;
  if (shared) plan_.text_price = runtime_.pace.text_price();
  make_guess_room(plan_.decode_rows);
  refuse_hopeless();
  plan_.live = live_;
  return std::move(plan_);
}

// ---------------------------------------------------------------- who takes part
// Collects the sequences that may take part in the step. At most `places` requests take part. A sequence takes no part if its request is
// beyond that limit, if its reader lags (Sequence::lags), or if its caller is changing its logits. A running sequence that takes no part is
// parked.
void Admission::gather(std::span<const std::shared_ptr<RequestState>> requests, std::int32_t places) {
  PagePool& pool = *runtime_.pages;
  live_.clear();
  for (const auto& request : requests) {
    bool takes_part = false;
    for (Sequence& s : request->sequences) {
      if (s.ended() || s.life == Life::held) continue;
      if (s.lags() || s.shown() || places == 0) {
        if (s.life != Life::running) continue;
        pool.park(s.table);
        s.life = Life::parked;
        continue;
      }
      if (s.life == Life::parked) {
        const bool kept = pool.unpark(s.table);
        s.life = kept ? Life::running : Life::waiting;
        if (!kept) s.computed = 0;
      }
      live_.push_back(&s);
      takes_part = true;
    }
    places -= takes_part;
  }
}

// Makes a sequence start again from its first token, once, when it has grown beyond the model's original context. This is necessary because
// LongRoPE rotates longer texts with other frequencies.
void Admission::follow_rope() {
  for (Sequence* s : live_) {
    if (!runtime_.rope_outgrown(s->length, static_cast<std::int64_t>(s->ids.size()))) continue;
    s->length = static_cast<std::int32_t>(s->ids.size());
    if (s->life == Life::running) s->start_again(*runtime_.pages);
  }
}

// Returns whether a request decodes while another request has prompt tokens to compute.
bool Admission::others_decode() const {
  const RequestState* decodes = nullptr;
  bool several = false;
  for (const Sequence* s : live_) {
    if (!s->decodes()) continue;
    several = several || (decodes && decodes != s->request);
    decodes = s->request;
  }
  return decodes && std::ranges::any_of(live_, [&](const Sequence* s) {
           return (s->life == Life::waiting || s->reads_prompt()) && (several || s->request != decodes);
         });
}

bool Admission::failed(const Sequence& sequence) const {
  return std::ranges::any_of(plan_.failed, [&](const auto& each) { return each.first->request == sequence.request; });
}

// ---------------------------------------------------------------- pages
Sequence* Admission::last_running(std::int32_t below) const {
  const auto last = std::find_if(live_.rbegin(), live_.rend(), [](const Sequence* s) { return s->life == Life::running; });
  return last != live_.rend() && (*last)->params->priority < below ? *last : nullptr;
}

void Admission::preempt(Sequence& sequence) {
  sequence.start_again(*runtime_.pages);
  ++plan_.preempted;
}

// Allocates pages for every running sequence, up to its next token. If no page is left, preempts running sequences, the last one first.
void Admission::make_room() {
  for (Sequence* s : live_) {
    try {
      while (s->life == Life::running && !runtime_.pages->extend(s->table, static_cast<std::int64_t>(s->ids.size())))
        preempt(*last_running(std::numeric_limits<std::int32_t>::max()));
    } catch (...) {
      fail(*s);
    }
  }
}

void Admission::comes(Sequence& s) {
  if (!s.reads_prompt()) return;
  const std::vector<std::uint64_t>& hashes = s.prompt->page_hashes(s.ids);
  for (auto page = static_cast<std::size_t>(s.computed / kPageTokens); page < hashes.size(); ++page)
    if (!runtime_.pages->has_states() || is_snapshot(s, static_cast<std::int64_t>(page + 1) * kPageTokens))
      on_their_way_.insert(at_stage(hashes[page], runtime_.rope_stage(s.length)));
}

// Returns true if a running sequence will soon have computed a prompt page that `s` could share. `s` should then wait for that page. Pages
// are compared by a hash of the text up to the end of the page. If two different texts have the same hash, `s` waits a few steps in vain,
// which does no other harm.
bool Admission::prefix_on_its_way(Sequence& s) {
  if (on_their_way_.empty() || s.sharable() == 0) return false;
  const std::vector<std::uint64_t>& hashes = s.prompt->page_hashes(s.ids);
  const std::int64_t stage = runtime_.rope_stage(s.length);
  for (std::size_t page = hashes.size(); page-- > 0;)
    if (on_their_way_.contains(at_stage(hashes[page], stage)))
      return (static_cast<std::int64_t>(page) + 1) * kPageTokens > runtime_.pages->cached_tokens(s.ids, stage);
  return false;
}

// Acquires pages for a waiting sequence. If too few pages are free, preempts running sequences of lower priority, the last one first.
// Leaves one spare page for each running sequence, because the new sequence would otherwise soon be preempted. Returns false if the pages
// still do not suffice.
bool Admission::find_pages(Sequence& s, std::int64_t& running) {
  PagePool& pool = *runtime_.pages;
  std::optional<std::int32_t> reused;
  while (!(reused = pool.acquire(s.table, s.ids, s.sharable(), running, runtime_.rope_stage(s.length)))) {
    Sequence* const lower = last_running(s.params->priority);
    if (!lower) return false;
    preempt(*lower);
    --running;
  }
  s.computed = *reused;
  if (s.task && s.task->wants_room()) {
    s.life = Life::held;
    plan_.held.push_back(&s);
    return true;
  }
  s.life = Life::running;
  ++running;
  if (s.prompt->reused < 0 && !s.task) {
    s.prompt->reused = *reused;
    pool.count_prompt(s.prompt->tokens, *reused);
  }
  return true;
}

// Admits waiting sequences in order until their prompts fill `rows_left` rows, or until there are no pages for the next sequence.
void Admission::admit(std::int64_t rows_left) {
  if (rows_left <= 0 || std::ranges::none_of(live_, [](const Sequence* s) { return s->life == Life::waiting; })) return;
  on_their_way_.clear();
  std::int64_t running = 0;
  for (Sequence* s : live_) {
    running += s->life == Life::running;
    comes(*s);
  }
  for (Sequence* s : live_) {
    if (rows_left <= 0) return;
    if (s->life != Life::waiting || failed(*s) || prefix_on_its_way(*s)) continue;
    try {
      if (!find_pages(*s, running)) return;
      rows_left -= s->reads_prompt() ? s->pending() : s->decodes();
      comes(*s);
    } catch (...) {
      fail(*s);
    }
  }
}

// If no sequence runs, fails each waiting sequence for which even an empty pool would be too small. The request of such a sequence was
// accepted while the pool's budget was larger. The budget shrinks if a device refuses to grow its cache.
void Admission::refuse_hopeless() {
  if (std::ranges::any_of(live_, [](const Sequence* s) { return s->life == Life::running; })) return;
  for (Sequence* s : live_) {
    if (s->life != Life::waiting || failed(*s)) continue;
    try {
      runtime_.pages->check_fits(static_cast<std::int64_t>(s->ids.size()));
    } catch (...) {
      fail(*s);
    }
  }
}

// ---------------------------------------------------------------- guesses
std::int64_t Admission::guesses_wanted(const Sequence& s, std::int64_t decoding, std::int64_t rows_left) const {
  const Speculation& how = s.params->speculation;
  const std::int64_t room = std::min({rows_left, static_cast<std::int64_t>(how.most), s.params->max_new_tokens - s.generated() - 1,
                                      s.context - static_cast<std::int64_t>(s.ids.size()) - 1});
  if (room <= 0 || how.always) return room;
  const double extra = how.drafter ? how.drafter->seconds_per_guess() : s.guesses->own ? cost_.own_guess() : 0;
  return s.guesses->wanted(cost_, decoding, extra, static_cast<std::int32_t>(room));
}

// Decides how many guesses (draft tokens) each decoding sequence may have in this step (Sequence::guess_room), and allocates pages for
// them. Decode rows and guesses together stay within kGuessedRows and `most_rows`, because more rows do not make decoding faster.
void Admission::make_guess_room(std::int64_t most_rows) {
  const auto decoding = std::ranges::count_if(live_, [](const Sequence* s) { return s->decodes(); });
  std::int64_t left = std::min(kGuessedRows, most_rows) - decoding;
  for (Sequence* s : live_) {
    s->guess_room = 0;
    if (!s->guesses || !s->decodes() || s->generated() < 1) continue;
    std::int64_t wanted = guesses_wanted(*s, decoding, left);
    try {
      while (wanted > 0 && !runtime_.pages->extend(s->table, static_cast<std::int64_t>(s->ids.size()) + wanted, wanted + 1)) wanted /= 2;
    } catch (const Error&) {  // the device cannot grow its cache; make_room() reports this when a chosen token needs the page
      continue;
    }
    if (wanted <= 0) continue;
    s->guess_room = static_cast<std::int32_t>(wanted);
    left -= wanted;
  }
}

}  // namespace pumice::engine
