// Tests admission by itself, without a scheduler or threads: it gets requests and a pool, and returns a plan.
#include "engine/admission.h"

#include <gtest/gtest.h>

#include "engine/roster.h"
#include "engine/toy.h"

namespace pumice::engine {
namespace {

using toy::text;
using Life = Sequence::Life;
using Ids = std::vector<std::int32_t>;

struct Plans {
  explicit Plans(std::int64_t pages) : m(pages), roster(m.pool.get(), work), admission(*m.runtime, cost) {}
  ~Plans() {
    for (const auto& request : roster.requests())
      for (Sequence& s : request->sequences) roster.drop(s);
    EXPECT_EQ(m.leaked(), 0);
  }

  RequestState& ask(const Ids& prompt, const GenerateParams& params = {}) {
    const auto request = make_request(*m.runtime, {prompt}, std::span(&params, 1));
    roster.join(*request);
    return *asked.emplace_back(request);
  }
  Plan plan() {
    roster.remove_ended();
    return admission.plan(roster.requests(), limits);
  }
  // Changes a running sequence as a step does: marks all of its ids as computed, and adds another one.
  void step(Sequence& s) {
    s.computed = static_cast<std::int64_t>(s.ids.size());
    m.pool->publish(s.table, s.known());
    s.ids.push_back(7);
    s.news.ids.push_back(7);
  }

  toy::Model m;
  Requests asked;
  WorkSignal work;
  StepCost cost;
  Limits limits;
  Roster roster;
  Admission admission;
};

Sequence& only(RequestState& request) { return request.sequences.front(); }

TEST(Admission, RunsAsManyAsHavePagesInTheirOrder) {
  Plans p(6);
  RequestState &one = p.ask(text(1, 60)), &two = p.ask(text(2, 60)), &three = p.ask(text(3, 60)), &small = p.ask(text(4, 5));
  const Plan plan = p.plan();
  EXPECT_EQ(only(one).life, Life::running);
  EXPECT_EQ(only(two).life, Life::running) << "two pages each, and one more for the first to grow by";
  EXPECT_EQ(only(three).life, Life::waiting);
  EXPECT_EQ(only(small).life, Life::waiting) << "nobody overtakes";
  EXPECT_EQ(plan.live.size(), 4u);
  EXPECT_EQ(plan.preempted, 0);
  p.roster.drop(only(one));
  p.plan();
  EXPECT_EQ(only(three).life, Life::running);
}

TEST(Admission, TheLastToComeStepsBackWhereARunningOneNeedsAPage) {
  Plans p(5);
  RequestState &one = p.ask(text(1, 60)), &two = p.ask(text(2, 60));
  p.plan();
  EXPECT_EQ(only(two).life, Life::running);
  for (int i = 0; i < 5; ++i) {
    p.step(only(one));
    p.step(only(two));
  }
  const Plan plan = p.plan();  // both have 65 ids and need a third page, but only one page is free
  EXPECT_EQ(plan.preempted, 1);
  EXPECT_EQ(only(one).life, Life::running);
  EXPECT_EQ(only(two).life, Life::waiting);
  EXPECT_EQ(only(two).computed, 0);
  EXPECT_EQ(only(one).table.pages().size(), 3u);
}

TEST(Admission, AHigherPriorityTakesTheLastLowerOnesPages) {
  Plans p(4);
  RequestState& low = p.ask(text(1, 90));
  p.plan();
  EXPECT_EQ(only(low).life, Life::running);
  RequestState &equal = p.ask(text(2, 90)), &high = p.ask(text(3, 90), {.priority = 1});
  EXPECT_EQ(p.roster.requests().front().get(), &high);
  EXPECT_EQ(p.plan().preempted, 1);
  EXPECT_EQ(only(high).life, Life::running);
  EXPECT_EQ(only(low).life, Life::waiting);
  EXPECT_EQ(only(equal).life, Life::waiting);
}

TEST(Admission, APromptBesideAStreamGetsTheRowsOfAShortStep) {
  Plans p(100);
  RequestState& stream = p.ask(text(1, 20));
  EXPECT_GE(p.plan().prompt_rows, 128) << "nobody else decodes";
  p.step(only(stream));
  EXPECT_EQ(p.plan().prompt_rows, 0);
  p.m.runtime->pace.measured(100, 1.0);  // pretends that a row takes 10 ms
  p.limits.step_seconds = 0.5;
  p.ask(text(2, 600));
  EXPECT_EQ(p.plan().prompt_rows, 48 - 1) << "whole tiles of 12 rows, with the row of the stream";
  p.limits.step_seconds = 0.01;
  EXPECT_EQ(p.plan().prompt_rows, 16);
}

// An expert of 128, of which each row takes 8, gets 16 rows of a step on average if the step has 256 rows.
TEST(Admission, APromptOfAMixtureGetsStepsThatFillItsExperts) {
  EXPECT_EQ(rows_of_mixture(128, 8), 256);
  EXPECT_EQ(rows_of_mixture(256, 8), 512);
  EXPECT_EQ(rows_of_mixture(60, 7), 138) << "rounded up";
  EXPECT_EQ(rows_of_mixture(512, 10), kPlannedRows) << "no step has more rows";
  Plans p(100);
  p.m.runtime->pace.at_least(rows_of_mixture(128, 8));
  p.m.runtime->pace.at_least(rows_of_mixture(8, 2));
  p.ask(text(1, 600));
  EXPECT_EQ(p.plan().prompt_rows, 256) << "before the first measurement";
  p.m.runtime->pace.measured(100, 1.0);  // pretends that a row takes 10 ms, so that 40 rows take 0.4 s
  EXPECT_EQ(p.plan().prompt_rows, 256);
  p.m.runtime->pace.measured(100, 0.1);
  EXPECT_EQ(p.plan().prompt_rows, 384) << "a fast model's steps have more rows";
}

TEST(Admission, ALaggingReadersSequenceIsParkedAndItsPagesAreOthers) {
  Plans p(4);
  RequestState& slow = p.ask(text(1, 60), {.read_ahead = 2});
  p.plan();
  p.step(only(slow));
  p.plan();
  EXPECT_EQ(only(slow).life, Life::running);
  p.step(only(slow));
  EXPECT_TRUE(p.plan().live.empty());
  EXPECT_EQ(only(slow).life, Life::parked);
  only(slow).news = {};
  p.plan();
  EXPECT_EQ(only(slow).life, Life::running) << "its pages are still there";
  p.step(only(slow));
  p.step(only(slow));
  RequestState& other = p.ask(text(2, 120));
  p.plan();
  EXPECT_EQ(only(other).life, Life::running);
  only(slow).news = {};
  p.plan();
  EXPECT_EQ(only(slow).life, Life::waiting) << "the other one has all pages";
  EXPECT_EQ(only(slow).computed, 0);
}

TEST(Admission, LimitsCountRequestsThatTakePart) {
  Plans p(100);
  p.limits.running = 1;
  RequestState &one = p.ask(text(1, 20), {.n = 3}), &two = p.ask(text(2, 20));
  EXPECT_EQ(p.plan().live.size(), 3u);
  EXPECT_EQ(only(two).life, Life::waiting);
  for (Sequence& s : one.sequences) p.roster.drop(s);
  EXPECT_EQ(p.plan().live.size(), 1u);
  EXPECT_EQ(only(two).life, Life::running);
}

TEST(Admission, WhatCanNeverHaveItsPagesFails) {
  Plans p(1000);
  p.m.store->refuse_above = 64;
  RequestState& one = p.ask(text(1, 64 * 32 - 5));
  EXPECT_TRUE(p.plan().failed.empty());
  RequestState& two = p.ask(text(2, 65 * 32));
  EXPECT_TRUE(p.plan().failed.empty()) << "as long as others run it waits";
  p.roster.drop(only(one));
  const Plan plan = p.plan();
  ASSERT_EQ(plan.failed.size(), 1u);
  EXPECT_EQ(plan.failed[0].first, &only(two));
  EXPECT_EQ(toy::error_of([&] { std::rethrow_exception(plan.failed[0].second); }), ErrorKind::out_of_memory);
}

TEST(Admission, APromptThatAnotherOneComputesIsWaitedFor) {
  Plans p(100);
  RequestState &one = p.ask(text(1, 200)), &two = p.ask(text(1, 200));
  p.plan();
  EXPECT_EQ(only(one).life, Life::running);
  EXPECT_EQ(only(two).life, Life::waiting);
  p.step(only(one));
  p.plan();
  EXPECT_EQ(only(two).life, Life::running);
  EXPECT_EQ(only(two).computed, 192) << "the full pages";
  EXPECT_EQ(two.prompts[0].reused, 192);
}

TEST(Admission, GuessesHaveRowsAndPages) {
  Plans p(3);
  RequestState& one = p.ask(text(1, 60), {.max_new_tokens = 100, .speculation = {.matching = 1, .most = 20, .always = true}});
  p.plan();
  EXPECT_EQ(only(one).guess_room, 0) << "no token was chosen yet";
  p.step(only(one));
  p.plan();
  EXPECT_EQ(only(one).guess_room, 20);
  EXPECT_EQ(only(one).table.pages().size(), 3u);
  for (int i = 0; i < 25; ++i) p.step(only(one));  // the sequence now has 86 ids
  p.plan();
  EXPECT_EQ(only(one).guess_room, 96 - 86 - 1) << "as many as the context holds, which is the budget";
}

// ---------------------------------------------------------------- the samples of one prompt
TEST(Prompts, TheLeaderComputesAndTheOthersGetItsPages) {
  Plans p(100);
  RequestState& three = p.ask(text(1, 40), {.n = 3});
  Prompt& prompt = three.prompts[0];
  EXPECT_EQ(p.plan().live.size(), 3u);
  EXPECT_EQ(three.at(0).life, Life::running);
  EXPECT_EQ(three.at(1).life, Life::following);
  EXPECT_EQ(prompt.sharing(three.at(0)), 3u);
  EXPECT_EQ(prompt.sharing(three.at(1)), 1u);
  three.at(0).computed = 40;
  p.m.pool->publish(three.at(0).table, three.at(0).known());
  EXPECT_EQ(prompt.fork(three.at(0), *p.m.pool), (std::vector<Sequence*>{&three.at(0), &three.at(1), &three.at(2)}));
  for (std::int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(three.at(i).life, Life::running);
    EXPECT_EQ(three.at(i).computed, 40);
    EXPECT_EQ(prompt.sharing(three.at(i)), 1u);
  }
  EXPECT_EQ(p.m.pool->stats().pages_in_use, 1 + 3) << "the full page is shared";
}

TEST(Prompts, ALeaderThatEndsHandsOver) {
  Plans p(100);
  RequestState& four = p.ask(text(1, 40), {.n = 4});
  p.plan();
  four.at(0).in_step = four.at(1).in_step = Sequence::InStep::yes;  // as if the running step used these sequences
  p.roster.drop(four.at(2));
  EXPECT_EQ(four.at(2).life, Life::ended);
  p.roster.drop(four.at(0));
  p.roster.drop(four.at(1));
  EXPECT_EQ(four.at(0).life, Life::running) << "until the step is over";
  p.roster.step_is_over();
  EXPECT_EQ(four.at(0).life, Life::ended);
  EXPECT_EQ(four.at(1).life, Life::ended);
  EXPECT_EQ(four.at(3).life, Life::waiting);
  EXPECT_EQ(p.plan().live.size(), 1u);
  EXPECT_EQ(four.at(3).life, Life::running);
}

TEST(Prompts, AFollowerWithoutAPageComputesThePromptItself) {
  Plans p(3);
  RequestState& two = p.ask(text(1, 70), {.n = 2});
  p.plan();
  two.at(0).computed = 70;
  p.m.pool->publish(two.at(0).table, two.at(0).known());
  two.prompts[0].fork(two.at(0), *p.m.pool);
  EXPECT_EQ(two.at(1).life, Life::waiting);
  EXPECT_EQ(two.at(1).computed, 0);
}

}  // namespace
}  // namespace pumice::engine
