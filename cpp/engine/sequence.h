// One text that is being generated.
//
// A sequence is its ids (prompt, then what was sampled) and how many of them are computed, that is, have keys and values in the cache.
// Prefill and decode are one thing: a step runs some of the ids that are not computed yet; where that reaches the last one, a token is
// sampled. So a sequence whose pages were needed elsewhere simply starts again from its ids, and ends with the same tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/page_pool.h"
#include "engine/sampler.h"
#include "engine/speculation.h"
#include "engine/token_filter.h"

namespace pumice::engine {

enum class Finish : std::uint8_t { none, eos, length, grammar };  // grammar: a filter is complete

struct GenerateParams {
  std::int64_t max_new_tokens = 512;
  std::int64_t min_new_tokens = 0;    // before so many, none of eos_ids and stop_ids comes
  std::int32_t n = 1;                 // sequences per prompt
  std::vector<std::int32_t> eos_ids;  // end a sequence; not given out
  std::vector<std::int32_t> stop_ids;  // with which the caller ends it
  std::vector<std::vector<std::int32_t>> bad_words;  // rows of ids that may not come
  SamplingParams sampling;
  std::vector<std::shared_ptr<const TokenFilter>> filters;  // as they are at the beginning of an answer: sequences get clones
  bool shows_logits = false;          // the caller changes them before a token is chosen (Request::shown)
  std::int32_t read_ahead = 0;        // tokens that nobody has read, with which a sequence sits out; 0: no limit
  std::int32_t priority = 0;          // among requests: higher ones go first
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

class Request;

struct Sequence {
  // follows: its prompt is being computed by the first sequence of the same prompt.
  enum class State : std::uint8_t { waits, follows, runs, ended };

  Request* request = nullptr;
  const GenerateParams* params = nullptr;
  std::int32_t index = 0, prompt_tokens = 0;  // index: in its request
  Draw draw;                                  // its random numbers: seed and stream
  State state = State::waits;
  std::vector<std::int32_t> ids;
  std::int64_t computed = 0;
  std::int64_t context = 0;  // most tokens: n_ctx, or what the page budget holds
  std::int32_t length = 0;   // Segment::length: of the prompt, until the rope wants all computed anew
  PageTable table;
  TokenCounts seen;
  std::optional<float> mu;  // mirostat's; none: at the beginning
  bool from_top = false;  // tokens are chosen from the device's ranking, which needs the list of changed ids
  ChangedIds changed;
  std::vector<std::unique_ptr<TokenFilter>> filters;  // that have accepted all tokens generated
  // Where the caller changes logits: the row after the last id, until a token is chosen from it, and what the caller made of it.
  std::vector<float> row, answer;
  std::vector<std::uint32_t> left_by_answer;  // a bit for each id that it has not forbidden; empty: none was
  News news;             // that nobody has read
  bool in_step = false;  // of the step that is being computed: what it reads stays as it is until that has ended
  bool parked = false;   // sits out: its reader lags
  bool dropped = false;  // nobody wants more of it; ends with the step
  std::unique_ptr<Guesses> guesses;  // null: none are made
  std::int32_t guess_room = 0;       // how many the next step may have: there are pages for them
  std::vector<std::uint64_t> prefixes;  // of its prompt up to each full page: a hash; made when first compared

  std::int64_t pending() const { return static_cast<std::int64_t>(ids.size()) - computed; }
  std::int64_t generated() const { return static_cast<std::int64_t>(ids.size()) - prompt_tokens; }
  std::span<const std::int32_t> known() const { return std::span(ids).first(static_cast<std::size_t>(computed)); }
  bool decodes() const { return state == State::runs && pending() == 1; }
  bool reads_prompt() const { return state == State::runs && pending() > 1; }
  void see(std::int32_t id, bool generated) {
    seen.add(id, generated);
    if (from_top) changed.add(id);
  }
  bool shown() const { return !row.empty() && answer.empty(); }  // to the caller, who has not answered
  bool lags() const { return params->read_ahead > 0 && news.ids.size() >= static_cast<std::size_t>(params->read_ahead); }
};

}  // namespace pumice::engine
