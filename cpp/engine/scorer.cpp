#include "engine/scorer.h"

#include "core/error.h"
#include "engine/text_request.h"

namespace pumice::engine {

void logits(Scheduler& scheduler, std::span<const std::int32_t> ids, bool all, std::span<float> out, const Cancel& cancel) {
  const std::size_t wanted = static_cast<std::size_t>(scheduler.runtime().pipeline.vocab_size()) * (all ? ids.size() : 1);
  require(out.size() == wanted, "logits: the result has room for ", out.size(), " values, needed: ", wanted);
  TextRequest(scheduler, ids, all ? TextTask::Wants::all_logits : TextTask::Wants::last_logits, out).run(cancel);
}

void score(Scheduler& scheduler, std::span<const std::int32_t> ids, std::span<float> out, const Cancel& cancel) {
  require(out.size() + 1 == ids.size(), "score: the result has room for ", out.size(), " values, needed: one less than the ", ids.size(),
          " tokens");
  TextRequest(scheduler, ids, TextTask::Wants::scores, out).run(cancel);
}

}  // namespace pumice::engine
