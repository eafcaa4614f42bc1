#include "engine/scheduler.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace pumice::engine {
namespace {

using Clock = std::chrono::steady_clock;
using State = Sequence::State;

constexpr std::int64_t kPromptRows = 32;  // of a step that prompts get at least, however many sequences decode
constexpr std::int64_t kTileRows = 12;  // whole tiles of every kernel (4 and 6 rows): a row more or two take as long as a tile
constexpr std::int64_t kSharedRows = 16;  // of prompts at least, in a step of Limits::step_seconds
constexpr std::int64_t kGuessedRows = 64;  // of sequences that decode and their guesses: more of them are prompts to a device
constexpr auto kReading = std::chrono::microseconds(500);  // of those who have been told news, before the next step

}  // namespace

Scheduler::Scheduler(Runtime& runtime)
    : runtime_(runtime),
      crowded_(static_cast<unsigned>(runtime.pipeline.widest().workers()) >= std::thread::hardware_concurrency()),
      at_fork_({.before = [this] { mutex_.lock(); },
                .in_parent = [this] { mutex_.unlock(); },
                .in_child = [this] { forget_parent(); mutex_.unlock(); }}) {}

Scheduler::~Scheduler() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
    if (cancel_) cancel_->request();
    wake_->notify_all();
  }
  if (thread_) thread_->join();
}

std::shared_ptr<Request> Scheduler::request(const std::vector<std::vector<std::int32_t>>& prompts, std::span<const GenerateParams> params) {
  auto request = std::make_shared<Request>(*this, runtime_, prompts, params);
  return {request.get(), [request](Request* closed) {
            try {
              closed->close();
            } catch (...) {  // no memory for the bookkeeping: the tables still give their pages back
            }
          }};
}

// ---------------------------------------------------------------- requests come and go
void Scheduler::check_room() const {
  const auto there = static_cast<std::int64_t>(requests_.size()), most = std::int64_t{limits_.running} + limits_.waiting;
  if (there >= most)
    fail(ErrorKind::overloaded, "the model has ", there, " requests at work or waiting, and its limits are ", limits_.running, " and ",
         limits_.waiting, ": try again later, or raise them with set_limits()");
}

void Scheduler::join(Request& request) {
  if (request.left_behind_)
    fail(ErrorKind::forked_device, "this was at work in another thread when the process forked; call again in the child");
  if (request.joined_ || request.ended()) return;
  parents_.clear();
  if (request.forked_) revive(request);
  if (!thread_) {
    try {
      thread_ = std::make_unique<std::thread>([this] { work(); });
    } catch (const std::system_error& error) {
      fail(ErrorKind::out_of_memory, "the engine's thread cannot be started (", error.what(),
           "): raise the limit of processes (ulimit -u)");
    }
  }
  const auto behind = std::find_if(requests_.begin(), requests_.end(),
                                   [&](const auto& each) { return each->priority() < request.priority(); });
  requests_.insert(behind, request.shared_from_this());
  request.joined_ = true;
  look_again();
}

void Scheduler::look_again() {
  changed_ = true;
  wake_->notify_one();
}

void Scheduler::has_read(Reader& reader) {
  if (!std::exchange(reader.reading, false)) return;
  reader.quick = Clock::now() - reader.told_at < kReading;
  if (crowded_) wake_->notify_one();
}

void Scheduler::tell(Request& request) {
  if (!request.ready()) return;
  if (request.waiting_ > 0) {
    request.news_->notify_all();
    request.reader_ = {.reading = !request.ended(), .quick = request.reader_.quick, .told_at = Clock::now()};
  }
  if (!request.pumped_ || request.held_ || request.closed_ || std::exchange(request.queued_, true)) return;
  queue_.push_back(request.shared_from_this());
  if (pumping_ == 0) return;
  pump_->notify_one();
  pump_reader_ = {.reading = true, .quick = pump_reader_.quick, .told_at = Clock::now()};
}

std::vector<RequestNews> Scheduler::pump(double max_ms) {
  require(max_ms >= 0, "max_ms must be at least 0, not ", max_ms);
  const std::chrono::duration<double, std::milli> most(std::min(max_ms, 1e9));
  std::vector<std::shared_ptr<Request>> told;
  std::vector<RequestNews> all;
  Lock lock(mutex_);
  has_read(pump_reader_);
  ++pumping_;
  pump_->wait_for(lock, most, [&] { return !queue_.empty() || pump_woken_; });
  --pumping_;
  pump_woken_ = false;
  told.swap(queue_);
  for (const auto& request : told) {
    request->queued_ = false;
    if (request->closed_ || request->held_) continue;
    all.push_back({request->tag_, request->collect(), request->ended()});
    request->pumped_ = !request->ended();
  }
  lock.unlock();  // before the last holder of a request lets it go
  return all;
}

void Scheduler::wake_pump() {
  const std::lock_guard lock(mutex_);
  pump_woken_ = true;
  pump_->notify_all();
}

void Scheduler::set_limits(const Limits& limits) {
  require(limits.running >= 1, "running must be at least 1, not ", limits.running);
  require(limits.waiting >= 0, "waiting must be at least 0, not ", limits.waiting);
  require(limits.step_seconds > 0 && limits.step_seconds <= 1e6, "step_seconds must be more than 0 and at most 1e6, not ",
          limits.step_seconds);
  const std::lock_guard lock(mutex_);
  limits_ = limits;
  look_again();
}

Limits Scheduler::limits() const {
  const std::lock_guard lock(mutex_);
  return limits_;
}

SchedulerStats Scheduler::stats() const {
  const std::lock_guard lock(mutex_);
  SchedulerStats stats = counts_;
  for (const auto& request : requests_) {
    const auto any = [&](auto&& holds) { return std::any_of(request->sequences_.begin(), request->sequences_.end(), holds); };
    if (any([](const Sequence& s) { return s.state == State::runs && !s.parked; })) {
      ++stats.running;
    } else if (any([](const Sequence& s) { return s.state == State::waits && !s.lags(); })) {
      ++stats.waiting;
    } else if (any([](const Sequence& s) { return s.state != State::ended; })) {
      ++stats.lagging;
    }
  }
  return stats;
}

void Scheduler::drop(Sequence& sequence) {
  if (sequence.state == State::ended) return;
  if (sequence.in_step) {
    sequence.dropped = true;
    const auto& parts = step_->parts();
    const bool unwanted = std::all_of(parts.begin(), parts.end(), [](const Step::Part& p) { return p.sequence->request->closed_; });
    if (unwanted) cancel_->request();
    return;
  }
  end(sequence, Finish::none);
}

void Scheduler::drop(Request& request) {
  for (Sequence& s : request.sequences_) drop(s);
  if (request.ended()) {
    const auto me = std::find_if(requests_.begin(), requests_.end(), [&](const auto& each) { return each.get() == &request; });
    if (me != requests_.end()) {
      request.joined_ = false;
      requests_.erase(me);  // its caller holds it
    }
  }
  tell(request);
}

void Scheduler::end(Sequence& sequence, Finish finish) {
  Sequence* const heir = sequence.request->heir(sequence);
  sequence.state = State::ended;
  sequence.parked = false;
  sequence.news.finish = finish;
  runtime_.pages->release(sequence.table, sequence.known());
  sequence.computed = 0;
  give_up_drafted(sequence);
  sequence.guesses.reset();
  if (heir) heir->state = State::waits;  // it computes the prompt in its place
  look_again();
}

void Scheduler::start_again(Sequence& sequence) {
  runtime_.pages->release(sequence.table, sequence.known());
  sequence.computed = 0;
  sequence.state = State::waits;
}

Sequence* Scheduler::last_running(std::int32_t below) {
  const auto last = std::find_if(live_.rbegin(), live_.rend(), [](const Sequence* s) { return s->state == State::runs; });
  return last != live_.rend() && (*last)->params->priority < below ? *last : nullptr;
}

void Scheduler::fail_request(Request& request, std::exception_ptr error) {
  if (!request.error_) request.error_ = std::move(error);
  for (Sequence& s : request.sequences_) {
    if (s.in_step) {
      s.dropped = true;
    } else if (s.state != State::ended) {
      end(s, Finish::none);
    }
  }
}

// ---------------------------------------------------------------- pages
// Who has not ended and does not sit out, first come, first. Pages of those who sit out are anybody's (PagePool::park).
void Scheduler::gather() {
  live_.clear();
  std::erase_if(requests_, [this](const std::shared_ptr<Request>& request) {
    if (!request->ended()) return false;
    request->joined_ = false;
    tell(*request);
    return true;
  });
  std::int32_t places = limits_.running;
  for (const auto& request : requests_) {
    request->lagging_ = false;
    bool takes_part = false;
    for (Sequence& s : request->sequences_) {
      if (s.state == State::ended) continue;
      request->lagging_ = request->lagging_ || s.lags();
      if (s.lags() || s.shown() || places == 0) {
        if (!s.parked && s.state == State::runs) {
          runtime_.pages->park(s.table);
          s.parked = true;
        }
        continue;
      }
      if (s.parked) {
        s.parked = false;
        if (!runtime_.pages->unpark(s.table)) {
          s.computed = 0;
          s.state = State::waits;
        }
      }
      live_.push_back(&s);
      takes_part = true;
    }
    places -= takes_part;
  }
}

// Sequences that have outgrown the lengths for which their keys turned are computed anew, once.
void Scheduler::follow_rope() {
  for (Sequence* s : live_) {
    if (!runtime_.rope_outgrown(s->length, static_cast<std::int64_t>(s->ids.size()))) continue;
    s->length = static_cast<std::int32_t>(s->ids.size());
    if (s->state == State::runs) start_again(*s);
  }
}

// Every running sequence needs a page for its next token; where there is none, the last ones step back.
void Scheduler::make_room() {
  for (Sequence* s : live_) {
    try {
      while (s->state == State::runs && !runtime_.pages->extend(s->table, static_cast<std::int64_t>(s->ids.size()))) {
        start_again(*last_running(std::numeric_limits<std::int32_t>::max()));
        ++counts_.preempted;
      }
    } catch (...) {
      fail_request(*s->request, std::current_exception());
    }
  }
}

void Scheduler::note_prefixes(Sequence& s) {
  if (!s.prefixes.empty()) return;
  std::uint64_t hash = 0x9e3779b97f4a7c15ull;
  for (std::int32_t i = 0; i < s.prompt_tokens; ++i) {
    hash = (hash ^ static_cast<std::uint32_t>(s.ids[static_cast<std::size_t>(i)])) * 0xbf58476d1ce4e5b9ull;
    hash ^= hash >> 29;
    if ((i + 1) % kPageTokens == 0) s.prefixes.push_back(hash);
  }
}

namespace {

std::uint64_t at_stage(std::uint64_t prefix, std::int64_t stage) {
  return prefix + static_cast<std::uint64_t>(stage) * 0x94d049bb133111ebull;
}

}  // namespace

// Does a sequence that runs now compute a page that `sequence` could share a few steps later? Pages are compared by hashes of the text up
// to them: two texts of one hash cost the later one a few steps, and nothing else.
bool Scheduler::prefix_on_its_way(Sequence& s) {
  if (on_their_way_.empty()) return false;
  note_prefixes(s);
  const std::int64_t stage = runtime_.rope_stage(s.length);
  for (std::size_t page = s.prefixes.size(); page-- > 0;)
    if (on_their_way_.contains(at_stage(s.prefixes[page], stage)))
      return (static_cast<std::int64_t>(page) + 1) * kPageTokens > runtime_.pages->cached_tokens(s.ids, stage);
  return false;
}

void Scheduler::admit(std::int64_t rows_left) {
  if (rows_left <= 0 || std::none_of(live_.begin(), live_.end(), [](const Sequence* s) { return s->state == State::waits; })) return;
  PagePool& pool = *runtime_.pages;
  on_their_way_.clear();
  const auto comes = [&](Sequence& s) {
    if (!s.reads_prompt()) return;
    note_prefixes(s);
    for (auto page = static_cast<std::size_t>(s.computed / kPageTokens); page < s.prefixes.size(); ++page)
      on_their_way_.insert(at_stage(s.prefixes[page], runtime_.rope_stage(s.length)));
  };
  std::int64_t running = 0;
  for (Sequence* s : live_) {
    running += s->state == State::runs;
    comes(*s);
  }
  for (Sequence* sequence : live_) {
    if (rows_left <= 0) return;
    Sequence& s = *sequence;
    if (s.state != State::waits || prefix_on_its_way(s)) continue;
    try {
      // Those that run must be able to grow by a page each, or the newcomer would soon have to go again.
      std::optional<std::int32_t> reused;
      while (!(reused = pool.acquire(s.table, s.ids, true, running, runtime_.rope_stage(s.length)))) {
        Sequence* const lower = last_running(s.params->priority);
        if (!lower) return;
        start_again(*lower);
        ++counts_.preempted;
        --running;
      }
      s.computed = *reused;
      s.state = State::runs;
      ++running;
      rows_left -= s.pending();
      comes(s);
      std::int32_t& first_time = s.request->reused_tokens_[static_cast<std::size_t>(s.index / s.params->n)];
      if (first_time < 0) {
        first_time = *reused;
        pool.count_prompt(s.prompt_tokens, *reused);
      }
    } catch (...) {
      fail_request(*s.request, std::current_exception());
    }
  }
}

// Guesses that pay, for as many sequences as there are rows (a step with more of them decodes no faster), and their pages.
void Scheduler::make_guess_room(std::int64_t most_rows) {
  const auto decodes = std::count_if(live_.begin(), live_.end(), [](const Sequence* s) { return s->decodes(); });
  std::int64_t left = std::min(kGuessedRows, most_rows) - decodes;
  for (Sequence* sequence : live_) {
    Sequence& s = *sequence;
    s.guess_room = 0;
    if (!s.guesses || !s.decodes() || s.generated() < 1) continue;
    const Speculation& how = s.params->speculation;
    const auto size = static_cast<std::int64_t>(s.ids.size());
    std::int64_t room = std::min({left, static_cast<std::int64_t>(how.most), s.params->max_new_tokens - s.generated() - 1,
                                  s.context - size - 1});
    if (room > 0 && !how.always)
      room = s.guesses->wanted(cost_, decodes, how.drafter ? how.drafter->seconds_per_guess() : 0, static_cast<std::int32_t>(room));
    while (room > 0 && runtime_.rope_outgrown(s.length, size + room)) --room;
    try {
      if (room <= 0 || !runtime_.pages->extend(s.table, size + room)) continue;
    } catch (const Error&) {  // a device that cannot grow its cache; make_room() says so where it matters
      continue;
    }
    s.guess_room = static_cast<std::int32_t>(room);
    left -= room;
  }
}

// ---------------------------------------------------------------- a step
// Does one request decode while another one has a prompt to be read?
bool Scheduler::others_decode() const {
  const Request* decodes = nullptr;
  bool several = false;
  for (const Sequence* s : live_) {
    if (!s->decodes()) continue;
    several = several || (decodes && decodes != s->request);
    decodes = s->request;
  }
  return decodes && std::any_of(live_.begin(), live_.end(), [&](const Sequence* s) {
           return (s->state == State::waits || s->reads_prompt()) && (several || s->request != decodes);
         });
}

bool Scheduler::plan() {
  changed_ = hungry_ = false;
  take_answers();
  gather();
  follow_rope();
  make_room();
  const auto running = std::count_if(live_.begin(), live_.end(), [](const Sequence* s) { return s->state == State::runs; });
  const bool shared = others_decode();
  const std::int64_t most = runtime_.pace.most();
  std::int64_t wanted = runtime_.pace.rows();
  if (shared) {
    const std::int64_t all = runtime_.pace.rows_within(limits_.step_seconds, kSharedRows) + running;
    wanted = std::max(kSharedRows, all / kTileRows * kTileRows - running);
  }
  const std::int64_t prefill = std::max<std::int64_t>(0, std::min<std::int64_t>(wanted, most - running));
  std::int64_t unfinished = 0;
  for (const Sequence* s : live_) unfinished += s->reads_prompt() ? s->pending() : 0;
  admit(prefill - unfinished);
  const bool prompts = std::any_of(live_.begin(), live_.end(), [](const Sequence* s) { return s->reads_prompt(); });
  const std::int64_t prompt_rows = prompts ? std::max(prefill, std::min(shared ? kSharedRows : kPromptRows, (most + 1) / 2)) : 0;
  make_guess_room(most - prompt_rows);
  step_->assemble(live_, most - prompt_rows, prompt_rows);
  if (!step_->parts().empty()) return true;
  for (Sequence* s : live_) {
    if (s->state != State::waits) continue;
    hungry_ = true;  // others hold the pages: a score() of a long text
    try {
      runtime_.pages->check_fits(static_cast<std::int64_t>(s->ids.size()));
    } catch (...) {
      fail_request(*s->request, std::current_exception());
    }
  }
  return false;
}

// Tokens from the logits that callers have changed. Between steps: the device computes others' rows while a caller works.
void Scheduler::take_answers() {
  for (const auto& request : requests_) {
    bool took = false;
    for (Sequence& s : request->sequences_) {
      if (s.state == State::ended || s.answer.empty()) continue;
      took = true;
      try {
        choose_answer(s);
      } catch (const Error& error) {
        const std::string what = str("sequence ", s.index, ", position ", s.ids.size(), ": ", error.what());
        fail_request(*request, std::make_exception_ptr(Error(error.kind(), what)));
      } catch (...) {
        fail_request(*request, std::current_exception());
      }
    }
    if (!took) continue;
    request->unread_steps_ += 1;
    request->sampled_ = false;
    if (request->waiting_ > 0 && request->ready()) request->news_->notify_all();
  }
}

void Scheduler::choose_answer(Sequence& s) {
  const std::vector<float> row = std::exchange(s.row, {});
  std::vector<float> answer = std::exchange(s.answer, {});
  std::vector<std::uint32_t> mask = std::exchange(s.left_by_answer, {}), scratch;
  for (const auto& filter : s.filters) {
    if (filter->open()) continue;
    scratch.resize(mask_words(static_cast<std::int64_t>(answer.size())));
    filter->mask(scratch);
    if (mask.empty()) mask.resize(scratch.size(), ~0u);
    std::transform(mask.begin(), mask.end(), scratch.begin(), mask.begin(), std::bit_and<>());
  }
  Choice choice;
  const Draw draw{s.draw.seed, s.draw.stream, static_cast<std::uint64_t>(s.generated())};
  answers_.choose(s.params->sampling, answer, s.seen, draw, choice, {.allowed = mask, .ids = s.ids, .mu = s.mu, .raw = row});
  take_token(s, choice);
}

void Scheduler::take_choice(Sequence& s, const Choice& choice) {
  if (s.params->shows_logits) {
    s.row = choice.row;
  } else {
    take_token(s, choice);
  }
}

void Scheduler::take_token(Sequence& s, const Choice& choice) {
  const GenerateParams& params = *s.params;
  s.request->sampled_ = true;
  if (std::find(params.eos_ids.begin(), params.eos_ids.end(), choice.id) != params.eos_ids.end()) return end(s, Finish::eos);
  s.news.ids.push_back(choice.id);
  if (params.sampling.logprobs >= 0) {
    s.news.top_count = params.sampling.logprobs;
    s.news.logprobs.push_back(choice.logprob);
    s.news.top_ids.insert(s.news.top_ids.end(), choice.top_ids.begin(), choice.top_ids.end());
    s.news.top_logprobs.insert(s.news.top_logprobs.end(), choice.top_logprobs.begin(), choice.top_logprobs.end());
  }
  s.ids.push_back(choice.id);
  s.mu = choice.mu;
  ++counts_.decoded_tokens;
  if (params.sampling.penalises()) s.see(choice.id, true);
  bool complete = false;
  for (const auto& filter : s.filters) {
    try {
      complete = !filter->accept(choice.id) || complete;
    } catch (...) {
      return fail_request(*s.request, std::current_exception());
    }
  }
  if (complete) return end(s, Finish::grammar);
  if (s.generated() >= params.max_new_tokens || static_cast<std::int64_t>(s.ids.size()) >= s.context) end(s, Finish::length);
}

// The tokens of a part's rows, as far as each was the one that the next row had guessed.
void Scheduler::take_choices(const Step::Part& part, double seconds) {
  Sequence& s = *part.sequence;
  std::size_t taken = 0;
  while (taken < part.chosen && s.state == State::runs && !s.dropped) {
    if (taken > 0) ++s.computed;
    take_choice(s, step_->choice(part.first_choice + taken++));
  }
  runtime_.pages->publish(s.table, s.known());
  s.request->decode_rows_ += static_cast<std::int64_t>(taken) - 1;
  s.request->timings_.drafted_tokens += static_cast<std::int64_t>(part.guesses.size());
  s.request->timings_.accepted_tokens += static_cast<std::int64_t>(taken) - 1;
  if (s.guesses) s.guesses->saw(cost_, decoding_, part.guesses.size(), taken - 1, seconds);
}

// Everything was computed and chosen: from here on the step counts.
void Scheduler::commit(double seconds) {
  PagePool& pool = *runtime_.pages;
  // What a guess cost: its row, and what the smaller models took.
  std::int64_t guesses = 0, prompts = 0;
  decoding_ = 0;
  for (const Step::Part& part : step_->parts()) {
    guesses += static_cast<std::int64_t>(part.guesses.size());
    (part.rows > 1 || part.sequence->generated() == 0 ? prompts : decoding_) += part.rows;
  }
  if (prompts == 0 && decoding_ + guesses <= kGuessedRows)
    cost_.saw(static_cast<std::int32_t>(decoding_ + guesses), seconds - step_->guess_seconds());
  const double guess_price = guesses == 0 ? 0 : cost_.row() + step_->guess_seconds() / static_cast<double>(guesses);
  for (const Step::Part& part : step_->parts()) {
    Request& request = *part.sequence->request;
    if (part.error) fail_request(request, std::make_exception_ptr(*part.error));
    (part.rows > 1 || part.sequence->generated() == 0 ? request.prompt_rows_ : request.decode_rows_) += part.rows;
  }
  for (const Step::Part& part : step_->parts()) {
    Sequence& s = *part.sequence;
    s.computed += part.rows;
    pool.publish(s.table, s.known());
    if (!part.samples || s.request->error_) continue;
    std::size_t choice = part.first_choice;
    // Followers first: they copy the first one's last page before it goes on in it.
    s.request->each_sharing(s, [&](Sequence& each) {
      const std::size_t mine = choice++;
      if (&each == &s || each.dropped) return;
      bool shared = false;
      try {
        shared = pool.fork(s.table, static_cast<std::int32_t>(s.computed), each.table);
      } catch (const Error&) {  // it computes its prompt itself; a device that cannot do that either says so there
      }
      each.state = shared ? State::runs : State::waits;
      each.computed = shared ? s.computed : 0;
      take_choice(each, step_->choice(mine));
    });
    if (!s.dropped && s.generated() == 0) {
      take_choice(s, step_->choice(part.first_choice));
    } else if (!s.dropped) {
      take_choices(part, static_cast<double>(part.guesses.size()) * guess_price);
    }
  }
  for (const auto& request : requests_) {
    Request& r = *request;
    const std::int64_t rows = r.prompt_rows_ + r.decode_rows_;
    if (rows > 0) {
      const double prompts = static_cast<double>(r.prompt_rows_) / static_cast<double>(rows);
      r.timings_.prefill_tokens += r.prompt_rows_;
      r.timings_.decode_tokens += r.decode_rows_;
      r.timings_.prefill_seconds += seconds * prompts;
      r.timings_.decode_seconds += seconds * (1 - prompts);
    }
    counts_.prompt_tokens += r.prompt_rows_;
    r.unread_steps_ += r.sampled_;
    r.prompt_rows_ = r.decode_rows_ = 0;
    r.sampled_ = false;
  }
}

// However the step ended: nothing reads its sequences any more.
void Scheduler::end_step() {
  cancel_.reset();
  for (const auto& request : requests_)
    for (Sequence& s : request->sequences_) {
      s.in_step = false;
      if (std::exchange(s.dropped, false) && s.state != State::ended) end(s, Finish::none);
    }
  step_->parts().clear();
  for (const auto& request : requests_) tell(*request);
}

// Where the device's threads have all cpus, a caller who wakes takes one away in the middle of a step, and all wait for the piece of
// work that it held (SmolLM2 on two cpus: 14 % of a token). So those who were back in a moment last time may read first.
void Scheduler::let_read(Lock& lock) {
  if (!crowded_) return;
  const bool all = wake_->wait_for(lock, kReading, [&] {
    const auto reads = [](const Reader& reader) { return reader.reading && reader.quick; };
    const bool some = std::any_of(requests_.begin(), requests_.end(), [&](const auto& r) { return reads(r->reader_); });
    return quit_ || !(some || reads(pump_reader_));
  });
  if (all) return;
  for (const auto& request : requests_)
    if (request->reader_.reading) request->reader_.quick = false;  // perhaps it never comes back
  if (pump_reader_.reading) pump_reader_.quick = false;
}

void Scheduler::run_step(Lock& lock) {
  const auto start = Clock::now();
  cancel_.emplace();
  std::exception_ptr failure;
  bool ran = false, lost = false;
  lock.unlock();
  try {
    ran = step_->run(runtime_, *cancel_);
  } catch (const Error& error) {
    lost = error.kind() == ErrorKind::device_lost;
    if (error.kind() != ErrorKind::cancelled) failure = std::current_exception();  // cancelled: all its requests are closed
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  counts_.busy_seconds += seconds;
  counts_.rows = step_->rows();
  ++counts_.steps;
  if (ran) commit(seconds);
  if (failure) {
    const auto& parts = step_->parts();
    for (const auto& request : requests_)
      if (lost || std::any_of(parts.begin(), parts.end(), [&](const auto& part) { return part.sequence->request == request.get(); }))
        fail_request(*request, failure);
  }
  end_step();
}

// Somebody else (score()) has found no room: for a moment all pages are to be had, as those who would only ever run do not stop for him.
void Scheduler::give_way(Lock& lock) {
  PagePool& pool = *runtime_.pages;
  for (const auto& request : requests_)
    for (Sequence& s : request->sequences_) {
      if (s.state != State::runs || s.parked) continue;
      pool.park(s.table);
      s.parked = true;
    }
  lock.unlock();
  pool.give_way(2);
  lock.lock();
}

void Scheduler::give_up_drafted(Sequence& sequence) {
  if (sequence.guesses && sequence.guesses->drafted) ended_.push_back(std::move(sequence.guesses->drafted));
}

// Under the lock, other models' locks are never taken: a fork takes them in another order.
void Scheduler::free_drafted(Lock& lock) {
  if (ended_.empty()) return;
  std::vector<std::unique_ptr<Drafted>> ended = std::exchange(ended_, {});
  lock.unlock();
  for (const auto& drafted : ended) drafted->drafter->release(*drafted);
  ended.clear();
  lock.lock();
}

void Scheduler::leave(std::exception_ptr error) {
  for (const auto& request : requests_) {
    fail_request(*request, error);
    tell(*request);
  }
}

void Scheduler::work() {
  ::pthread_setname_np(::pthread_self(), "pumice-engine");
  Lock lock(mutex_);
  while (!quit_) {
    try {
      const std::uint64_t seen = runtime_.pages->changes();
      if (plan()) {
        run_step(lock);
        let_read(lock);
        free_drafted(lock);
        if (runtime_.pages->waited_for()) give_way(lock);
      } else if (hungry_) {
        lock.unlock();
        runtime_.pages->wait(seen, 20);
        lock.lock();
      } else {
        free_drafted(lock);
        wake_->wait(lock, [this] { return quit_ || changed_; });
      }
    } catch (...) {  // no memory for the bookkeeping
      if (!lock.owns_lock()) lock.lock();
      end_step();
      leave(std::current_exception());
    }
  }
}

// ---------------------------------------------------------------- after a fork
// Nothing here gives pages back or destroys anything: other locks are still held by the fork.
void Scheduler::forget_parent() {
  (void)thread_.release();
  (void)wake_.release();
  (void)pump_.release();
  pump_ = std::make_unique<std::condition_variable>();
  pumping_ = 0;
  pump_woken_ = false;
  pump_reader_ = {};
  (void)step_.release();  // the parent's thread was at work in it
  wake_ = std::make_unique<std::condition_variable>();
  step_ = std::make_unique<Step>();
  cancel_.reset();
  live_.clear();
  for (const auto& request : requests_) {
    Request& r = *request;
    (void)r.news_.release();
    r.news_ = std::make_unique<std::condition_variable>();
    r.left_behind_ = r.waiting_ > 0 || r.pumped_;
    r.waiting_ = 0;
    r.reader_ = {};
    r.joined_ = false;
    r.forked_ = true;
    for (Sequence& s : r.sequences_) s.in_step = false;
  }
  parents_.insert(parents_.end(), requests_.begin(), requests_.end());
  parents_.insert(parents_.end(), queue_.begin(), queue_.end());
  requests_.clear();
  queue_.clear();
}

// What was parked has its pages here too; others compute theirs again, but for those that are known to the pool.
void Scheduler::revive(Request& request) {
  request.forked_ = false;
  for (Sequence& s : request.sequences_) {
    if (s.state == State::ended) continue;
    give_up_drafted(s);  // its pages may be the parent's: from here on it is guessed by lookups alone
    if (s.dropped) {
      s.dropped = false;
      end(s, Finish::none);
    } else if (s.state == State::runs && !s.parked) {
      start_again(s);
    }
  }
}

}  // namespace pumice::engine
