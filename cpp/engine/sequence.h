// One text that is being generated.
//
// A sequence is its ids (prompt, then what was sampled) and the number of them that are computed: their keys and values are in the cache.
// Prefill and decode are one thing: a step runs some of the ids that are not computed yet, and where that reaches the last one, a token is
// sampled. So a sequence whose pages are taken away simply starts again from its ids, and ends with the same tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/page_pool.h"
#include "engine/prompt.h"
#include "engine/sampler.h"
#include "engine/speculation.h"
#include "engine/text_task.h"
#include "engine/token_filter.h"

namespace pumice::engine {

enum class Finish : std::uint8_t { none, eos, length, grammar, deadline };  // grammar: a filter is complete; deadline: max_seconds

struct GenerateParams {
  std::int64_t max_new_tokens = 512;
  std::int64_t min_new_tokens = 0;                   // none of eos_ids and stop_ids is among the first so many tokens
  std::int32_t n = 1;                                // sequences per prompt
  std::vector<std::int32_t> eos_ids;                 // end a sequence, and are not given out
  std::vector<std::int32_t> stop_ids;                // ids by which the caller ends a sequence
  std::vector<std::vector<std::int32_t>> bad_words;  // rows of ids that may not come
  SamplingParams sampling;
  std::vector<std::shared_ptr<const TokenFilter>> filters;  // in their state before the first token; each sequence gets clones
  bool shows_logits = false;                                // the caller changes the logits before a token is chosen (Request::shown)
  std::int32_t read_ahead = 0;                              // a sequence with so many unread tokens is parked; 0: no limit
  std::int32_t priority = 0;                                // requests of a higher one go first
  float max_seconds = 0;                                    // the request ends so long after it joined the batch; 0: no limit
  Speculation speculation;
};

struct News {
  std::int32_t sequence = 0;
  std::vector<std::int32_t> ids;
  Finish finish = Finish::none;
  std::vector<float> logprobs;        // one per id, when asked for
  std::vector<std::int32_t> top_ids;  // ids x top_count
  std::vector<float> top_logprobs;
  std::int32_t top_count = 0;
  bool empty() const { return ids.empty() && finish == Finish::none; }
};

struct RequestState;

struct Sequence {
  enum class Life : std::uint8_t {
    waiting,    // it needs pages for all of its ids
    following,  // the leader of its prompt computes for it (Prompt)
    running,    // it has pages, and steps take rows of it
    parked,     // it has pages and sits out; other sequences may take the pages (PagePool::park)
    held,       // a text without choices is done: its pages are its caller's thread's until the request is closed
    ended
  };
  // What a running step reads of a sequence stays as it is until the step is over.
  enum class InStep : std::uint8_t { no, yes, leaving };  // leaving: it ends with the step

  RequestState* request = nullptr;
  const GenerateParams* params = nullptr;
  Prompt* prompt = nullptr;
  std::int32_t index = 0;  // in its request
  Draw draw;               // seed and stream of its random numbers
  Life life = Life::waiting;
  InStep in_step = InStep::no;

  std::vector<std::int32_t> ids;
  std::int64_t computed = 0;  // the first so many ids have keys and values in the pages
  std::int64_t context = 0;   // most ids: n_ctx, or what the page budget holds
  std::int32_t length = 0;    // Segment::length: the prompt's, until the rope wants all computed anew
  PageTable table;

  TokenCounts seen;
  std::optional<float> mu;  // mirostat's; nothing before the first token
  bool from_top = false;    // tokens are chosen from the device's ranking (Top), which needs the list of changed ids
  ChangedIds changed;
  std::vector<std::unique_ptr<TokenFilter>> filters;  // have accepted all generated tokens
  // With GenerateParams::shows_logits: the logits after the last id, until a token is chosen; the caller's logits in their place; a bit for
  // each id that the caller has not forbidden (empty: none was).
  std::vector<float> row, answer;
  std::vector<std::uint32_t> left_by_answer;

  std::unique_ptr<TextTask> task;    // null: tokens are chosen; else the sequence is only read, and ends with its last id
  std::unique_ptr<Guesses> guesses;  // null: none are made
  std::int32_t guess_room = 0;       // the next step may have so many guesses: there are pages for them
  News news;                         // unread

  std::int64_t pending() const { return static_cast<std::int64_t>(ids.size()) - computed; }
  std::int64_t generated() const { return static_cast<std::int64_t>(ids.size()) - prompt->tokens; }
  std::span<const std::int32_t> known() const { return std::span(ids).first(static_cast<std::size_t>(computed)); }
  bool ended() const { return life == Life::ended; }
  bool decodes() const { return life == Life::running && !task && pending() == 1; }
  bool reads_prompt() const { return life == Life::running && pending() > (task ? 0 : 1); }
  // So many of its first ids may come from the prefix cache: rows that give something are computed.
  std::int64_t sharable() const { return task && task->wants_each_row() ? task->given : static_cast<std::int64_t>(ids.size()); }
  bool shown() const { return !row.empty() && answer.empty(); }  // to the caller, who has not answered
  bool lags() const { return params->read_ahead > 0 && news.ids.size() >= static_cast<std::size_t>(params->read_ahead); }

  void see(std::int32_t id, bool generated) {
    seen.add(id, generated);
    if (from_top) changed.add(id);
  }
  // Gives its pages back, and waits for others.
  void start_again(PagePool& pool) {
    pool.release(table, known());
    computed = 0;
    life = Life::waiting;
  }
};

}  // namespace pumice::engine
