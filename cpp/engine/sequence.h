// A sequence is a text that is being generated, or a given text whose logits, scores or pages are wanted (TextTask).
//
// The state of a sequence consists of its ids (the prompt, then the sampled tokens) and of the number of computed ids. An id is computed if
// its keys and values are in the cache. Prefill and decode are the same operation: a step computes some of the ids that are not computed
// yet, and a token is sampled after the last id. So a preempted sequence can start again from its ids, and it gets the same tokens.
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

// Why a sequence ended. `none` means that it has not ended, `grammar` that a token filter allows no further token, and `deadline` that
// max_seconds have passed.
enum class Finish : std::uint8_t { none, eos, length, grammar, deadline };

struct ReasoningMarks;

struct GenerateParams {
  std::int64_t max_new_tokens = 512;
  std::int64_t min_new_tokens = 0;     // minimum number of tokens before eos_ids and stop_ids are allowed
  std::int32_t n = 1;                  // number of sequences per prompt
  std::vector<std::int32_t> eos_ids;   // ids that end a sequence and are not part of the answer
  std::vector<std::int32_t> stop_ids;  // ids at which the caller ends a sequence; the engine uses them for min_new_tokens only
  std::vector<std::vector<std::int32_t>> bad_words;  // lists of consecutive ids that must not be generated
  std::int64_t max_reasoning_tokens = -1;            // the reasoning is ended after this many tokens; -1: no limit
  std::shared_ptr<const ReasoningMarks> reasoning;   // how reasoning is marked; needed unless max_reasoning_tokens is -1
  bool reasoning_opened = false;                     // true if the prompt ends inside of reasoning
  SamplingParams sampling;
  std::vector<std::shared_ptr<const TokenFilter>> filters;  // must not have accepted any token; each sequence gets clones of these
  bool shows_logits = false;                                // true if the caller changes logits before a token is chosen (Request::shown)
  std::int32_t read_ahead = 0;                              // a sequence with this many unread tokens waits for its reader; 0: no limit
  std::int32_t priority = 0;                                // requests with a higher priority go first
  float max_seconds = 0;                                    // time from joining the batch to the request's deadline; 0: no deadline
  float chunk_seconds = 0;                                  // minimum time between two deliveries of tokens; the first delivery is at once
  Speculation speculation;
};

struct News {
  std::int32_t sequence = 0;
  std::vector<std::int32_t> ids;
  Finish finish = Finish::none;
  std::vector<float> logprobs;        // one log-probability per id; empty if SamplingParams::logprobs is -1
  std::vector<std::int32_t> top_ids;  // the top_count likeliest tokens for each id, likeliest first
  std::vector<float> top_logprobs;    // log-probabilities of top_ids
  std::int32_t top_count = 0;
  std::int64_t reasoning_cut = -1;  // largest TokenFilter::reasoning_cut() of the sequence's filters; -1: none of them ended the reasoning
  bool empty() const { return ids.empty() && finish == Finish::none; }
};

struct RequestState;

struct Sequence {
  enum class Life : std::uint8_t {
    waiting,    // waits for pages for all of its ids
    following,  // waits until another sequence, the leader, has computed the prompt that they share (Prompt)
    running,    // has pages, and steps compute its rows
    parked,     // takes part in no step, and keeps its pages until other sequences need them (PagePool::park)
    held,       // has the pages for its TextTask, and the caller's thread uses these pages until the caller closes the request
    ended
  };
  // Whether the running step reads the sequence. In that case, the data that the step reads do not change until the step is over. `leaving`
  // means that the step reads the sequence and that the sequence ends when the step is over.
  enum class InStep : std::uint8_t { no, yes, leaving };

  RequestState* request = nullptr;
  const GenerateParams* params = nullptr;
  Prompt* prompt = nullptr;
  std::int32_t index = 0;  // index of the sequence in its request
  Draw draw;               // the seed and the stream of its random numbers
  Life life = Life::waiting;
  InStep in_step = InStep::no;

  std::vector<std::int32_t> ids;
  std::int64_t computed = 0;  // number of ids, from the first on, whose keys and values are in the pages
  std::int64_t context = 0;   // maximum number of ids: n_ctx, or less if the page budget holds less
  // The value for Segment::length. It is the prompt's length or, if LongRoPE has changed its frequencies since, the text's length at the
  // last change (Admission::follow_rope).
  std::int32_t length = 0;
  PageTable table;

  TokenCounts seen;
  bool answered = false;    // true if a first token, or the end token, was chosen; used to measure the time to the first token
  std::optional<float> mu;  // mirostat's mu; empty before the first token
  bool from_top = false;    // true if tokens may be chosen from the device's ranking (Top) in place of the whole row of logits
  ChangedIds changed;       // ids whose logits penalties or a bias change; kept only if from_top is true
  std::vector<std::unique_ptr<TokenFilter>> filters;  // token filters in their state after all generated tokens
  // The next three members are used with GenerateParams::shows_logits only, and are cleared when a token is chosen.
  std::vector<float> row;                     // the logits after the last id
  std::vector<float> answer;                  // the logits that the caller has set in place of `row`
  std::vector<std::uint32_t> left_by_answer;  // one bit per id, set if the caller allows the id; empty if all ids are allowed

  std::unique_ptr<TextTask> task;    // what is computed for a given text; null if tokens are generated
  std::unique_ptr<Guesses> guesses;  // null if no guesses (draft tokens) are made
  std::int32_t guess_room = 0;       // maximum number of guesses in the next step; `table` has pages for so many guesses
  News news;                         // news that the caller has not read yet

  std::int64_t pending() const { return static_cast<std::int64_t>(ids.size()) - computed; }
  std::int64_t generated() const { return static_cast<std::int64_t>(ids.size()) - prompt->tokens; }
  std::span<const std::int32_t> known() const { return std::span(ids).first(static_cast<std::size_t>(computed)); }
  bool ended() const { return life == Life::ended; }
  bool decodes() const { return life == Life::running && !task && pending() == 1; }
  bool reads_prompt() const { return life == Life::running && pending() > (task ? 0 : 1); }
  // Returns how many ids, from the first on, may be taken from the prefix cache. If each row yields a result (TextTask), only the ids may
  // be taken whose results the caller has already.
  std::int64_t sharable() const { return task && task->wants_each_row() ? task->given : static_cast<std::int64_t>(ids.size()); }
  bool shown() const { return !row.empty() && answer.empty(); }  // returns true if the logits wait for the caller's answer
  bool lags() const { return params->read_ahead > 0 && news.ids.size() >= static_cast<std::size_t>(params->read_ahead); }

  void see(std::int32_t id, bool generated) {
    seen.add(id, generated);
    if (from_top) changed.add(id);
  }
  // Releases the pages and makes the sequence wait for new pages. Sequences are preempted in this way.
  void start_again(PagePool& pool) {
    pool.release(table, known());
    computed = 0;
    life = Life::waiting;
  }
};

}  // namespace pumice::engine
