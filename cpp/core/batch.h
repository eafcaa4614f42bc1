// What one run of a program gets: rows of tokens, the sequences they belong to, and where results go.
#pragma once

#include <cstdint>
#include <span>

#include "core/kinds.h"

namespace pumice {

// One sequence's rows in a ragged batch: rows [first, first + rows) of the batch are its positions [past, past + rows).
// pages[i] holds positions [32 i, 32 i + 32) in every cache of the store; there are enough for past + rows.
struct Segment {
  std::int32_t first = 0, rows = 0, past = 0;
  std::span<const std::int32_t> pages;
  std::int32_t length = 0;  // tokens of its text: position i turns as in one of max(length, i + 1) (RopeTable::original)
  std::int32_t prompt = 0;  // of its first rows: Pool leaves so many out, fewer than `rows`
  std::int32_t unseen = 0;  // of its last rows: they attend to the others and nobody attends to them (Attend without a cache)
};

struct Batch {
  std::int32_t rows = 0;                     // token rows in all
  std::span<const std::int32_t> ids;         // rows, or empty when the program takes hidden rows (LogProb: the targets)
  std::span<const std::int32_t> types;       // rows, or empty for all 0
  std::span<const Segment> segments;         // cover the rows in order; may be empty for programs without Attend, Pool, Rope, Store
  std::span<const std::int32_t> selected;    // rows, ascending
  // Top: the reported ids of row r are reported[reported_first[r]] to reported[reported_first[r + 1] - 1], ascending. reported_first: rows
  // + 1, or empty for none.
  std::span<const std::int32_t> reported, reported_first;
  // Top: of row r, id i may be among the largest where bit i % 32 of allowed[allowed_first[r] + i / 32] is set; -1, and no list at all: any
  // id may. Reported ids are given back whether they are allowed or not. allowed_first: rows, or empty.
  std::span<const std::uint32_t> allowed;
  std::span<const std::int32_t> allowed_first;
};

constexpr std::size_t mask_words(std::int64_t width) { return static_cast<std::size_t>((width + 31) / 32); }

struct Io {
  std::span<const float> in;  // rows x width of the input slot, or empty
  std::span<float> out;       // rows of the output slot x its width
};

}  // namespace pumice
