// The process forks while another thread makes its Nth allocation, for every N in the life of a small model. That thread may hold any lock
// of the engine, and what it was changing is half changed in the child. In the child a new model must have the right results. The model of
// that thread must have them, too, or throw forked_device. Neither may wait for ever.
//
// `make test` tries every 211th N (of an encoder every 53rd); PUMICE_TEST_FAILURES=13 every 13th, which takes 5 minutes. First uses of what
// the whole process shares (static objects of functions) are not tried, because a life before the first fork makes them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "engine/calls.h"
#include "engine/faults.h"
#include "engine/model.h"
#include "engine/scheduler.h"
#include "engine/toy.h"
#include "patience.h"

namespace pumice::engine {
namespace {

using faults::allocations;
using toy::Kind;
using toy::Results;

std::atomic<bool> stopped{false}, go_on{false};

// Waits for the fork, at most 50 ms: this thread may hold a lock for which the fork waits.
void wait_for_the_fork() {
  stopped = true;
  for (int waited = 0; !go_on && waited < 50; ++waited) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

class EveryFork : public toy::SmallModel {
 protected:
  struct Models {
    std::shared_ptr<Model> model;
    std::shared_ptr<Model> smaller;  // guesses for `model`; null if that has recurrent layers or does not generate
  };

  Models load() const {
    const LoadOptions options{.device = "cpu", .kv_budget = 1 << 22, .threads = 2};
    const auto one = [&] { return Model::load(files::ModelFile::open(folder_.path()), options, {}, {}); };
    const auto model = one();
    const bool drafts = GetParam().generates && !model->decoder().pages->has_states();
    return {model, drafts ? one() : nullptr};
  }

  Results use(const Models& models, const std::string& prefix) const {
    std::string stage;
    Results all = toy::calls(*models.model, ids_, GetParam().generates, folder_.path(prefix), stage);
    const std::span<const std::int32_t> text(ids_.data(), 9);
    const auto& layers = models.model->description().config.layers;
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      const std::int32_t heads = layers[layer].attention_heads();
      if (heads == 0) continue;
      std::vector<float> weights(static_cast<std::size_t>(heads) * text.size() * text.size());
      models.model->inspector().attentions(text, layer, weights, {});
      all.numbers.insert(all.numbers.end(), weights.begin(), weights.end());
      break;
    }
    if (!models.smaller) return all;
    GenerateParams params{.max_new_tokens = 8};
    params.speculation = {.most = 3, .drafter = models.model->drafter(models.smaller), .always = true};
    const auto request = models.model->scheduler().request({ids_}, params);
    while (!request->done())
      for (const News& news : toy::advance(*request, 8)) all.ids.insert(all.ids.end(), news.ids.begin(), news.ids.end());
    return all;
  }

  Results life(const std::string& prefix) {
    // Not on the stack: glibc gives the stacks of the parent's threads to new threads of the child, which would overwrite the object.
    const auto models = std::make_unique<const Models>(load());
    used_ = models.get();
    use(*models, prefix);  // builds what load() has not built: a fork meanwhile makes the child's calls refusals
    Results all = use(*models, prefix);
    used_ = nullptr;
    return all;
  }

  // Returns 0, or what is wrong: 1: another result, 2: an error, after a line about it. Returns 4 if the call was refused and may be.
  template <class Call>
  int judged(const char* what, const Call& call, bool may_refuse) const {
    try {
      if (call() == expected_) return 0;
      std::cerr << what << ": another result\n";
      return 1;
    } catch (const Error& error) {
      if (may_refuse && error.kind() == ErrorKind::forked_device) return 4;
      std::cerr << what << ": " << error.what() << '\n';
    } catch (const std::exception& error) {
      std::cerr << what << ": " << error.what() << '\n';
    }
    return 2;
  }

  [[noreturn]] void child(const Models* used) {
    ::alarm(patience::kPatience.count());
    int wrong = judged("a new model of the child", [&] { return life("child"); }, false);
    if (used) wrong |= judged("the model of the thread", [&] { return use(*used, "child"); }, true);
    ::_exit(wrong);
  }

  // Runs a life beside a fork at its allocation `call`. Returns false if it makes fewer allocations.
  bool forked_at(std::int64_t call) {
    stopped = go_on = false;
    std::atomic<bool> ended{false};
    int wrong = 0;
    std::thread thread([&] {
      allocations.arm(call, 1, wait_for_the_fork);
      wrong = judged("the parent", [&] { return life("parent"); }, false);
      allocations.disarm();
      ended = true;
    });
    while (!stopped && !ended) std::this_thread::yield();
    const bool forks = stopped;
    const Models* used = nullptr;
    int status = 0;
    if (forks) {
      const pid_t pid = ::fork();
      used = used_;
      if (pid == 0) child(used);
      go_on = true;
      EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    }
    thread.join();
    EXPECT_EQ(wrong, 0) << "fork at allocation " << call;
    uses_ += forks && used;
    refusals_ += WIFEXITED(status) && WEXITSTATUS(status) == 4;
    EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) & ~4) == 0)
        << status << ": child of the fork at allocation " << call << (WIFSIGNALED(status) ? ": ended by a signal" : "");
    return forks;
  }

  std::atomic<const Models*> used_{nullptr};  // those of the thread that makes the allocation
  std::int64_t uses_ = 0, refusals_ = 0;      // by children, of those models
};

TEST_P(EveryFork, AtAnAllocation) {
  expected_ = life("parent");
  std::int64_t forks = 0;
  for (const std::int64_t stride = stride_or(GetParam().generates ? 211 : 53); forked_at(forks * stride) && !HasFailure(); ++forks) {
  }
  std::cout << "  " << GetParam().name << ": " << forks << " forks, " << uses_ << " while a model was used, which then refused "
            << refusals_ << " times\n";
  if (GetParam().generates) {  // encode() allocates little once its program is built
    EXPECT_LT(refusals_, uses_);
  }
  EXPECT_GT(forks, 10);
}

INSTANTIATE_TEST_SUITE_P(Models, EveryFork,
                         testing::Values(Kind{"llama32", true}, Kind{"mixtral", true}, Kind{"qwen3_next", true}, Kind{"bert", false}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace pumice::engine
