// Builds programs, weights and batches from the cases of tests/op_cases.json. That file's "comment" explains the fields of a case.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/backend.h"

namespace pumice::cases {

// One sequence of a case, or the part of it that a run computes: positions [past, past + rows), whose keys and values lie in `pages`.
struct Sequence {
  std::int32_t past = 0, rows = 0;
  std::vector<std::int32_t> pages;
  std::vector<float> past_in;  // input rows of positions [0, past), stored before the run
  std::int32_t length = 0;     // Segment::length
  std::int32_t prompt = 0;     // Segment::prompt
  std::int32_t unseen = 0;     // Segment::unseen
  std::int32_t ahead = 0;      // Segment::ahead
  std::size_t index = 0;       // in OpCase::sequences
};

struct OpCase {
  std::string name;  // "0017 linear Q4_K 129x512 tokens 33 ..."
  std::string op;
  Program program;
  // Stores the keys and values of past positions in the caches before `program` runs. Empty if the case has no caches.
  Program store;
  Weights weights;
  KvFormat kv = KvFormat::f32;
  std::int32_t rows = 0, pages = 0;
  std::vector<float> in;  // values of the input slot; empty if the program has none
  std::int32_t in_width = 0;
  std::vector<std::int32_t> ids, types, selected, reported, reported_first, allowed_first;
  std::vector<std::uint32_t> allowed;
  std::vector<Sequence> sequences;
  // The columns of the output slot that are compared. For Top, OpRun decodes them to the valid ids and logits.
  std::vector<View> out;
  std::int32_t out_width = 0;
  Rows out_rows = Rows::tokens;
  double nmse_float32 = 0, nmse_automatic = 0, floor = 0;
  bool computes_twice = false;  // true: the compute modes have different error limits, so the case runs in both
};

// The list of cases. Each case is built on demand, because the data of all cases would take hundreds of megabytes. Throws Error if the file
// cannot be read or is wrong.
class OpCases {
 public:
  explicit OpCases(const std::string& path);
  std::size_t size() const { return cases_.size(); }
  std::string op(std::size_t i) const { return cases_.at(i).at("op"); }
  std::string variant(std::size_t i) const;  // returns what tells cases of an operation apart: the first format, kind or activation
  OpCase operator[](std::size_t i) const;

 private:
  nlohmann::json cases_;
};
const OpCases& op_cases();  // returns the cases of tests/op_cases.json, which is read once

// Returns a matrix of any format with weights of variance 1 / cols, generated from the seed by the rules in op_cases.json.
Matrix random_matrix(std::string name, Format format, std::int64_t rows, std::int64_t cols, std::uint64_t seed);

// Rows [first, first + rows) of a case. `sequences` are the parts of the case's sequences in these rows, with the pages of the whole
// sequences.
struct Slice {
  std::int32_t first = 0, rows = 0;
  std::vector<Sequence> sequences;
  bool whole = true;  // true: the slice has all rows of the case, so a run passes the case's selected rows too
};
Slice all_rows(const OpCase& c);
Slice some_rows(const OpCase& c, std::int32_t first, std::int32_t count);
// Whether a slice must have all rows of its segments: the operation needs the rows before, and no cache or state has them.
bool needs_whole_segments(const OpCase& c);

// A case that is prepared on a device, and can run any of its rows. The caches hold the past positions already.
class OpRun {
 public:
  OpRun(const OpCase& c, Backend& backend, Compute compute, Crew crew = Crew::team);
  // Runs the slice and returns the compared columns (OpCase::out) of the output rows, row by row.
  std::vector<float> operator()(const Slice& slice);

 private:
  void save_states();
  std::int32_t state_before(std::size_t sequence, std::int32_t position) const;

  const OpCase& case_;
  std::unique_ptr<CacheStore> caches_;
  std::vector<std::int32_t> first_state_;  // by sequence: the state after its first position; empty if the case has no states
  std::int32_t free_state_ = 0;            // states from here on may be overwritten
  std::shared_ptr<const Executable> program_, store_;
  std::unique_ptr<Workspace> workspace_;
};

// Returns sum((a - b)^2) / max(sum(b^2), floor * a.size()), or infinity if a number is not finite or the sizes differ.
double nmse(const std::vector<float>& a, const std::vector<float>& b, double floor);

}  // namespace pumice::cases
