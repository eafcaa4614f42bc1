// Models with recurrent layers: a text can continue only where its state is known. The toy's states are hashes of the text, and its device
// refuses a state of another text. The other tests of the engine run over such a toy, too (PUMICE_TOY_STATES, CMakeLists.txt).
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "engine/cache_budget.h"
#include "engine/snapshots.h"
#include "engine/text_request.h"
#include "engine/toy.h"

namespace pumice::engine::states_test {
namespace {

using toy::continuation;
using toy::text;
using Ids = std::vector<std::int32_t>;

struct Recurrent : toy::Model {
  explicit Recurrent(std::int64_t pages = 1000) : toy::Model(pages, 8192, toy::Toy::Kind::body, 2, {}, true) {}

  std::vector<Ids> generate(const std::vector<Ids>& prompts, GenerateParams params) {
    const auto request = scheduler->request(prompts, params);
    std::vector<Ids> found(static_cast<std::size_t>(request->sequences()));
    while (!request->done()) {
      for (const News& news : toy::advance(*request, 1000)) {
        Ids& ids = found[static_cast<std::size_t>(news.sequence)];
        ids.insert(ids.end(), news.ids.begin(), news.ids.end());
      }
    }
    return found;
  }
  Ids generate(const Ids& prompt, std::int64_t tokens) { return generate({prompt}, {.max_new_tokens = tokens}).front(); }
  // Generates `tokens` tokens, checks them, and returns how many rows were computed for them.
  std::int64_t cost(const Ids& prompt, std::int64_t tokens) {
    const std::int64_t before = seen->rows;
    EXPECT_EQ(generate(prompt, tokens), continuation(prompt, static_cast<std::size_t>(tokens)));
    return seen->rows - before;
  }
};

Ids joined(std::initializer_list<Ids> parts) {
  Ids all;
  for (const Ids& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Ids first(const Ids& ids, std::size_t count) { return {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count)}; }

TEST(States, ATurnComputesWhatIsNew) {
  Recurrent m;
  Ids chat = text(1, 50);
  for (std::uint64_t turn = 0; turn < 20; ++turn) {
    const std::int64_t rows = m.cost(chat, 37);
    // All but the last token of the answer was computed in the turn before.
    EXPECT_EQ(rows, turn == 0 ? 50 + 36 : 1 + 29 + 36) << turn;
    chat = joined({chat, continuation(chat, 37), text(100 + turn, 29)});
  }
  EXPECT_EQ(m.leaked(), 0);
}

TEST(States, ATurnWhoseTemplateDropsTheThinkingContinuesFromItsPrompt) {
  Recurrent m;
  Ids chat = text(2, 40);
  for (std::uint64_t turn = 0; turn < 20; ++turn) {
    const Ids opening = text(900, 9), prompt = joined({chat, opening});  // "<think>" and what else the next turn lacks
    const std::int64_t rows = m.cost(prompt, 200);
    const Ids answer = continuation(prompt, 200), kept = Ids(answer.end() - 30, answer.end());  // what follows the thinking
    if (turn > 0) {
      EXPECT_LE(rows, 199 + 30 + 25 + 9 + kTurnTokens + kPageTokens) << turn;
    }
    chat = joined({chat, kept, text(200 + turn, 25)});
  }
}

TEST(States, EightChatsAtOnceComputeWhatIsNew) {
  Recurrent m;
  std::vector<Ids> chats;
  for (std::uint64_t i = 0; i < 8; ++i) chats.push_back(joined({text(5, 100), text(50 + i, 20 + 7 * i)}));
  std::int64_t said = 0;
  for (std::uint64_t turn = 0; turn < 10; ++turn) {
    const std::int64_t before = m.seen->rows;
    const auto found = m.generate(chats, {.max_new_tokens = 21});
    if (turn > 0) {
      EXPECT_EQ(m.seen->rows - before, 8 * (1 + 13 + 20)) << turn;
    }
    for (std::size_t i = 0; i < chats.size(); ++i) {
      ASSERT_EQ(found[i], continuation(chats[i], 21));
      chats[i] = joined({chats[i], found[i], text(1000 + 10 * turn + i, 13)});
    }
    said += 21;
  }
  EXPECT_EQ(said, 210);
  EXPECT_EQ(m.leaked(), 0);
}

TEST(States, TheThirdCallerOfASystemPromptContinuesBehindIt) {
  Recurrent m;
  const Ids system = text(3, 500);
  const auto prompt = [&](std::uint64_t seed) { return joined({system, text(seed, 300)}); };
  EXPECT_EQ(m.cost(prompt(11), 5), 800 + 4);
  EXPECT_EQ(m.cost(prompt(12), 5), 800 + 4) << "the pages are known, but no state within them";
  EXPECT_EQ(m.cost(prompt(13), 5), 800 - 480 + 4) << "the second caller left one where the known pages ended";
  EXPECT_EQ(m.cost(prompt(14), 5), 800 - 480 + 4);
}

TEST(States, OnePromptAgainAndABranchFromAnEarlierTurn) {
  Recurrent m;
  const Ids prompt = text(4, 333);
  EXPECT_EQ(m.cost(prompt, 60), 333 + 59);
  EXPECT_EQ(m.cost(prompt, 60), 333 - 288 + 59) << "from the last page end that is 16 tokens before the end";
  const Ids turn = joined({prompt, continuation(prompt, 60)});
  EXPECT_EQ(m.cost(joined({turn, text(6, 40)}), 10), 1 + 40 + 9);
  EXPECT_EQ(m.cost(joined({turn, text(7, 40)}), 10), 1 + 40 + 9) << "the other branch begins at the same state";
}

TEST(States, ALongTextLeavesStatesOnTheWay) {
  Recurrent m;
  const Ids prompt = text(8, 7000);
  m.cost(prompt, 2);
  EXPECT_EQ(m.cost(joined({first(prompt, 5000), text(9, 100)}), 2), 5100 - 4096 + 1);
  EXPECT_EQ(m.cost(first(prompt, 2100), 2), 2100 - 2048 + 1);
  EXPECT_EQ(m.cost(first(prompt, 2000), 2), 2000 + 1);
}

TEST(States, SamplesOfAPromptShareItsState) {
  Recurrent m, alone;
  GenerateParams params{.max_new_tokens = 30, .n = 5};
  params.sampling.temperature = 1.1f;
  params.sampling.seed = 4;
  for (const std::size_t length : {1u, 31u, 32u, 33u, 64u, 100u}) {
    const Ids prompt = text(length, length);
    const auto found = m.generate({prompt}, params);
    for (std::size_t i = 0; i < 5; ++i) {
      GenerateParams one = params;
      one.n = 1;
      const std::vector<Ids> prompts(5, prompt);
      EXPECT_EQ(alone.generate(prompts, one)[i], found[i]) << length;
    }
  }
  EXPECT_EQ(m.leaked(), 0);
}

TEST(States, GuessesChangeNothing) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 40; ++trial) {
    Recurrent m(trial % 4 == 3 ? 12 : 1000);
    std::vector<Ids> prompts;
    GenerateParams params{.max_new_tokens = 60};
    params.speculation = {.most = static_cast<std::int32_t>(1 + random() % 9), .always = true, .replay = {}};
    for (std::uint64_t i = 0; i < 1 + random() % 3; ++i) {
      prompts.push_back(text(random() % 20, 1 + random() % 80));
      Ids guesses = continuation(prompts.back(), 60);
      for (std::int32_t& id : guesses)
        if (random() % 4 == 0) id = static_cast<std::int32_t>(random() % toy::kVocab);
      params.speculation.replay.push_back(std::move(guesses));
    }
    const auto found = m.generate(prompts, params);
    for (std::size_t i = 0; i < prompts.size(); ++i) ASSERT_EQ(found[i], continuation(prompts[i], 60)) << trial;
    EXPECT_EQ(m.leaked(), 0);
    const auto stats = m.pool->stats();
    EXPECT_EQ(stats.states_in_use, 0);
  }
}

TEST(States, TheSmallestBudgetRunsOneSequenceAfterAnother) {
  std::vector<Ids> prompts;
  for (std::uint64_t i = 0; i < 6; ++i) prompts.push_back(text(i % 3, 20 + 9 * i));
  for (const std::int64_t pages : {4, 5, 7, 12}) {
    Recurrent m(pages);
    const auto found = m.generate(prompts, {.max_new_tokens = 40});
    for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(found[i], continuation(prompts[i], 40)) << pages;
    EXPECT_EQ(m.leaked(), 0);
  }
}

TEST(States, ADeviceMayRefuseMoreOfThem) {
  Recurrent m;
  m.store->refuse_states_above = 5;  // two sequences at a time
  std::vector<Ids> prompts;
  for (std::uint64_t i = 0; i < 6; ++i) prompts.push_back(text(i, 40 + i));
  const auto found = m.generate(prompts, {.max_new_tokens = 40});
  for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(found[i], continuation(prompts[i], 40));
  EXPECT_LE(m.pool->stats().states_reserved, 5);
  Recurrent none;
  none.store->refuse_states_above = 1;
  EXPECT_EQ(toy::error_of([&] { none.generate(text(1, 10), 3); }), ErrorKind::out_of_memory);
}

TEST(States, TheLeastRecentlyUsedIsEvictedAndTheTextIsComputedAgain) {
  Recurrent m(8);  // 8 pages
  const auto states = m.pool->stats().states_budget;
  std::vector<Ids> texts;
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(states) + 4; ++i) {
    texts.push_back(text(300 + i, 33));
    m.cost(texts.back(), 2);
  }
  for (const Ids& each : texts) m.cost(each, 2);
  EXPECT_LE(m.pool->stats().states_reserved, states);
  EXPECT_EQ(m.leaked(), 0);
}

TEST(States, APageWithoutOneIsEvictedFirst) {
  Recurrent m(1000);
  PageBook book;
  book.reserve(4);
  book.add(4);
  book.reserve_states(2);
  book.add_states(2);
  const Ids a = text(1, 32), b = text(2, 32);
  const std::int32_t with = book.take(), without = book.take(), state = book.take_state();
  book.enter(with, -1, 0, a);
  book.enter(without, -1, 0, b);
  book.attach(with, state);
  book.drop_state(state);
  book.drop(with);     // unused longest
  book.drop(without);  // but no text continues there
  book.self_check();
  ASSERT_TRUE(book.evict());
  EXPECT_EQ(book.find(-1, 0, b), -1);
  EXPECT_EQ(book.find(-1, 0, a), with);
  EXPECT_TRUE(book.evict_state());
  EXPECT_EQ(book.state_of(with), -1);
  EXPECT_EQ(book.free_states(), 2);
  EXPECT_FALSE(book.evict_state());
  EXPECT_EQ(book.find(-1, 0, a), with) << "the page stays";
  book.self_check();
}

TEST(States, ATextGoesToAFileAndBack) {
  Recurrent m, other;
  const Ids ids = text(20, 100);
  std::vector<std::uint8_t> pages(4 * m.pool->page_bytes()), state(m.pool->state_bytes());
  {
    TextRequest saved(*m.scheduler, ids, TextTask::Wants::pages);
    saved.run({});
    std::vector<std::int32_t> cells;
    m.pool->read_state(saved.table(), state);
    std::uint64_t expected = 0, found = 0;
    for (const std::int32_t id : ids) expected = toy::extend(expected, id);
    std::memcpy(&found, state.data(), sizeof(found));
    EXPECT_EQ(found, expected);
  }
  {
    TextRequest loaded(*other.scheduler, ids, TextTask::Wants::room);
    loaded.run({});
    for (std::int32_t i = 0; i < 100; ++i) other.store->cell(loaded.table().pages(), i) = ids[static_cast<std::size_t>(i)];
    other.pool->write_state(loaded.table(), state);
    loaded.written();
  }
  EXPECT_EQ(other.cost(joined({ids, text(21, 5)}), 4), 5 + 3);
}

TEST(States, AChildOfAForkHasTheStatesThatWereKept) {
  Recurrent m;
  const Ids prompt = text(30, 90);
  m.cost(prompt, 20);
  const auto request = m.scheduler->request({text(31, 50)}, GenerateParams{.max_new_tokens = 2000, .read_ahead = 4});
  request->wait(1, 1e9);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool right = m.cost(joined({prompt, continuation(prompt, 20), text(32, 7)}), 5) == 1 + 7 + 4;
    m.pool->self_check();
    ::_exit(right && !::testing::Test::HasFailure() ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  request->close();
  EXPECT_EQ(m.leaked(), 0);
}

TEST(States, BudgetsHoldWhatTheySay) {
  const std::uint64_t mib = 1 << 20;
  for (const CacheUnits units : {CacheUnits{mib, 0}, CacheUnits{mib, 53 * mib}, CacheUnits{mib / 3, mib / 5}, CacheUnits{0, 66 * mib}}) {
    std::uint64_t before = 0;
    for (std::uint64_t bytes = 0; bytes < 40'000 * mib; bytes = bytes * 5 / 4 + mib / 2) {
      const std::uint64_t pages = units.pages_in(bytes);
      if (pages > 0) {
        EXPECT_LE(units.bytes_for(pages), bytes);
      }
      if (pages > 0 || bytes > 200 * mib) {
        EXPECT_GT(units.bytes_for(pages + 1), bytes);
      }
      EXPECT_GE(pages, before);
      before = pages;
    }
    EXPECT_GT(before, 100u);
  }
  EXPECT_EQ((CacheUnits{mib, 0}.states_for(1000)), 0u);
  EXPECT_EQ((CacheUnits{mib, 53 * mib}.states_for(6400)), 2u + 6 + 100);
  EXPECT_EQ((CacheUnits{mib, 1000}.states_for(6400)), 2u + 6 + 6400) << "small ones are as many as pages";
  EXPECT_EQ((CacheUnits{100, UINT64_MAX / 2}.pages_in(UINT64_MAX)), 0u);
}

}  // namespace
}  // namespace pumice::engine::states_test
