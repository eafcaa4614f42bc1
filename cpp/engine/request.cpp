#include "engine/request.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>

#include "core/error.h"
#include "engine/scheduler.h"

namespace pumice::engine {
namespace {

using Delivery = RequestState::Delivery;

}  // namespace

Request::~Request() {
  try {
    close();
  } catch (...) {  // there was no memory for the bookkeeping; the destructors of the page tables still release the pages
  }
}

void Request::start(std::uint64_t tag, std::int32_t steps) {
  const std::lock_guard lock(scheduler_.mutex_);
  state_->want(steps);
  scheduler_.check_room();
  scheduler_.join(*state_);
  if (state_->delivery == Delivery::asked) state_->delivery = Delivery::pumped;
  state_->tag = tag;
  scheduler_.news_.tell(*state_);  // needed if the request has no sequences, because no step will then wake its reader
}

void Request::hold(bool held) {
  const std::lock_guard lock(scheduler_.mutex_);
  if (state_->delivery == Delivery::asked || state_->closed()) return;  // pump() returns no news of such a request anyway
  state_->delivery = held ? Delivery::held : Delivery::pumped;
  scheduler_.news_.tell(*state_);
}

bool Request::wait(std::int32_t steps, double max_ms) {
  require(max_ms >= 0, "max_ms must be at least 0, not ", max_ms);
  const std::chrono::duration<double, std::milli> most(std::min(max_ms, 1e9));
  SchedulerLock lock(scheduler_.mutex_);
  RequestState& r = *state_;
  r.want(steps);
  scheduler_.news_.has_read(r.reader);
  scheduler_.join(r);
  if (r.ready()) return true;
  ++r.waiting;
  const bool came = r.news->wait_for(lock, most, [&] { return r.ready(); });
  --r.waiting;
  return came;
}

std::vector<News> Request::take() {
  const std::lock_guard lock(scheduler_.mutex_);
  std::vector<News> all = scheduler_.news_.collect(*state_);
  if (all.empty() && state_->error && state_->ended()) {
    state_->delivery = Delivery::over;
    std::rethrow_exception(own_copy(state_->error));
  }
  return all;
}

std::vector<Request::Shown> Request::shown() const {
  std::vector<Shown> all;
  const std::lock_guard lock(scheduler_.mutex_);
  for (const Sequence& s : state_->sequences)
    if (!s.ended() && s.shown()) all.push_back({s.index, s.ids, s.row});
  return all;
}

void Request::answer(std::int32_t sequence, std::span<const float> logits) {
  std::vector<float> row(logits.begin(), logits.end());
  std::vector<std::uint32_t> left;
  for (std::size_t id = 0; id < row.size(); ++id) {
    if (std::isfinite(row[id])) continue;
    require(row[id] < 0, "the logit of token ", id, " was made ", row[id],
            "; a logit is a finite number, or -inf, which forbids the token");
    if (left.empty()) left.resize(mask_words(static_cast<std::int64_t>(row.size())), ~0u);
    left[id / 32] &= ~(1u << (id % 32));
    row[id] = 0;
  }
  const std::lock_guard lock(scheduler_.mutex_);
  Sequence& s = state_->at(sequence);
  if (s.ended() || !s.shown()) return;  // the sequence has ended or was answered in the meantime
  require(row.size() == s.row.size(), row.size(), " logits for a vocabulary of ", s.row.size());
  s.answer = std::move(row);
  s.left_by_answer = std::move(left);
  scheduler_.work_.raise();
}

void Request::finish(std::int32_t sequence) {
  const std::lock_guard lock(scheduler_.mutex_);
  Sequence& s = state_->at(sequence);
  s.news = {.sequence = sequence};
  scheduler_.roster_.drop(s);
  scheduler_.news_.tell(*state_);
}

void Request::close() {
  const std::lock_guard lock(scheduler_.mutex_);
  state_->delivery = Delivery::over;
  for (Sequence& s : state_->sequences) s.news = {.sequence = s.index};
  scheduler_.news_.has_read(state_->reader);
  scheduler_.roster_.drop(*state_);
  scheduler_.stop_unwanted_step();
  scheduler_.news_.tell(*state_);
}

bool Request::done() const {
  const std::lock_guard lock(scheduler_.mutex_);
  return state_->told_all();
}

std::vector<std::int32_t> Request::prompt_tokens() const {
  std::vector<std::int32_t> tokens;
  for (const Prompt& prompt : state_->prompts) tokens.push_back(prompt.tokens);
  return tokens;
}

std::vector<std::int32_t> Request::reused_tokens() const {
  const std::lock_guard lock(scheduler_.mutex_);
  std::vector<std::int32_t> reused;
  for (const Prompt& prompt : state_->prompts) reused.push_back(std::max(prompt.reused, 0));
  return reused;
}

std::vector<std::uint64_t> Request::seeds() const {
  std::vector<std::uint64_t> seeds;
  for (const Sequence& sequence : state_->sequences) seeds.push_back(sequence.draw.seed);
  return seeds;
}

Timings Request::timings() const {
  const std::lock_guard lock(scheduler_.mutex_);
  return state_->timings;
}

}  // namespace pumice::engine
