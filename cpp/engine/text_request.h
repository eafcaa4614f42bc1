// A request without choices: a text whose keys and values are computed in the batch of all callers, and what a caller wants of its rows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/cancel.h"
#include "engine/request.h"
#include "engine/text_task.h"

namespace pumice::engine {

// Throws invalid_argument, context_length or out_of_memory where the model cannot compute the text.
void check_text(const Runtime& runtime, std::span<const std::int32_t> ids);

// One thread uses it. Its pages, where it keeps them, are given back at its end.
class TextRequest {
 public:
  // Throws as check_text() does.
  TextRequest(Scheduler& scheduler, std::span<const std::int32_t> ids, TextTask::Wants wants, std::span<float> out = {});
  ~TextRequest();  // at once: a step that still computes the text gives nothing any more
  TextRequest(const TextRequest&) = delete;
  TextRequest& operator=(const TextRequest&) = delete;

  // Returns when everything is there. Throws what ended the request, and `cancelled` within 20 ms of cancel.request().
  void run(const Cancel& cancel);

  // After run(), where pages are kept: they are this thread's alone until the end of the request.
  const PageTable& table() const { return state_->sequences.front().table; }
  PageTable& table() { return state_->sequences.front().table; }
  // The caller has written keys and values of all tokens: other texts may share them.
  void written();

 private:
  Scheduler& scheduler_;
  const std::shared_ptr<RequestState> state_;
  Request request_;
};

}  // namespace pumice::engine
