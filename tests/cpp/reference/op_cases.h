// tests/op_cases.json as programs, weights and batches. What the fields mean stands in that file's comment.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/backend.h"

namespace pumice::cases {

// One segment's share of a run: positions [past, past + rows), in the pages it owns.
struct Sequence {
  std::int32_t past = 0, rows = 0;
  std::vector<std::int32_t> pages;
  std::vector<float> past_in;  // input rows of positions [0, past), stored before the run
  std::int32_t length = 0;     // Segment::length
  std::int32_t prompt = 0;     // Segment::prompt
  std::int32_t unseen = 0;     // Segment::unseen
};

struct OpCase {
  std::string name;  // "0017 linear Q4_K 129x512 tokens 33 ..."
  std::string op;
  Program program;
  Program store;  // only stores keys and values: fills the caches with past positions; empty where nothing reads them
  Weights weights;
  KvFormat kv = KvFormat::f32;
  std::int32_t rows = 0, pages = 0;
  std::vector<float> in;  // values of the input slot, if the program has one
  std::int32_t in_width = 0;
  std::vector<std::int32_t> ids, types, selected, reported, reported_first, allowed_first;
  std::vector<std::uint32_t> allowed;
  std::vector<Sequence> sequences;
  std::vector<View> out;  // the columns of the output slot that are compared; for rows of Top the valid words, as numbers
  std::int32_t out_width = 0;
  Rows out_rows = Rows::tokens;
  double nmse_float32 = 0, nmse_automatic = 0, floor = 0;
  bool computes_twice = false;  // the limits of the two compute modes differ
};

// Cases are built one at a time: together their data would be hundreds of megabytes. Throws Error when the file is not as it should be.
class OpCases {
 public:
  explicit OpCases(const std::string& path);
  std::size_t size() const { return cases_.size(); }
  std::string op(std::size_t i) const { return cases_.at(i).at("op"); }
  std::string variant(std::size_t i) const;  // the kind of a case within its operation: its first format, or its kind
  OpCase operator[](std::size_t i) const;

 private:
  nlohmann::json cases_;
};
const OpCases& op_cases();  // those of tests/op_cases.json, read once

// A matrix of any format with weights of variance 1 / cols, from a seed alone (stream rules of op_cases.json).
Matrix random_matrix(std::string name, Format format, std::int64_t rows, std::int64_t cols, std::uint64_t seed);

// Rows [first, first + count) of a case: segments are cut; `sequences` keep what is left of them, with the same pages.
struct Slice {
  std::int32_t first = 0, rows = 0;
  std::vector<Sequence> sequences;
  bool whole = true;  // all rows: selected rows count too
};
Slice all_rows(const OpCase& c);
Slice some_rows(const OpCase& c, std::int32_t first, std::int32_t count);

// A case on a device, ready to run any of its rows.
class OpRun {
 public:
  OpRun(const OpCase& c, Backend& backend, Compute compute, Crew crew = Crew::team);
  // The counted columns of the output rows, row after row.
  std::vector<float> operator()(const Slice& slice);

 private:
  const OpCase& case_;
  std::unique_ptr<CacheStore> caches_;
  std::shared_ptr<const Executable> program_, store_;
  std::unique_ptr<Workspace> workspace_;
};

// sum((a - b)^2) / max(sum(b^2), floor * numbers); infinite when a number is not finite or the sizes differ.
double nmse(const std::vector<float>& a, const std::vector<float>& b, double floor);

}  // namespace pumice::cases
