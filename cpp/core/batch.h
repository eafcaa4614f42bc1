// The input of one run of a program: rows of tokens, the sequences that they belong to, and the memory for results.
#pragma once

#include <cstdint>
#include <span>

#include "core/kinds.h"

namespace pumice {

// After the first `rows` rows of a segment, the sequence's state is written to state number `state` of the store.
struct SavedState {
  std::int32_t rows = 0, state = 0;
};

// The rows of one sequence in a ragged batch. Rows [first, first + rows) of the batch are positions [past, past + rows) of the sequence.
// Page pages[i] holds positions [32 i, 32 i + 32) in every cache of the store. There are enough pages for past + rows positions.
struct Segment {
  std::int32_t first = 0, rows = 0, past = 0;
  std::span<const std::int32_t> pages;
  // Number of tokens in the text. Rope at position i uses the frequencies for a text of max(length, i + 1) tokens (RopeTable::original).
  std::int32_t length = 0;
  std::int32_t prompt = 0;  // number of leading rows that Pool leaves out; less than `rows`
  // Number of trailing rows that no row attends to, not even these rows themselves. They do attend to the other rows. Only for Attend
  // without a cache.
  std::int32_t unseen = 0;
  // For programs with states: the number in the store of the states after position past - 1, or -1 if past is 0. It does not change.
  std::int32_t state = -1;
  std::span<const SavedState> saves;  // ascending by rows
  // Rope takes each row's position to be this much larger. So a row can stand at a position that has no keys and values, and attend to all
  // positions before it: it is then a row of the position before, and `ahead` is 1. 0 to kPageTokens.
  std::int32_t ahead = 0;
};

struct Batch {
  std::int32_t rows = 0;  // number of token rows
  // One id per row (LogProb: the target id), or empty if the program's input is hidden rows.
  std::span<const std::int32_t> ids;
  std::span<const std::int32_t> types;  // one type per row, or empty if all types are 0
  // They cover the rows in order. May be empty if the program has no Attend, Pool, Rope, Store and no Embed with positions.
  std::span<const Segment> segments;
  std::span<const std::int32_t> selected;  // indices of the selected rows, ascending
  // For Top. The reported ids of row r are reported[reported_first[r]] to reported[reported_first[r + 1] - 1], ascending. reported_first
  // has rows + 1 values, or is empty if no ids are reported.
  std::span<const std::int32_t> reported, reported_first;
  // For Top. Row r needs the ranked[r] largest logits, 1 to Top::k. A device may rank more, up to Top::k. Has `rows` values, or is empty if
  // each row needs Top::k.
  std::span<const std::int32_t> ranked = {};
  // For Top. Id i is allowed in row r if bit i % 32 of allowed[allowed_first[r] + i / 32] is set, or if allowed_first[r] is -1, or if
  // allowed_first is empty. allowed_first has `rows` values or is empty. The logits of reported ids are returned even if those ids are not
  // allowed.
  std::span<const std::uint32_t> allowed;
  std::span<const std::int32_t> allowed_first;
};

constexpr std::size_t mask_words(std::int64_t width) { return static_cast<std::size_t>((width + 31) / 32); }

struct Io {
  std::span<const float> in;  // the input slot, rows x width; empty if the program has no input slot
  std::span<float> out;       // receives the output slot, rows x width
};

}  // namespace pumice
