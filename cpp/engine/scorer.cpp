#include "engine/scorer.h"

#include "core/error.h"
#include "engine/text_request.h"

namespace pumice::engine {

void logits(Scheduler& scheduler, std::span<const std::int32_t> ids, bool all, std::span<float> out, const Cancel& cancel) {
  const std::size_t wanted = static_cast<std::size_t>(scheduler.runtime().pipeline.vocab_size()) * (all ? ids.size() : 1);
  require(out.size() == wanted, "logits: the result has room for ", out.size(), " values, needed: ", wanted);
  TextRequest(scheduler, ids, all ? TextTask::Wants::all_logits : TextTask::Wants::last_logits, out).run(cancel);
}

void score(Scheduler& scheduler, std::span<const std::int32_t> ids, std::span<float> out, const Cancel& cancel,
           const Likeliest& likeliest) {
  require(out.size() + 1 == ids.size(), "score: the result has room for ", out.size(), " values, needed: one less than the ", ids.size(),
          " tokens");
  const std::int32_t vocab = scheduler.runtime().pipeline.vocab_size();
  require(likeliest.count >= 0 && likeliest.count <= vocab, "score: ", likeliest.count,
          " likeliest tokens are asked for; the vocabulary has ", vocab);
  const std::size_t values = out.size() * static_cast<std::size_t>(likeliest.count);
  require(likeliest.ids.size() == values && likeliest.log_probs.size() == values, "score: there is room for ", likeliest.ids.size(),
          " likeliest tokens and ", likeliest.log_probs.size(), " log-probabilities, needed: ", values);
  TextRequest(scheduler, ids, TextTask::Wants::scores, out, likeliest).run(cancel);
}

}  // namespace pumice::engine
