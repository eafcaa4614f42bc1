// A caller's handle to a request without choices: a text is computed in the batch of all callers, and no token is chosen after it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/cancel.h"
#include "engine/request.h"
#include "engine/text_task.h"

namespace pumice::engine {

// Throws invalid_argument, context_length or out_of_memory if the model cannot compute the text.
void check_text(const Runtime& runtime, std::span<const std::int32_t> ids);

// One thread uses it. Its destructor gives the pages back.
class TextRequest {
 public:
  // Throws as check_text() does.
  TextRequest(Scheduler& scheduler, std::span<const std::int32_t> ids, TextTask::Wants wants, std::span<float> out = {});
  ~TextRequest();  // waits for no step: one that still computes the text writes nothing to `out` from then on
  TextRequest(const TextRequest&) = delete;
  TextRequest& operator=(const TextRequest&) = delete;

  // Returns when the results are in `out`, or the pages are computed. Throws the error that ended the request, and `cancelled` within 20 ms
  // of cancel.request().
  void run(const Cancel& cancel);

  // After run(), for Wants::pages and Wants::room: the pages, which this thread alone uses until the end of the request.
  const PageTable& table() const { return state_->sequences.front().table; }
  PageTable& table() { return state_->sequences.front().table; }
  // The caller has written the keys and values of all tokens: from the end of the request on, other texts may share them.
  void written();

 private:
  Scheduler& scheduler_;
  const std::shared_ptr<RequestState> state_;
  Request request_;
};

}  // namespace pumice::engine
