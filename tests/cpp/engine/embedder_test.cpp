#include "engine/embedder.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "engine/toy.h"

namespace pumice::engine {
namespace {

using Ids = std::vector<std::int32_t>;

struct Input {
  Ids ids, types;
  std::vector<std::int64_t> offsets{0};
  void add(const Ids& more, std::int32_t type = 0) {
    ids.insert(ids.end(), more.begin(), more.end());
    types.insert(types.end(), more.size(), type);
    offsets.push_back(static_cast<std::int64_t>(ids.size()));
  }
  std::size_t size() const { return offsets.size() - 1; }
  Texts texts() const { return {ids, offsets, types}; }
};

Input some(std::size_t count, std::uint64_t seed = 1) {
  Input in;
  for (std::size_t i = 0; i < count; ++i) in.add(toy::text(seed + i, 1 + toy::mix(seed * 7 + i) % 60), static_cast<std::int32_t>(i % 2));
  return in;
}

std::array<float, 2> plain(const Input& in, std::size_t i) {
  std::uint64_t state = 0;
  for (std::int64_t t = in.offsets[i]; t < in.offsets[i + 1]; ++t) state = toy::extend(state, in.ids[t] + 1000 * in.types[t]);
  return {toy::low(state) + 1, toy::high(state)};
}

toy::Model encoder(std::int32_t n_ctx = 512) { return toy::Model(0, n_ctx, toy::Toy::Kind::pooled); }

std::vector<float> encode_all(toy::Model& m, const Input& in, std::int32_t d = 2, bool normalize = false, std::int64_t budget = 0) {
  std::vector<float> out(in.size() * static_cast<std::size_t>(d), -5);
  encode(*m.runtime, in.texts(), out, d, normalize, budget, {}, m.cancel);
  return out;
}

TEST(Embedder, GivesEachTextItsOwnRowInOrder) {
  toy::Model m = encoder();
  for (const std::size_t count : {0u, 1u, 2u, 3u, 17u, 1000u}) {
    for (const std::int64_t budget : {0, 1, 40, 5000}) {
      const Input in = some(count);
      const auto out = encode_all(m, in, 2, false, budget);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(out[2 * i], plain(in, i)[0]);
        ASSERT_EQ(out[2 * i + 1], plain(in, i)[1]);
      }
    }
  }
  EXPECT_GT(m.seen->solo, 0);
  EXPECT_GT(m.seen->team, 0);
}

TEST(Embedder, PacksWithinTheBudget) {
  toy::Model m = encoder();
  Input in = some(500);
  encode_all(m, in);
  EXPECT_LE(m.seen->most_rows, 144);
  in.add(toy::text(99, 400));  // longer than the token budget, so it runs alone
  encode_all(m, in);
  EXPECT_EQ(m.seen->most_rows, 400);
  toy::Model one = encoder();
  encode_all(one, some(1));
  EXPECT_EQ(one.seen->team, 1);  // a single text uses the whole device
  EXPECT_EQ(one.seen->solo, 0);
}

TEST(Embedder, FewTextsRunInEvenBatches) {
  toy::Model m = encoder();  // the device has two workers and takes batches of 144 rows
  Input in;
  for (int i = 0; i < 8; ++i) in.add(toy::text(static_cast<std::uint64_t>(i), 27));
  encode_all(m, in);
  EXPECT_EQ(m.seen->solo, 2);
  EXPECT_EQ(m.seen->most_rows, 4 * 27);
}

TEST(Embedder, ALongTextMakesOnlyItsOwnRoundSmaller) {
  toy::Model m = encoder();
  Input in;
  in.add(toy::text(0, 200));
  for (int i = 0; i < 200; ++i) in.add(toy::text(static_cast<std::uint64_t>(i), 20));
  encode_all(m, in);
  // The first round has the long text and a few others, and the batches behind it have 120 or 140 tokens.
  EXPECT_LE(m.seen->solo, 2 + 32);
  EXPECT_EQ(m.seen->most_rows, 200);
}

TEST(Embedder, CutsBatchesThatADeviceDoesNotHold) {
  for (const auto kind : {toy::Toy::Kind::pooled, toy::Toy::Kind::tokens}) {
    toy::Model m(0, 512, kind, 1);
    m.seen->held = 70;
    const Input in = some(500);
    std::vector<std::int64_t> done;
    const auto progress = [&](std::int64_t n) { done.push_back(n); };
    std::vector<float> out((kind == toy::Toy::Kind::pooled ? in.size() : in.ids.size()) * 2);
    if (kind == toy::Toy::Kind::pooled) {
      encode(*m.runtime, in.texts(), out, 2, false, 1 << 20, progress, m.cancel);
    } else {
      encode_tokens(*m.runtime, in.texts(), out, progress, m.cancel);
    }
    for (std::size_t i = 0; i < in.size(); ++i) {
      const std::size_t row = kind == toy::Toy::Kind::pooled ? i : static_cast<std::size_t>(in.offsets[i + 1] - 1);
      ASSERT_EQ(out[2 * row], plain(in, i)[0]);
      ASSERT_EQ(out[2 * row + 1], plain(in, i)[1]);
    }
    EXPECT_LE(m.seen->most_rows, 70);
    EXPECT_GT(m.seen->most_rows, 35);
    EXPECT_GE(m.seen->refused, 1);
    EXPECT_LE(m.seen->refused, 10);  // a refused batch is halved, and later batches begin with the smaller size
    EXPECT_TRUE(std::is_sorted(done.begin(), done.end()) && done.back() == 500);
  }
  toy::Model m(0, 512, toy::Toy::Kind::pooled, 1);
  m.seen->held = 59;
  Input in = some(20);
  in.add(toy::text(99, 60));  // a single text cannot be cut
  std::string message;
  EXPECT_EQ(toy::error_of([&] { encode_all(m, in); }, &message), ErrorKind::out_of_device_memory);
  EXPECT_NE(message.find("60 rows are too many"), std::string::npos) << message;
}

TEST(Embedder, CutsAndNormalises) {
  toy::Model m = encoder();
  const Input in = some(50);
  const auto cut = encode_all(m, in, 1, true), unit = encode_all(m, in, 2, true);
  for (std::size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(cut[i], 1.0f);
    const auto [a, b] = plain(in, i);
    const double length = std::sqrt(static_cast<double>(a) * a + static_cast<double>(b) * b);
    EXPECT_FLOAT_EQ(unit[2 * i], static_cast<float>(a / length));
    EXPECT_FLOAT_EQ(unit[2 * i + 1], static_cast<float>(b / length));
  }
}

TEST(Embedder, TokensKeepTheirPlaces) {
  toy::Model m(0, 512, toy::Toy::Kind::tokens);
  const Input in = some(200);
  std::vector<float> out(in.ids.size() * 2);
  std::int64_t last = 0;
  encode_tokens(*m.runtime, in.texts(), out, [&](std::int64_t done) { last = done; }, m.cancel);
  EXPECT_EQ(last, 200);
  for (std::size_t i = 0; i < in.size(); ++i) {
    std::uint64_t state = 0;
    for (std::int64_t t = in.offsets[i]; t < in.offsets[i + 1]; ++t) {
      state = toy::extend(state, in.ids[t] + 1000 * in.types[t]);
      ASSERT_EQ(out[2 * t], toy::low(state) + 1);
      ASSERT_EQ(out[2 * t + 1], toy::high(state));
    }
  }
}

TEST(Embedder, ReportsProgressAndStops) {
  toy::Model m = encoder();
  const Input in = some(3000);
  std::vector<std::int64_t> done;
  std::vector<float> out(in.size() * 2);
  encode(*m.runtime, in.texts(), out, 2, true, 0, [&](std::int64_t n) { done.push_back(n); }, m.cancel);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), 3000);
  Cancel cancel;
  int calls = 0;
  m.seen->in_run = [&] { cancel.request(); };
  EXPECT_EQ(toy::error_of([&] { encode(*m.runtime, in.texts(), out, 2, true, 0, [&](std::int64_t) { ++calls; }, cancel); }),
            ErrorKind::cancelled);
  EXPECT_EQ(calls, 0);
  m.seen->in_run = {};
  EXPECT_EQ(encode_all(m, in, 2, true), out);  // the cancelled call must not affect the next one
}

TEST(Embedder, NamesTheTextThatIsNotANumber) {
  toy::Model m = encoder();
  for (const bool normalize : {false, true}) {
    Input in = some(40);
    in.add({1, 2, toy::kPoison});
    in.add({4});
    std::string message;
    EXPECT_EQ(toy::error_of([&] { encode_all(m, in, 2, normalize); }, &message), ErrorKind::numeric);
    EXPECT_NE(message.find("text 40"), std::string::npos) << message;
  }
}

TEST(Embedder, RefusesWhatCannotBe) {
  toy::Model m = encoder(50);
  std::vector<float> out(4);
  const auto refused = [&](Texts texts, std::int32_t d, std::int64_t budget, ErrorKind kind, const char* part) {
    std::string message;
    EXPECT_EQ(toy::error_of([&] { encode(*m.runtime, texts, out, d, true, budget, {}, m.cancel); }, &message), kind) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  const Ids ids = {1, 2, 3, 4}, bad_ids = {1, 2, toy::kVocab, 4}, types = {0, 1, 0, 1}, bad_types = {0, 1, 2, 0};
  const std::vector<std::int64_t> offsets = {0, 2, 4}, empty = {0, 4, 4}, back = {0, 3, 2}, outside = {0, 2, 5}, below = {-1, 2, 4},
                                  over = {0, 9, 4};
  const auto invalid = ErrorKind::invalid_argument;
  refused({ids, {}, {}}, 2, 0, invalid, "offsets");
  refused({ids, empty, {}}, 2, 0, invalid, "text 1 has no tokens");
  refused({ids, back, {}}, 2, 0, invalid, "text 0");
  refused({ids, outside, {}}, 2, 0, invalid, "outside");
  refused({ids, below, {}}, 2, 0, invalid, "outside");
  refused({ids, over, {}}, 2, 0, invalid, "ascending");
  refused({bad_ids, offsets, {}}, 2, 0, invalid, "text 1: token 0 has id 211");
  refused({ids, offsets, Ids{1}}, 2, 0, invalid, "type ids");
  refused({ids, offsets, bad_types}, 2, 0, invalid, "type id 2");
  const Ids one_count = {1}, all = {0, 2}, below_none = {-1, 0};
  refused({ids, offsets, {}, 0, one_count}, 2, 0, invalid, "there are 1 numbers of unseen tokens for 2 texts");
  refused({ids, offsets, {}, 0, all}, 2, 0, invalid, "text 1 has 2 tokens, of which 2 are unseen");
  refused({ids, offsets, {}, 0, below_none}, 2, 0, invalid, "of which -1 are unseen");
  refused({ids, offsets, types}, 3, 0, invalid, "asked for: 3");
  refused({ids, offsets, types}, 0, 0, invalid, "asked for: 0");
  refused({ids, offsets, types}, 1, 0, invalid, "room for 4");
  refused({ids, offsets, types}, 2, -1, invalid, "token_budget");
  const Ids long_ids(60, 1);
  const std::vector<std::int64_t> long_offsets = {0, 9, 60};
  refused({long_ids, long_offsets, {}}, 2, 0, ErrorKind::context_length, "text 1 has 51 tokens");
}

TEST(Embedder, ManyThreadsGetWhatOneGets) {
  toy::Model m = encoder();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (std::uint64_t t = 0; t < 12; ++t) {
    threads.emplace_back([&, t] {
      for (const std::size_t count : {1u, 40u, 300u}) {
        const Input in = some(count, t);
        const auto out = encode_all(m, in);
        for (std::size_t i = 0; i < count; ++i)
          if (out[2 * i] != plain(in, i)[0] || out[2 * i + 1] != plain(in, i)[1]) ++wrong;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace pumice::engine
