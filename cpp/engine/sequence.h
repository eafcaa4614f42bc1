// A sequence is a text that is being generated, or a given text whose logits, scores or pages are wanted (TextTask).
//
// Its state is its ids (the prompt, then the sampled tokens) and the number of ids that are computed, which means that their keys and
// values are in the cache. Prefill and decode are the same operation: a step computes some of the ids that are not computed yet, and a
// token is sampled after the last id. So a preempted sequence can start again from its ids, and it ends with the same tokens.
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

// Why a sequence ended. `grammar` means that a token filter allows nothing more, and `deadline` that max_seconds have passed.
enum class Finish : std::uint8_t { none, eos, length, grammar, deadline };

struct ReasoningMarks;

struct GenerateParams {
  std::int64_t max_new_tokens = 512;
  std::int64_t min_new_tokens = 0;     // minimum number of tokens before eos_ids and stop_ids are allowed
  std::int32_t n = 1;                  // sequences per prompt
  std::vector<std::int32_t> eos_ids;   // ids that end a sequence and are not part of the answer
  std::vector<std::int32_t> stop_ids;  // ids at which the caller ends a sequence; the engine uses them for min_new_tokens only
  std::vector<std::vector<std::int32_t>> bad_words;  // lists of consecutive ids that must not be generated
  std::int64_t max_reasoning_tokens = -1;            // the reasoning is ended after this many tokens; -1: no budget
  std::shared_ptr<const ReasoningMarks> reasoning;   // how reasoning is marked; needed for a budget
  bool reasoning_opened = false;                     // the prompt has opened the reasoning
  SamplingParams sampling;
  std::vector<std::shared_ptr<const TokenFilter>> filters;  // in their state before the first token; each sequence gets clones
  bool shows_logits = false;                                // the caller changes the logits before a token is chosen (Request::shown)
  std::int32_t read_ahead = 0;                              // a sequence with this many unread tokens is parked; 0: no limit
  std::int32_t priority = 0;                                // requests with a higher priority go first
  float max_seconds = 0;                                    // time from joining the batch to the request's deadline; 0: no deadline
  float chunk_seconds = 0;                                  // least time between deliveries of tokens; the first token comes at once
  Speculation speculation;
};

struct News {
  std::int32_t sequence = 0;
  std::vector<std::int32_t> ids;
  Finish finish = Finish::none;
  std::vector<float> logprobs;        // one per id, if SamplingParams::logprobs asks for them
  std::vector<std::int32_t> top_ids;  // top_count for each id, likeliest first
  std::vector<float> top_logprobs;
  std::int32_t top_count = 0;
  std::int64_t reasoning_cut = -1;  // TokenFilter::reasoning_cut()
  bool empty() const { return ids.empty() && finish == Finish::none; }
};

struct RequestState;

struct Sequence {
  enum class Life : std::uint8_t {
    waiting,    // it needs pages for all of its ids
    following,  // the leader of its prompt computes the prompt (Prompt)
    running,    // it has pages, and steps compute rows of it
    parked,     // it takes part in no step, and keeps its pages until other sequences need them (PagePool::park)
    held,       // its TextTask has the pages that it wanted, and the caller's thread uses them until it closes the request
    ended
  };
  // Whether the running step reads the sequence. If so, the data that the step reads do not change until the step is over. `leaving` means
  // that the step reads the sequence, and that the sequence ends when the step is over.
  enum class InStep : std::uint8_t { no, yes, leaving };

  RequestState* request = nullptr;
  const GenerateParams* params = nullptr;
  Prompt* prompt = nullptr;
  std::int32_t index = 0;  // index of the sequence in its request
  Draw draw;               // the seed and the stream of its random numbers
  Life life = Life::waiting;
  InStep in_step = InStep::no;

  std::vector<std::int32_t> ids;
  std::int64_t computed = 0;  // number of first ids whose keys and values are in the pages
  std::int64_t context = 0;   // maximum number of ids: n_ctx, or less if the page budget holds less
  std::int32_t length = 0;    // Segment::length: the prompt's length, until the text outgrows its rope (Admission::follow_rope)
  PageTable table;

  TokenCounts seen;
  bool answered = false;    // its first token, or its end token, was chosen
  std::optional<float> mu;  // mirostat's mu; empty before the first token
  bool from_top = false;    // tokens are chosen from the device's ranking (Top), which needs the list `changed`
  ChangedIds changed;
  std::vector<std::unique_ptr<TokenFilter>> filters;  // these have accepted all generated tokens
  // The next three members are used with GenerateParams::shows_logits only, and are cleared when a token is chosen.
  std::vector<float> row;                     // the logits after the last id
  std::vector<float> answer;                  // the logits that the caller has set in place of `row`
  std::vector<std::uint32_t> left_by_answer;  // one bit per id, set if the caller allows the id; empty: all are allowed

  std::unique_ptr<TextTask> task;    // null if tokens are generated; otherwise the sequence ends with its last id
  std::unique_ptr<Guesses> guesses;  // null if no guesses (draft tokens) are made
  std::int32_t guess_room = 0;       // maximum number of guesses in the next step; there are pages for them
  News news;                         // unread

  std::int64_t pending() const { return static_cast<std::int64_t>(ids.size()) - computed; }
  std::int64_t generated() const { return static_cast<std::int64_t>(ids.size()) - prompt->tokens; }
  std::span<const std::int32_t> known() const { return std::span(ids).first(static_cast<std::size_t>(computed)); }
  bool ended() const { return life == Life::ended; }
  bool decodes() const { return life == Life::running && !task && pending() == 1; }
  bool reads_prompt() const { return life == Life::running && pending() > (task ? 0 : 1); }
  // Returns how many of the first ids may be taken from the prefix cache. A row that yields logits or a score must be computed anyway.
  std::int64_t sharable() const { return task && task->wants_each_row() ? task->given : static_cast<std::int64_t>(ids.size()); }
  bool shown() const { return !row.empty() && answer.empty(); }  // its logits wait for the caller's answer
  bool lags() const { return params->read_ahead > 0 && news.ids.size() >= static_cast<std::size_t>(params->read_ahead); }

  void see(std::int32_t id, bool generated) {
    seen.add(id, generated);
    if (from_top) changed.add(id);
  }
  // Gives the pages back and makes the sequence wait for new ones. This is how sequences are preempted.
  void start_again(PagePool& pool) {
    pool.release(table, known());
    computed = 0;
    life = Life::waiting;
  }
};

}  // namespace pumice::engine
