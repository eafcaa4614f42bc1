// The input of one run of a program: rows of tokens, the sequences that the rows belong to, and the memory for results.
#pragma once

#include <cstdint>
#include <span>

#include "core/kinds.h"

namespace pumice {

// Makes a run save the state of a sequence. After the first `rows` rows of the segment, the run writes the sequence's state to the store,
// under the number `state`.
struct SavedState {
  std::int32_t rows = 0, state = 0;
};

// The rows of one sequence in a ragged batch. Rows [first, first + rows) of the batch are positions [past, past + rows) of the sequence.
// Page pages[i] holds positions [32 i, 32 i + 32) in every cache of the store. `pages` has enough pages for past + rows positions.
struct Segment {
  std::int32_t first = 0, rows = 0, past = 0;
  std::span<const std::int32_t> pages;
  // Number of tokens in the text. Rope at position i uses the frequencies for a text of max(length, i + 1) tokens (RopeTable::original).
  std::int32_t length = 0;
  std::int32_t prompt = 0;  // number of leading rows that Pool leaves out; less than `rows`
  // No row of the segment attends to its last `unseen` rows. These last rows attend to the other rows. Must be 0 if Attend uses a cache.
  std::int32_t unseen = 0;
  // Number, in the store, of the state from which the run continues, which is the state after position past - 1. It is -1 if `past` is 0.
  // Only programs with states use it. The run does not change this state.
  std::int32_t state = -1;
  std::span<const SavedState> saves;  // states to write during the run, in ascending order of `rows`
  // Rope adds this number (0 to kPageTokens) to the position of each row. The draft head of an assistant uses 1. For a new row at position
  // p, the head attends to the model's cache, which has only positions 0 to p - 1. The row therefore gets the position p - 1, and
  // `ahead` = 1 makes Rope rotate the row for position p.
  std::int32_t ahead = 0;
};

struct Batch {
  std::int32_t rows = 0;  // number of token rows
  // One token id per row, or empty if the program's input is hidden rows. LogProb computes the log-probability of this id.
  std::span<const std::int32_t> ids;
  std::span<const std::int32_t> types;  // one token type per row; empty if all types are 0
  // The segments cover the rows in order. May be empty if the program has no Attend, Pool, Rope or Store, and no Embed with positions.
  std::span<const Segment> segments;
  std::span<const std::int32_t> selected;  // indices of the selected rows (Rows::selected), in ascending order
  // Ids whose logits Top returns even if they are not among the largest. For row r these are reported[reported_first[r]] to
  // reported[reported_first[r + 1] - 1], in ascending order. reported_first has rows + 1 values, or is empty if no ids are reported.
  std::span<const std::int32_t> reported, reported_first;
  // Row r needs only the ranked[r] largest logits from Top, where ranked[r] is 1 to Top::k. A device may return more, up to Top::k.
  // `ranked` has `rows` values, or is empty if each row needs the Top::k largest logits.
  std::span<const std::int32_t> ranked = {};
  // Bit masks of the ids among which Top finds the largest logits. Id i is allowed in row r if bit i % 32 of
  // allowed[allowed_first[r] + i / 32] is set. All ids are allowed in row r if allowed_first[r] is -1, and in all rows if allowed_first is
  // empty. Otherwise allowed_first has `rows` values. The logits of reported ids are returned even if those ids are not allowed.
  std::span<const std::uint32_t> allowed;
  std::span<const std::int32_t> allowed_first;
};

constexpr std::size_t mask_words(std::int64_t width) { return static_cast<std::size_t>((width + 31) / 32); }

struct Io {
  std::span<const float> in;  // the values of the program's input slot, rows x width; empty if the program has no input slot
  std::span<float> out;       // receives the values of the program's output slot, rows x width
};

}  // namespace pumice
