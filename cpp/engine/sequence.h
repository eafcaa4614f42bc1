// One sequence: a text that is generated, or only read (TextTask).
//
// A sequence is its ids (the prompt, then the sampled tokens) and how many of them are computed: their keys and values are in the cache.
// Prefill and decode are the same operation: a step computes some of the remaining ids, and a token is sampled after the last one. So a
// preempted sequence starts again from its ids, and ends with the same tokens.
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
  std::int64_t min_new_tokens = 0;                   // so many tokens come before any of eos_ids and stop_ids
  std::int32_t n = 1;                                // sequences per prompt
  std::vector<std::int32_t> eos_ids;                 // each ends a sequence, and is not part of the answer
  std::vector<std::int32_t> stop_ids;                // ids at which the caller ends a sequence itself
  std::vector<std::vector<std::int32_t>> bad_words;  // runs of ids that must not come
  SamplingParams sampling;
  std::vector<std::shared_ptr<const TokenFilter>> filters;  // in their state before the first token; each sequence gets clones
  bool shows_logits = false;                                // the caller changes the logits before a token is chosen (Request::shown)
  std::int32_t read_ahead = 0;                              // a sequence with so many unread tokens is parked; 0: no limit
  std::int32_t priority = 0;                                // requests of a higher one go first
  float max_seconds = 0;                                    // deadline of the request, from the moment when it joins the batch; 0: none
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
    following,  // the leader of its prompt computes the prompt (Prompt)
    running,    // it has pages, and steps take rows of it
    parked,     // it sits out with its pages, which other sequences may take (PagePool::park)
    held,       // a text without choices is computed; its caller's thread uses the pages until it closes the request
    ended
  };
  // Data of a sequence that a running step reads does not change until the step is over.
  enum class InStep : std::uint8_t { no, yes, leaving };  // leaving: it ends when the step is over

  RequestState* request = nullptr;
  const GenerateParams* params = nullptr;
  Prompt* prompt = nullptr;
  std::int32_t index = 0;  // in its request
  Draw draw;               // the seed and the stream of its random numbers
  Life life = Life::waiting;
  InStep in_step = InStep::no;

  std::vector<std::int32_t> ids;
  std::int64_t computed = 0;  // how many of the first ids have keys and values in the pages
  std::int64_t context = 0;   // most ids: n_ctx, or fewer where the page budget holds fewer
  std::int32_t length = 0;    // Segment::length: that of the prompt, until the text outgrows its rope (Admission::follow_rope)
  PageTable table;

  TokenCounts seen;
  std::optional<float> mu;  // mirostat's mu; empty before the first token
  bool from_top = false;    // tokens are chosen from the device's ranking (Top), which needs the list of changed ids
  ChangedIds changed;
  std::vector<std::unique_ptr<TokenFilter>> filters;  // have accepted all generated tokens
  // With GenerateParams::shows_logits, until a token is chosen:
  std::vector<float> row;                     // the logits after the last id
  std::vector<float> answer;                  // the caller's logits in their place
  std::vector<std::uint32_t> left_by_answer;  // a bit for each id that the caller allows; empty: all

  std::unique_ptr<TextTask> task;    // null: tokens are chosen; else the text is only read, and ends with its last id
  std::unique_ptr<Guesses> guesses;  // null: none are made
  std::int32_t guess_room = 0;       // most guesses of the next step, for which there are pages
  News news;                         // unread

  std::int64_t pending() const { return static_cast<std::int64_t>(ids.size()) - computed; }
  std::int64_t generated() const { return static_cast<std::int64_t>(ids.size()) - prompt->tokens; }
  std::span<const std::int32_t> known() const { return std::span(ids).first(static_cast<std::size_t>(computed)); }
  bool ended() const { return life == Life::ended; }
  bool decodes() const { return life == Life::running && !task && pending() == 1; }
  bool reads_prompt() const { return life == Life::running && pending() > (task ? 0 : 1); }
  // How many of its first ids may come from the prefix cache. A row that gives logits or a score must be computed.
  std::int64_t sharable() const { return task && task->wants_each_row() ? task->given : static_cast<std::int64_t>(ids.size()); }
  bool shown() const { return !row.empty() && answer.empty(); }  // its logits wait for the caller's answer
  bool lags() const { return params->read_ahead > 0 && news.ids.size() >= static_cast<std::size_t>(params->read_ahead); }

  void see(std::int32_t id, bool generated) {
    seen.add(id, generated);
    if (from_top) changed.add(id);
  }
  // Preemption: gives the pages back, and waits for new ones.
  void start_again(PagePool& pool) {
    pool.release(table, known());
    computed = 0;
    life = Life::waiting;
  }
};

}  // namespace pumice::engine
