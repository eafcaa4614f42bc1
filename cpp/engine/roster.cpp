#include "engine/roster.h"

#include <algorithm>
#include <iterator>

namespace pumice::engine {
namespace {

using Life = Sequence::Life;
using InStep = Sequence::InStep;
using Delivery = RequestState::Delivery;

}  // namespace

void Roster::join(RequestState& request) {
  if (request.life == RequestState::Life::forked) revive(request);
  const auto behind = std::ranges::find_if(requests_, [&](const auto& each) { return each->priority() < request.priority(); });
  requests_.insert(behind, request.shared_from_this());
  request.life = RequestState::Life::joined;
  if (request.start == Clock::time_point::max()) {
    request.start = Clock::now();
    if (request.max_seconds() > 0)
      request.deadline = request.start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(request.max_seconds()));
  }
  work_.raise();
}

void Roster::remove_ended() {
  const auto ended = std::stable_partition(requests_.begin(), requests_.end(), [](const auto& request) { return !request->ended(); });
  for (auto request = ended; request != requests_.end(); ++request) (*request)->life = RequestState::Life::resting;
  gone_.insert(gone_.end(), ended, requests_.end());
  requests_.erase(ended, requests_.end());
}

Clock::time_point Roster::deadline() const {
  auto first = Clock::time_point::max();
  for (const auto& request : requests_) first = std::min(first, request->deadline);
  return first;
}

Requests Roster::late(Clock::time_point now) const {
  Requests late;
  std::ranges::copy_if(requests_, std::back_inserter(late), [&](const auto& request) { return request->deadline <= now; });
  return late;
}

void Roster::end(Sequence& s, Finish finish) {
  s.life = Life::ended;
  s.news.finish = finish;
  pages_->release(s.table, s.known());
  s.computed = 0;
  give_up_drafted(s);
  s.guesses.reset();
  s.prompt->leave(s);
  work_.raise();
}

void Roster::drop(Sequence& s) {
  if (s.ended()) return;
  if (s.in_step == InStep::no) {
    end(s, Finish::none);
  } else {
    s.in_step = InStep::leaving;
  }
}

void Roster::drop(RequestState& request) {
  for (Sequence& s : request.sequences) drop(s);
  remove_ended();
}

void Roster::fail(RequestState& request, const std::exception_ptr& error) {
  if (!request.error) request.error = own_copy(error);
  for (Sequence& s : request.sequences)
    if (s.life != Life::held) drop(s);  // a held sequence is not ended, because its caller's thread uses its pages
}

void Roster::fail_all(const std::exception_ptr& error) {
  for (const auto& request : requests_) fail(*request, error);
}

void Roster::step_is_over() {
  for (const auto& request : requests_)
    for (Sequence& s : request->sequences) {
      const bool leaves = std::exchange(s.in_step, InStep::no) == InStep::leaving;
      if (leaves && !s.ended()) end(s, Finish::none);
    }
}

// ---------------------------------------------------------------- after a fork
Requests Roster::forget_parent() {
  for (const auto& request : requests_) {
    // The condition is leaked on purpose. Threads of the parent may have waited on it, and it must not be destroyed while threads wait.
    (void)request->news.release();
    request->news = std::make_unique<Condition>();
    const bool read_elsewhere = request->waiting > 0 || request->delivery == Delivery::pumped || request->delivery == Delivery::queued ||
                                request->delivery == Delivery::held;
    request->life = read_elsewhere ? RequestState::Life::left_behind : RequestState::Life::forked;
    if (!request->closed()) request->delivery = Delivery::asked;
    request->waiting = 0;
    request->reader = {};
    for (Sequence& s : request->sequences) {
      if (std::exchange(s.in_step, InStep::no) != InStep::leaving) continue;
      s.life = Life::ended;
      s.prompt->leave(s);
    }
  }
  return std::exchange(requests_, {});
}

// In the child of a fork, prepares a request of the parent for the child's batch. Sequences that were parked still have their pages.
// Sequences that were running have lost their pages, so they compute all ids again that are not in the prefix cache.
void Roster::revive(RequestState& request) {
  for (Sequence& s : request.sequences) {
    if (s.ended()) continue;
    give_up_drafted(s);  // the child may lack the draft model's pages, so the draft model makes no more guesses for this sequence
    if (s.life == Life::running) s.start_again(*pages_);
  }
}

void Roster::give_up_drafted(Sequence& s) {
  if (s.guesses && s.guesses->drafted) drafted_.push_back(std::move(s.guesses->drafted));
}

}  // namespace pumice::engine
