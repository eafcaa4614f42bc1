// Binds _core.Model, a loaded model.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "core/error.h"
#include "engine/model.h"
#include "gil.h"
#include "interruptible.h"

namespace pumice::bindings {

// The C++ object of a _core.Model. close() drops this object's pointer to the engine's model. Running calls hold pointers of their own
// (get()), so the model lives until they end.
class ModelHandle {
 public:
  explicit ModelHandle(std::shared_ptr<engine::Model> model) : model_(std::move(model)) {}

  std::shared_ptr<engine::Model> get() const {
    if (!model_) fail(ErrorKind::invalid_argument, "this model is closed; load it again");
    return model_;
  }
  // Closes the model. Its weights are freed when the last running call and the last request have ended. The GIL is released meanwhile,
  // because it takes time to free gigabytes.
  void close() {
    auto last = std::move(model_);
    model_.reset();
    const WithoutGil released;
    // Another thread may wait in pump() with its own pointer to the model. wake_pump() makes it drop this pointer.
    if (last && last->generates()) last->scheduler().wake_pump();
    last.reset();
  }
  // Runs work() through interruptible(), for a call with `tokens` tokens. Two runs of work() must have the same result, because it may be
  // started twice.
  void compute(std::size_t tokens, const std::function<void(const Cancel&)>& work, const std::function<void()>& poll = {}) const {
    const auto start = Cancel::Clock::now();
    interruptible(work, poll, times_.brief(tokens));
    times_.saw(tokens, Cancel::Clock::now() - start);
  }

 private:
  std::shared_ptr<engine::Model> model_;  // changed only with the GIL held
  mutable CallTimes times_;
};

// Adds load() and plan() to the module. Adds the methods that describe a model or look inside it to the class `model`.
void bind_model(pybind11::module_& module, pybind11::class_<ModelHandle>& model);

}  // namespace pumice::bindings
