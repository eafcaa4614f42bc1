// A caller's handle to a request with a TextTask, which computes a given text in the batch that all callers share.
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

// A request for one given text. Only one thread may use a TextRequest. The destructor releases the pages of the text.
class TextRequest {
 public:
  // Throws as check_text() does.
  TextRequest(Scheduler& scheduler, std::span<const std::int32_t> ids, TextTask::Wants wants, std::span<float> out = {},
              const Likeliest& likeliest = {});
  ~TextRequest();  // does not wait for a running step; a step that still computes the text no longer writes to `out`
  TextRequest(const TextRequest&) = delete;
  TextRequest& operator=(const TextRequest&) = delete;

  // Waits until the results are in `out`, or until the pages are ready (Wants::pages, Wants::room). Throws the error that ended the
  // request. Throws `cancelled` at most 20 ms after cancel.request(). Calls cancel.begin() at most 20 ms after the start of the first step
  // that computes the text.
  void run(const Cancel& cancel);

  // Returns the pages, after run() with Wants::pages or Wants::room. No other thread uses them until the request ends.
  const PageTable& table() const { return state_->sequences.front().table; }
  PageTable& table() { return state_->sequences.front().table; }
  // Must be called when the caller has written the keys and values of all tokens. Other texts may then share the pages after the request
  // has ended.
  void written();

 private:
  Scheduler& scheduler_;
  const std::shared_ptr<RequestState> state_;
  Request request_;
};

}  // namespace pumice::engine
