// _core.Model: a loaded model as Python holds it, and its description for Python.
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

// A model that close() can empty. Running calls hold the inner pointer too.
class ModelHandle {
 public:
  explicit ModelHandle(std::shared_ptr<engine::Model> model) : model_(std::move(model)) {}

  std::shared_ptr<engine::Model> get() const {
    if (!model_) fail(ErrorKind::invalid_argument, "this model is closed; load it again");
    return model_;
  }
  // The weights are freed when the last running call and the last request are done. Without the GIL, because freeing gigabytes takes time.
  void close() {
    auto last = std::move(model_);
    model_.reset();
    const WithoutGil released;
    if (last && last->generates()) last->scheduler().wake_pump();  // or its thread would go on holding the model
    last.reset();
  }
  // interruptible() for work that may be started again.
  void compute(std::size_t tokens, const std::function<void(const Cancel&)>& work, const std::function<void()>& poll = {}) const {
    const auto start = Cancel::Clock::now();
    interruptible(work, poll, times_.brief(tokens));
    times_.saw(tokens, Cancel::Clock::now() - start);
  }

 private:
  std::shared_ptr<engine::Model> model_;  // changed under the GIL
  mutable CallTimes times_;
};

// Adds load(), plan() and the description of a model to the class, which module.cpp has made.
void bind_model(pybind11::module_& module, pybind11::class_<ModelHandle>& model);

}  // namespace pumice::bindings
