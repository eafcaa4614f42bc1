// Tests of core/program_check.h: the facts that check_program() returns about a program, and the batches and pages that check_batch() and
// check_pages() refuse. Programs that every backend refuses are tested in tests/cpp/cpu/backend_test.cpp.
#include "core/program_check.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "core/error.h"

namespace pumice {
namespace {

constexpr MatrixId kTokens{0}, kQkv{1}, kOut{2};

Weights weights() {
  Weights w;
  w.matrices = {{"tokens", Format::F32, 100, 8, {}},
                {"qkv", Format::F32, 24, 8, {}},
                {"out", Format::F32, 8, 8, {}},
                {"unused", Format::F32, 8, 8, {}}};
  return w;
}

// Returns a program that embeds tokens, runs one attention layer (with a cache if `cached` is true) and copies the selected rows.
Program layer(bool cached) {
  Program p{.name = "layer", .slots = {{Rows::tokens, 8}, {Rows::tokens, 24}, {Rows::tokens, 8}, {Rows::selected, 8}}, .output = 3};
  const View x{0, 0, 8}, q{1, 0, 8}, k{1, 8, 8}, v{1, 16, 8}, attended{2, 0, 8};
  p.ops.push_back(Embed{.out = x, .tokens = kTokens});
  p.ops.push_back(Linear{.in = x, .out = {1, 0, 24}, .parts = {{kQkv}}});
  Attend attend{.q = q, .out = attended, .key_dim = 4, .value_dim = 4, .kv_heads = 2};
  if (cached) {
    p.caches = {{2, 4, 4}};
    attend.cache = CacheId{0};
    attend.causal = true;
    p.ops.push_back(Rope{.x = q, .head_dim = 4, .table = {}});
    p.ops.push_back(Store{.k = k, .v = v, .cache = CacheId{0}});
  } else {
    attend.k = k;
    attend.v = v;
  }
  p.ops.push_back(attend);
  p.ops.push_back(Linear{.in = attended, .out = x, .parts = {{kOut}}, .residual = x});
  p.ops.push_back(Select{.in = x, .out = {3, 0, 8}});
  return p;
}

void refused(ErrorKind kind, const std::string& part, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "no error with " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_NE(std::string(error.what()).find("program 'layer'"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(ProgramCheck, FindsWhatAProgramTakesAndHowLongSlotsLive) {
  const Weights w = weights();
  const ProgramFacts facts = check_program(layer(true), shapes_of(w));
  EXPECT_TRUE(facts.takes_ids && facts.takes_segments && facts.takes_selected);
  EXPECT_FALSE(facts.reduces_logits || facts.keeps_no_past);
  EXPECT_EQ(facts.positions_limit, INT64_MAX);
  EXPECT_EQ(facts.used, (std::vector<bool>{true, true, true, false}));
  const auto life = [&](std::size_t slot) { return std::pair(facts.slot_lives[slot].first, facts.slot_lives[slot].last); };
  EXPECT_EQ(life(0), std::pair(std::int64_t{0}, std::int64_t{6}));
  EXPECT_EQ(life(1), std::pair(std::int64_t{1}, std::int64_t{4}));  // from the q, k, v product to the attention
  EXPECT_EQ(life(2), std::pair(std::int64_t{4}, std::int64_t{5}));
  EXPECT_EQ(facts.last_beyond_row, 7);
  EXPECT_EQ(facts.last_other_rows, 6);

  EXPECT_TRUE(check_program(layer(false), shapes_of(w)).keeps_no_past);

  Program head{
      .name = "head", .slots = {{Rows::tokens, 8}, {Rows::tokens, 100}, {Rows::tokens, 1}, {Rows::tokens, 3}}, .input = 0, .output = 2};
  head.ops = {Linear{.in = {0, 0, 8}, .out = {1, 0, 100}, .parts = {{kTokens}}}, LogProb{.logits = {1, 0, 100}, .out = {2, 0, 1}}};
  const ProgramFacts of_head = check_program(head, shapes_of(w));
  EXPECT_TRUE(of_head.reduces_logits && of_head.takes_ids);
  EXPECT_FALSE(of_head.takes_segments);
  EXPECT_EQ(of_head.slot_lives[0].first, -1);  // the input slot is filled before operation 0
  EXPECT_FALSE(of_head.slot_lives[3].used());
  EXPECT_EQ(of_head.last_beyond_row, 0);
  EXPECT_EQ(of_head.last_other_rows, -1);
}

TEST(ProgramCheck, RefusesMatricesThatAreNotThere) {
  const Weights w = weights();
  WeightShapes shapes = shapes_of(w);
  shapes.matrices[1].present = false;
  refused(ErrorKind::unsupported_model, "'qkv' was not loaded on this device", [&] { check_program(layer(true), shapes); });
}

TEST(ProgramCheck, TheLargestLogitsAndReportedIds) {
  const Weights w = weights();
  const WeightShapes shapes = shapes_of(w);
  Program p{.name = "layer", .slots = {{Rows::tokens, 100}, {Rows::tokens, 8 + 2 * 5 + 3}}, .input = 0, .output = 1};
  const auto top = [&](std::int32_t k, std::int32_t reported) {
    p.ops = {Top{.logits = {0, 0, 100}, .out = {1, 0, 21}, .k = k, .reported = reported}};
    return check_program(p, shapes);
  };
  refused(ErrorKind::unsupported_model, "k is 0, not 1 to 128", [&] { top(0, 13); });
  refused(ErrorKind::unsupported_model, "k is 129, not 1 to 128", [&] { top(129, 13); });
  refused(ErrorKind::unsupported_model, "reported is -1", [&] { top(7, -1); });
  refused(ErrorKind::unsupported_model, "`out` is 21 wide, not 20", [&] { top(5, 2); });
  const ProgramFacts facts = top(5, 3);
  EXPECT_TRUE(facts.reduces_logits);
  EXPECT_FALSE(facts.takes_ids || facts.takes_segments);

  std::vector<float> in(200), out(42);
  std::vector<std::int32_t> reported, first, allowed_first;
  const std::vector<std::uint32_t> allowed(9);
  const auto check = [&] {
    check_batch(p, facts, shapes,
                {.rows = 2, .reported = reported, .reported_first = first, .allowed = allowed, .allowed_first = allowed_first},
                {.in = in, .out = out});
  };
  const auto bad = [&](const std::string& part) { refused(ErrorKind::invalid_argument, part, check); };
  check();  // no reported ids and no mask of allowed ids
  reported = {0, 1, 99, 4};
  first = {0, 3, 4};
  check();
  first = {1, 1, 2};  // the rows' ranges need not cover the whole list
  check();
  first = {0, 4};
  bad("2 bounds of reported ids for 2 rows");
  first = {0, 4, 4};
  bad("row 0 has reported ids 0 to 4 of 4; at most 3 can be");
  for (const auto& [from, to] : {std::pair{-1, 1}, {2, 1}, {3, 5}}) {
    first = {0, from, to};
    bad("has reported ids");
  }
  first = {0, 3, 4};
  for (const auto& [at, id] : {std::pair{0, -1}, {1, 0}, {2, 100}}) {
    auto good = reported;
    reported[static_cast<std::size_t>(at)] = id;
    bad(str("reported id ", id, " in row 0"));
    reported = good;
  }
  // A mask of 100 ids takes four 32-bit words. -1: row 0 has no mask.
  allowed_first = {-1, 5};
  check();
  allowed_first = {0, 6};
  bad("the mask of row 1 begins at word 6 of 9; 4 words are needed");
  allowed_first = {-2, 0};
  bad("the mask of row 0 begins at word -2");
  allowed_first = {0};
  bad("1 masks of allowed ids for 2 rows");
}

TEST(ProgramCheck, BatchesAndPages) {
  const Weights w = weights();
  const WeightShapes shapes = shapes_of(w);
  const Program p = layer(true);
  const ProgramFacts facts = check_program(p, shapes);
  std::vector<std::int32_t> ids(40, 7), selected = {0, 39}, pages = {1, 2};
  std::vector<float> out(2 * 8);
  Segment segment{0, 40, 10, pages};
  const auto batch = [&] { return Batch{.rows = 40, .ids = ids, .types = {}, .segments = {&segment, 1}, .selected = selected}; };
  const auto check = [&] { check_batch(p, facts, shapes, batch(), {.in = {}, .out = out}); };
  check();
  const auto bad_batch = [&](const std::string& part) { refused(ErrorKind::invalid_argument, part, check); };
  ids[3] = 100;
  bad_batch("token id 100 in row 3 is not in 0 to 99");
  ids[3] = 0;
  selected[1] = 40;
  bad_batch("selected row 40 after 0 of 40 rows");
  selected[1] = 39;
  segment.rows = 39;
  bad_batch("segments cover 39 of 40 rows");
  segment.rows = 40;
  out.resize(15);
  bad_batch("output of 15 floats, needed are 16");

  const std::vector<CacheShape> store = {{2, 4, 4}}, other = {{2, 4, 8}}, two = {{2, 4, 4}, {2, 4, 4}};
  check_pages(p, store, 3, batch());
  const auto bad_pages = [&](const std::vector<CacheShape>& caches, std::int32_t count, const std::string& part) {
    refused(ErrorKind::invalid_argument, part, [&] { check_pages(p, caches, count, batch()); });
  };
  bad_pages(other, 3, "cache 0 of 2 kv heads of 4 (keys) and 4 (values), the store has 2 kv heads of 4 (keys) and 8 (values)");
  bad_pages(two, 3, "has 1 caches, the store 2");
  bad_pages(store, 2, "page 2 of 2");
  segment.past = 30;
  bad_pages(store, 3, "2 pages for 70 positions");
  segment.past = 10;
  for (const std::int32_t ahead : {-1, kPageTokens + 1}) {
    segment.ahead = ahead;
    bad_batch(str("ahead ", ahead));
  }
  segment.ahead = kPageTokens;
  out.resize(16);
  check();
  segment.ahead = 0;

  // A program may attend to what only other programs store, if it says so.
  Program reads = p;
  std::erase_if(reads.ops, [](const Op& op) { return std::holds_alternative<Store>(op); });
  refused(ErrorKind::unsupported_model, "nothing was stored in cache 0 before", [&] { check_program(reads, shapes); });
  reads.stored_by_others = true;
  check_program(reads, shapes);

  // A program without a cache must refuse a segment that begins after position 0.
  const Program encoder = layer(false);
  segment.past = 10;
  out.resize(16);
  refused(ErrorKind::invalid_argument, "has a past of 10",
          [&] { check_batch(encoder, check_program(encoder, shapes), shapes, batch(), {.in = {}, .out = out}); });

  // Segment::unseen counts the last rows of a segment to which no row attends. It must be less than the number of rows, and 0 if attention
  // is causal. With a window of w it must be at most w, so that the window of each unseen row still reaches a row that is seen.
  segment.past = 0;
  const auto unseen = [&](std::int32_t rows, Program program) {
    segment.unseen = rows;
    check_batch(program, check_program(program, shapes), shapes, batch(), {.in = {}, .out = out});
  };
  unseen(39, encoder);
  refused(ErrorKind::invalid_argument, "a segment of 40 rows has 40 that nobody attends to", [&] { unseen(40, encoder); });
  refused(ErrorKind::invalid_argument, "has -1 that nobody attends to", [&] { unseen(-1, encoder); });
  Program windowed = encoder;
  for (Op& op : windowed.ops) {
    if (auto* attend = std::get_if<Attend>(&op)) attend->window = 7;
  }
  unseen(7, windowed);
  refused(ErrorKind::unsupported_model, "in this model it may be 7", [&] { unseen(8, windowed); });
  refused(ErrorKind::unsupported_model, "in this model it may be 0", [&] { unseen(1, p); });
}

}  // namespace
}  // namespace pumice
