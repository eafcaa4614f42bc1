// The input of one run of a program: rows of tokens, the sequences that they belong to, and the memory for results.
#pragma once

#include <cstdint>
#include <span>

#include "core/kinds.h"

namespace pumice {

// One sequence's rows in a ragged batch: rows [first, first + rows) of the batch are its positions [past, past + rows). pages[i] holds
// positions [32 i, 32 i + 32) in every cache of the store; there are enough pages for past + rows positions.
struct Segment {
  std::int32_t first = 0, rows = 0, past = 0;
  std::span<const std::int32_t> pages;
  // Number of tokens in the text. Rope at position i uses the frequencies for a text of max(length, i + 1) tokens (RopeTable::original).
  std::int32_t length = 0;
  std::int32_t prompt = 0;  // number of first rows that Pool leaves out; less than `rows`
  // Number of last rows to which no row attends, while they attend to the other rows (Attend without a cache).
  std::int32_t unseen = 0;
};

struct Batch {
  std::int32_t rows = 0;                   // token rows in all
  std::span<const std::int32_t> ids;       // one id for each row (LogProb: the targets), or empty when the program takes hidden rows
  std::span<const std::int32_t> types;     // one type for each row, or empty when all are 0
  std::span<const Segment> segments;       // cover the rows in order; may be empty for programs without Attend, Pool, Rope, Store
  std::span<const std::int32_t> selected;  // indices of the selected rows, ascending
  // For Top: the reported ids of row r are reported[reported_first[r]] to reported[reported_first[r + 1] - 1], ascending. reported_first
  // has rows + 1 values, or is empty if no ids are reported.
  std::span<const std::int32_t> reported, reported_first;
  // For Top: id i may be ranked in row r if bit i % 32 of allowed[allowed_first[r] + i / 32] is set, or if allowed_first[r] is -1, or if
  // allowed_first is empty. allowed_first has `rows` values or is empty. The logits of reported ids are returned whether the ids are
  // allowed or not.
  std::span<const std::uint32_t> allowed;
  std::span<const std::int32_t> allowed_first;
};

constexpr std::size_t mask_words(std::int64_t width) { return static_cast<std::size_t>((width + 31) / 32); }

struct Io {
  std::span<const float> in;  // rows x width of the input slot, or empty
  std::span<float> out;       // rows of the output slot x its width
};

}  // namespace pumice
