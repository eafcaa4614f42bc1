#include "engine/page_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <random>
#include <string>

#include "engine/toy.h"

namespace pumice::engine {
namespace {

using toy::text;
using Ids = std::vector<std::int32_t>;

Ids part(const Ids& ids, std::size_t count) { return {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count)}; }

// Writes the ids at positions `past` and later into the pages, as a run of the toy model does.
void write(toy::Model& m, const PageTable& table, const Ids& ids, std::int32_t past) {
  for (std::int32_t p = past; p < static_cast<std::int32_t>(ids.size()); ++p) m.store->cell(table.pages(), p) = ids[p];
}
Ids read(toy::Model& m, const PageTable& table, std::int32_t count) {
  Ids ids;
  for (std::int32_t p = 0; p < count; ++p) ids.push_back(m.store->cell(table.pages(), p));
  return ids;
}

std::int32_t run(toy::Model& m, const Ids& ids) {
  PageTable table;
  const auto reused = m.pool->acquire(table, ids);
  if (!reused) return -1;
  EXPECT_EQ(read(m, table, *reused), part(ids, *reused));
  write(m, table, ids, *reused);
  m.pool->release(table, ids);
  m.pool->self_check();
  return *reused;
}

TEST(PrefixTree, FindsTheLongestCommonBeginning) {
  std::mt19937 random(3);
  PrefixTree tree;
  std::vector<std::pair<std::uint64_t, Ids>> all;
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t parent = random() % 3;
    Ids ids(1 + random() % 32);
    for (auto& id : ids) id = static_cast<std::int32_t>(random() % 2);
    if (i % 3) ids.resize(32, 1);
    std::int32_t best = 0;
    for (const auto& [p, known] : all) {
      if (p != parent) continue;
      std::int32_t common = 0;
      while (common < static_cast<std::int32_t>(std::min(ids.size(), known.size())) && ids[common] == known[common]) ++common;
      best = std::max(best, common);
    }
    const auto match = tree.longest(parent, ids);
    ASSERT_EQ(match.tokens, best);
    ASSERT_EQ(match.page >= 0, best > 0);
    if (best == static_cast<std::int32_t>(ids.size())) continue;
    tree.insert(parent, ids, i);
    all.emplace_back(parent, ids);
  }
  EXPECT_EQ(tree.size(), all.size());
}

TEST(PagePool, ReusesFullPagesAndPartOfTheNext) {
  toy::Model m;
  const Ids history = text(1, 40);
  EXPECT_EQ(run(m, history), 0);
  Ids longer = history;
  for (const std::int32_t id : text(2, 50)) longer.push_back(id);
  EXPECT_EQ(run(m, longer), 40);            // the full page of 32 tokens, and 8 of the next page
  EXPECT_EQ(run(m, longer), 89);            // all but the last token
  EXPECT_EQ(run(m, part(longer, 64)), 63);  // a part of a full page can be reused
  Ids other = part(longer, 45);
  other.push_back(209);
  EXPECT_EQ(run(m, other), 45);
  EXPECT_EQ(run(m, text(9, 70)), 0);
  EXPECT_EQ(m.leaked(), 0);
}

TEST(PagePool, DropsPartialPagesThatLongerOnesCover) {
  toy::Model m;
  const Ids ids = text(1, 200);
  for (std::size_t n = 1; n <= 200; n += 3) run(m, part(ids, n));
  EXPECT_LE(m.pool->stats().pages_cached, 7 + 1);
  EXPECT_EQ(m.leaked(), 0);
}

TEST(PagePool, EvictsTheLongestUnusedLeavesFirst) {
  toy::Model m(8);
  const Ids a = text(1, 97), b = text(2, 97);  // 4 pages each, the last with one token
  EXPECT_EQ(run(m, a), 0);
  EXPECT_EQ(run(m, b), 0);
  // `a` needs a page for its last token. The least recently used leaf is the last page of `a` itself, which is evicted and written again.
  EXPECT_EQ(run(m, a), 96);
  EXPECT_EQ(run(m, text(3, 64)), 0);  // evicts the last two pages of `b`
  EXPECT_EQ(m.pool->cached_tokens(a), 96);
  EXPECT_GT(m.pool->cached_tokens(b), 0);
  EXPECT_LT(m.pool->cached_tokens(b), 96);
  EXPECT_EQ(m.pool->stats().pages_evicted, 3u);
  EXPECT_EQ(m.pool->stats().pages_reserved, 8);
  EXPECT_EQ(run(m, text(4, 256)), 0);  // evicts all other pages
  EXPECT_EQ(m.pool->cached_tokens(a), 0);
  EXPECT_EQ(m.leaked(), 0);
}

// When the parent forks, one sequence runs, one is parked, and the pages of one that has ended are cached. The child must have the last
// two, and no other page may be in use.
TEST(PagePool, AChildHasWhatIsParkedAndKept) {
  toy::Model m(8);
  const Ids runs = text(1, 70), parked = text(2, 70), kept = text(3, 40);
  PageTable running, waiting;
  ASSERT_EQ(run(m, kept), 0);
  ASSERT_TRUE(m.pool->acquire(running, runs));
  ASSERT_TRUE(m.pool->acquire(waiting, parked));
  m.pool->publish(running, part(runs, 32));
  m.pool->publish(waiting, part(parked, 32));
  m.pool->park(waiting);
  const pid_t child = fork();
  if (child == 0) {
    const auto stats = m.pool->stats();
    // The parked table has 3 pages. 2 pages of `kept` are cached, and the page that `running` has published.
    bool good = stats.pages_in_use == 3 && stats.pages_cached == 3;
    m.pool->self_check();
    good = good && m.pool->cached_tokens(kept) == 39 && m.pool->cached_tokens(runs) == 32;
    m.pool->release(running, runs);  // has no effect, because the sequence does not run in the child
    m.pool->self_check();
    good = good && m.pool->unpark(waiting) && waiting.pages().size() == 3;
    m.pool->release(waiting, parked);
    m.pool->self_check();
    good = good && m.pool->stats().pages_in_use == 0 && running.pages().empty();
    _exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  m.pool->self_check();
  EXPECT_EQ(m.pool->stats().pages_in_use, 6);
}

TEST(PagePool, CopiesNothingWhenTheSourceIsTheMissingPage) {
  toy::Model m(2);
  const Ids a = text(1, 40);
  EXPECT_EQ(run(m, a), 0);
  Ids b = part(a, 36);
  b.push_back(208);
  EXPECT_EQ(run(m, b), 32);
  EXPECT_EQ(m.leaked(), 0);
}

TEST(PagePool, SaysWhatDoesNotFit) {
  toy::Model m(4);
  PageTable one, two;
  ASSERT_TRUE(m.pool->acquire(one, text(1, 100)));
  EXPECT_FALSE(m.pool->acquire(two, text(2, 10)));
  EXPECT_TRUE(two.pages().empty());
  EXPECT_FALSE(m.pool->extend(one, 129));
  EXPECT_EQ(one.pages().size(), 4u);
  m.pool->release(one);
  EXPECT_FALSE(m.pool->acquire(two, text(2, 33), PagePool::kAll, 3));  // fits, but three pages would not be left over
  EXPECT_TRUE(m.pool->acquire(two, text(2, 33), PagePool::kAll, 2));
  std::string message;
  EXPECT_EQ(toy::error_of([&] { m.pool->check_fits(129); }, &message), ErrorKind::out_of_memory);
  for (const char* part : {"129", "5 cache pages", "holds 4", "kv_budget="}) EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_EQ(toy::error_of([] { toy::Model none(0); }), ErrorKind::out_of_memory);
  m.pool->check_fits(128);
}

TEST(PagePool, GoesOnWithWhatTheDeviceGives) {
  toy::Model m(1000);
  m.store->refuse_above = 64;
  EXPECT_EQ(run(m, text(1, 64 * 32)), 0);
  EXPECT_EQ(run(m, text(2, 64 * 32)), 0);  // evicts the pages of the first text
  PageTable table;
  EXPECT_FALSE(m.pool->acquire(table, text(3, 65 * 32)));
  EXPECT_EQ(toy::error_of([&] { m.pool->check_fits(65 * 32); }), ErrorKind::out_of_memory);
  EXPECT_EQ(m.leaked(), 0);
}

TEST(PagePool, ParkedPagesCanBeTaken) {
  toy::Model m(4);
  const Ids a = text(1, 100);
  PageTable one;
  ASSERT_TRUE(m.pool->acquire(one, a));
  write(m, one, a, 0);
  m.pool->publish(one, a);
  m.pool->park(one);
  EXPECT_TRUE(m.pool->unpark(one));
  EXPECT_EQ(read(m, one, 100), a);
  m.pool->park(one);
  EXPECT_EQ(run(m, text(2, 40)), 0);  // takes the partial page and one full page of the parked table
  EXPECT_FALSE(m.pool->unpark(one));
  EXPECT_TRUE(one.pages().empty());
  EXPECT_GT(m.pool->cached_tokens(a), 0);
  EXPECT_TRUE(m.pool->unpark(one));  // the table is now empty, like a new one
  EXPECT_EQ(m.leaked(), 0);
}

// Eight sequences do random work on a small pool. Each position that counts as computed must hold the right id, which the test checks with
// copies of the texts.
TEST(PagePool, RandomWorkKeepsEveryText) {
  int acquired = 0, forked = 0, lost = 0;
  for (const int pages : {6, 17, 60}) {
    toy::Model m(pages);
    std::mt19937 random(static_cast<unsigned>(pages));
    struct Running {
      PageTable table;
      Ids ids;
      bool parked = false;
    };
    std::array<Running, 8> all;
    for (int step = 0; step < 20000; ++step) {
      Running& s = all[random() % all.size()];
      if (s.parked) {
        s.parked = false;
        if (!m.pool->unpark(s.table)) {
          ++lost;
          s.ids.clear();
        }
      }
      const auto choice = random() % 8;
      if (s.ids.empty()) {
        Ids ids = part(text(random() % 4, 200), 1 + random() % 150);  // only four different beginnings, so that texts share pages
        if (random() % 2) ids.back() = static_cast<std::int32_t>(random() % 5);
        const auto reused = m.pool->acquire(s.table, ids, random() % 8 != 0 ? PagePool::kAll : 0);
        if (!reused) continue;
        ASSERT_LT(*reused, static_cast<std::int32_t>(ids.size()));
        ASSERT_EQ(read(m, s.table, *reused), part(ids, *reused));
        write(m, s.table, ids, *reused);
        s.ids = ids;
        ++acquired;
      } else if (choice < 4) {
        const std::size_t size = s.ids.size() + 1 + random() % 40;
        if (!m.pool->extend(s.table, static_cast<std::int64_t>(size))) continue;
        const auto had = static_cast<std::int32_t>(s.ids.size());
        while (s.ids.size() < size) s.ids.push_back(static_cast<std::int32_t>(random() % 3));
        write(m, s.table, s.ids, had);
        m.pool->publish(s.table, s.ids);
      } else if (choice == 4) {
        Running& to = all[random() % all.size()];
        if (!to.ids.empty() || to.parked) continue;
        m.pool->publish(s.table, s.ids);
        if (!m.pool->fork(s.table, static_cast<std::int32_t>(s.ids.size()), to.table)) continue;
        to.ids = s.ids;
        ++forked;
      } else if (choice == 5) {
        s.parked = true;
        m.pool->park(s.table);
      } else {
        m.pool->release(s.table, s.ids);
        s.ids.clear();
      }
      for (Running& r : all) {
        if (r.parked) continue;
        ASSERT_EQ(read(m, r.table, static_cast<std::int32_t>(r.ids.size())), r.ids) << step;
      }
      m.pool->self_check();
      ASSERT_LE(m.pool->stats().pages_reserved, pages);
    }
    for (Running& r : all) m.pool->release(r.table, r.ids);
    EXPECT_EQ(m.leaked(), 0);
  }
  EXPECT_GT(acquired, 5000);
  EXPECT_GT(forked, 500);
  EXPECT_GT(lost, 500);
}

}  // namespace
}  // namespace pumice::engine
