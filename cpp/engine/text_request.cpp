#include "engine/text_request.h"

#include <mutex>

#include "core/error.h"
#include "engine/scheduler.h"

namespace pumice::engine {
namespace {

constexpr double kLookAtCancel = 20;  // milliseconds between two checks of a Cancel, because Cancel::request() wakes no thread

std::shared_ptr<RequestState> make_text_request(const Runtime& runtime, std::span<const std::int32_t> ids, TextTask::Wants wants,
                                                std::span<float> out, const Likeliest& likeliest) {
  check_text(runtime, ids);
  const auto request = std::make_shared<RequestState>();
  request->params.emplace_back();
  request->prompts.emplace_back(static_cast<std::int32_t>(ids.size()));
  Sequence& s = request->sequences.emplace_back();
  s.request = request.get();
  s.params = &request->params.front();
  s.prompt = &request->prompts.front();
  s.prompt->add(s);
  s.ids.assign(ids.begin(), ids.end());
  s.length = s.prompt->tokens;
  s.context = s.prompt->tokens;
  s.task = std::make_unique<TextTask>(wants, out, likeliest);
  return request;
}

}  // namespace

void check_text(const Runtime& runtime, std::span<const std::int32_t> ids) {
  require(!ids.empty(), "there are no tokens");
  require(runtime.pages, "this model keeps no key-value cache: it cannot continue a text");
  runtime.check_ids(ids, "text", 0);
  const auto count = static_cast<std::int64_t>(ids.size());
  if (count > runtime.n_ctx)
    fail(ErrorKind::context_length, "the text has ", count, " tokens, the context holds ", runtime.n_ctx,
         ": shorten it, or load with a larger n_ctx=");
  runtime.pages->check_fits(count);
}

TextRequest::TextRequest(Scheduler& scheduler, std::span<const std::int32_t> ids, TextTask::Wants wants, std::span<float> out,
                         const Likeliest& likeliest)
    : scheduler_(scheduler), state_(make_text_request(scheduler.runtime(), ids, wants, out, likeliest)), request_(scheduler, state_) {}

TextRequest::~TextRequest() { state_->sequences.front().task->close(); }

void TextRequest::run(const Cancel& cancel) {
  do {
    cancel.check();
    if (request_.timings().queued_seconds) cancel.begin();
  } while (!request_.wait(1, kLookAtCancel));
  request_.take();
}

void TextRequest::written() {
  const std::lock_guard lock(scheduler_.mutex_);
  Sequence& s = state_->sequences.front();
  s.computed = static_cast<std::int64_t>(s.ids.size());
}

}  // namespace pumice::engine
