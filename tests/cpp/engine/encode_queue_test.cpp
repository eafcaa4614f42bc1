#include "engine/encode_queue.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>

#include "engine/toy.h"
#include "patience.h"

namespace pumice::engine::encode_queue_test {
namespace {

using Ids = std::vector<std::int32_t>;

struct Encoder {
  toy::Model m{0, 4096, toy::Toy::Kind::pooled};
  EncodeQueue queue{*m.runtime};

  std::vector<float> encode(const std::vector<Ids>& texts, const Cancel& cancel = {}, std::int32_t d = 2, bool normalize = false) {
    Ids ids;
    std::vector<std::int64_t> offsets{0};
    for (const Ids& text : texts) {
      ids.insert(ids.end(), text.begin(), text.end());
      offsets.push_back(static_cast<std::int64_t>(ids.size()));
    }
    std::vector<float> out(texts.size() * static_cast<std::size_t>(d), -5);
    queue.encode({.ids = ids, .offsets = offsets, .types = {}}, out, d, normalize, cancel);
    return out;
  }
  std::vector<float> alone(const std::vector<Ids>& texts, std::int32_t d = 2, bool normalize = false) {
    Encoder other;
    return other.encode(texts, {}, d, normalize);
  }
};

std::vector<Ids> some(std::uint64_t seed) {
  std::vector<Ids> texts;
  for (std::uint64_t i = 0; i < seed % 4; ++i) texts.push_back(toy::text(seed * 10 + i, 1 + (seed * 7 + i * 13) % 60));
  return texts;
}

// Stops the encoder in the middle of a run until the test sets `open`, so that other calls have to wait.
struct Gate {
  explicit Gate(Encoder& e) {
    e.m.seen->in_run = [this] {
      inside = true;
      while (!open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
  }
  std::atomic<bool> inside{false}, open{false};
};

TEST(EncodeQueue, CallsThatWaitRunTogetherAndGetWhatTheyGetAlone) {
  Encoder e;
  Gate gate(e);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  const auto call = [&](std::uint64_t i) {
    const auto texts = some(i);
    const auto d = static_cast<std::int32_t>(1 + i % 2);
    const auto found = e.encode(texts, {}, d, i % 3 == 0);
    wrong += found != e.alone(texts, d, i % 3 == 0);
  };
  threads.emplace_back([&] { call(3); });
  while (!gate.inside) std::this_thread::yield();
  for (std::uint64_t i = 4; i < 30; ++i) threads.emplace_back([&, i] { call(i); });
  EXPECT_TRUE(patience::wait_until([&] { return e.m.runtime->encode_counts->stats().waiting == 26; }));
  gate.open = true;
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(e.queue.runs(), 4) << "27 calls";
}

TEST(EncodeQueue, SeveralCallsOfOneThreadRunTogether) {
  Encoder e;
  std::vector<std::vector<Ids>> texts;
  for (std::uint64_t i = 1; i <= 9; ++i) texts.push_back({toy::text(i, 5 + 3 * i), toy::text(i + 20, 7)});
  texts[2] = {Ids{}};               // a text without tokens
  texts[5] = {toy::text(5, 2000)};  // too long to run together with others
  std::vector<Ids> ids(texts.size());
  std::vector<std::vector<std::int64_t>> offsets(texts.size(), {0});
  std::vector<std::vector<float>> out(texts.size());
  std::vector<EncodeCall> calls;
  std::vector<Cancel> cancels(texts.size());
  std::vector<const Cancel*> stops;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    for (const Ids& text : texts[i]) {
      ids[i].insert(ids[i].end(), text.begin(), text.end());
      offsets[i].push_back(static_cast<std::int64_t>(ids[i].size()));
    }
    const auto d = static_cast<std::int32_t>(1 + i % 2);
    out[i].assign(texts[i].size() * static_cast<std::size_t>(d), -5);
    calls.push_back({.texts = {.ids = ids[i], .offsets = offsets[i], .types = {}}, .out = out[i], .d = d, .normalize = i % 3 == 0});
    stops.push_back(&cancels[i]);
  }
  cancels[7].request();
  e.queue.encode(calls, stops);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const bool fails = i == 2 || i == 7;
    ASSERT_EQ(calls[i].error != nullptr, fails) << i;
    if (!fails) {
      EXPECT_EQ(out[i], e.alone(texts[i], calls[i].d, calls[i].normalize)) << i;
    }
  }
  EXPECT_EQ(toy::error_of([&] { std::rethrow_exception(calls[2].error); }), ErrorKind::invalid_argument);
  EXPECT_EQ(toy::error_of([&] { std::rethrow_exception(calls[7].error); }), ErrorKind::cancelled);
  EXPECT_EQ(e.queue.runs(), 1);
}

TEST(EncodeQueue, CountsCallsThatWaitAndWhatWasComputed) {
  Encoder e;
  const EncodeCounts& counts = *e.m.runtime->encode_counts;
  EXPECT_EQ(counts.stats().busy_seconds, 0);
  Gate gate(e);
  std::vector<std::thread> threads;
  Cancel first, cancel;
  std::array<Cancel, 3> later;
  threads.emplace_back([&] { e.encode({toy::text(1, 10), toy::text(2, 20)}, first); });
  while (!gate.inside) std::this_thread::yield();
  EXPECT_EQ(counts.stats().waiting, 0);
  EXPECT_TRUE(first.begun());
  for (std::uint64_t i = 0; i < 3; ++i) threads.emplace_back([&, i] { e.encode({toy::text(i, 7)}, later[i]); });
  threads.emplace_back([&] { EXPECT_EQ(toy::error_of([&] { e.encode({toy::text(9, 5)}, cancel); }), ErrorKind::cancelled); });
  EXPECT_TRUE(patience::wait_until([&] { return counts.stats().waiting == 4; }));
  cancel.request();
  EXPECT_TRUE(patience::wait_until([&] { return counts.stats().waiting == 3; }));
  const EncodeCounts::Stats before = counts.stats();
  EXPECT_EQ(before.texts + before.tokens + before.runs, 0);  // the first run goes on
  EXPECT_GT(before.busy_seconds, 0);
  for (const Cancel& each : later) EXPECT_FALSE(each.begun());
  gate.open = true;
  for (std::thread& t : threads) t.join();
  for (const Cancel& each : later) EXPECT_TRUE(each.begun());
  EXPECT_FALSE(cancel.begun());
  const EncodeCounts::Stats after = counts.stats();
  EXPECT_EQ(after.waiting, 0);
  EXPECT_EQ(after.texts, 5);
  EXPECT_EQ(after.tokens, 10 + 20 + 3 * 7);
  EXPECT_GE(after.runs, 2);
  EXPECT_GT(after.busy_seconds, before.busy_seconds);
  EXPECT_EQ(counts.stats().busy_seconds, after.busy_seconds);  // nothing runs
}

TEST(EncodeQueue, AnErrorIsItsCallersAlone) {
  Encoder e;
  Gate gate(e);
  std::thread first([&] { e.encode({toy::text(1, 9)}); });
  while (!gate.inside) std::this_thread::yield();
  std::vector<std::thread> threads;
  std::atomic<int> numeric{0}, refused{0}, right{0};
  for (std::uint64_t i = 0; i < 12; ++i) {
    threads.emplace_back([&, i] {
      std::vector<Ids> texts{toy::text(i, 9), toy::text(i + 50, 5)};
      if (i % 3 == 0) {
        texts[1].push_back(toy::kPoison);
        std::string message;
        numeric += toy::error_of([&] { e.encode(texts); }, &message) == ErrorKind::numeric && message.find("text 1") != std::string::npos;
      } else if (i % 3 == 1) {
        texts[1].push_back(-1);
        refused += toy::error_of([&] { e.encode(texts); }) == ErrorKind::invalid_argument;
      } else {
        right += e.encode(texts) == e.alone(texts);
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  gate.open = true;
  first.join();
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(numeric, 4);
  EXPECT_EQ(refused, 4);
  EXPECT_EQ(right, 4);
}

TEST(EncodeQueue, ACancelledCallHarmsNobody) {
  Encoder e;
  Gate gate(e);
  std::thread first([&] { e.encode({toy::text(1, 9)}); });
  while (!gate.inside) std::this_thread::yield();
  std::vector<Cancel> cancels(12);
  std::vector<std::thread> threads;
  std::atomic<int> cancelled{0}, right{0};
  for (std::uint64_t i = 0; i < 12; ++i) {
    threads.emplace_back([&, i] {
      const std::vector<Ids> texts{toy::text(i, 9)};
      if (i % 2) {
        cancelled += toy::error_of([&] { e.encode(texts, cancels[i]); }) == ErrorKind::cancelled;
      } else {
        right += e.encode(texts, cancels[i]) == e.alone(texts);
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  for (std::size_t i = 1; i < 12; i += 2) cancels[i].request();
  while (cancelled < 6) std::this_thread::yield();  // cancelled calls must return before the run has ended
  gate.open = true;
  first.join();
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(right, 6);
  EXPECT_EQ(e.encode({toy::text(5, 5)}), e.alone({toy::text(5, 5)}));
}

TEST(EncodeQueue, AnErrorOfTheDeviceEndsThoseOfItsRunAlone) {
  Encoder e;
  std::atomic<bool> fails{true};
  e.m.seen->in_run = [&] {
    if (fails) fail(ErrorKind::device, "a hiccup");
  };
  EXPECT_EQ(toy::error_of([&] { e.encode({toy::text(1, 9)}); }), ErrorKind::device);
  fails = false;
  EXPECT_EQ(e.encode({toy::text(1, 9)}), e.alone({toy::text(1, 9)}));
}

TEST(EncodeQueue, ManyTextsRunByThemselves) {
  Encoder e;
  std::vector<Ids> texts;
  for (std::uint64_t i = 0; i < 200; ++i) texts.push_back(toy::text(i, 20));
  EXPECT_EQ(e.encode(texts), e.alone(texts));
  EXPECT_EQ(e.queue.runs(), 0);
}

TEST(EncodeQueue, ManyThreads) {
  Encoder e;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (std::uint64_t t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 30; ++i) {
        Cancel cancel;
        if (i % 7 == 6) cancel.request();
        try {
          wrong += e.encode(some(t + i), cancel) != e.alone(some(t + i));
        } catch (const Error& error) {
          wrong += error.kind() != ErrorKind::cancelled;
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(EncodeQueue, AChildOfAForkGoesOnAlone) {
  Encoder e;
  Gate gate(e);
  std::thread first([&] { e.encode({toy::text(1, 9)}); });
  while (!gate.inside) std::this_thread::yield();
  std::thread second([&] { e.encode({toy::text(2, 9)}); });
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(patience::kPatience.count());
    gate.open = true;
    ::_exit(e.encode({toy::text(3, 9)}) == e.alone({toy::text(3, 9)}) ? 0 : 3);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  gate.open = true;
  first.join();
  second.join();
}

}  // namespace
}  // namespace pumice::engine::encode_queue_test
