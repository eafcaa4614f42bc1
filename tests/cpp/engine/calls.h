// The calls in the life of a small model, and the set-up of tests in which some of them fail or the process forks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "engine/embedder.h"
#include "engine/model.h"
#include "engine/saved_prefix.h"
#include "engine/scorer.h"
#include "engine/token_filter.h"
#include "engine/toy.h"
#include "model/random_models.h"

namespace pumice::engine::toy {

// Stands for a grammar: allows a third of the tokens, by what came before.
class Third final : public TokenFilter {
 public:
  explicit Third(std::int32_t vocab) : vocab_(vocab) {}
  void mask(std::span<std::uint32_t> words) override {
    std::vector<std::int32_t> allowed;  // as in a grammar, a mask allocates
    for (std::int32_t id = 0; id < vocab_; ++id)
      if (mix(state_ + static_cast<std::uint64_t>(id)) % 3 == 0) allowed.push_back(id);
    std::ranges::fill(words, 0u);
    for (const std::int32_t id : allowed) words[static_cast<std::size_t>(id / 32)] |= 1u << (id % 32);
  }
  bool accept(std::int32_t id) override {
    state_ = mix(state_ + static_cast<std::uint64_t>(id));
    return true;
  }
  std::unique_ptr<TokenFilter> clone() const override { return std::make_unique<Third>(*this); }

 private:
  std::uint64_t state_ = 7;
  std::int32_t vocab_;
};

struct Results {
  std::vector<std::int32_t> ids;
  std::vector<float> numbers;
  bool operator==(const Results&) const = default;
};

// Encodes, and if the model generates, also generates with a filter, scores, and saves and loads a prefix (a file at `path`). `stage` says
// which call is running. There are at least 75 ids.
inline Results calls(const engine::Model& model, std::span<const std::int32_t> ids, bool generates, const std::string& path,
                     std::string& stage) {
  Results all;
  const Cancel cancel;
  const auto add = [&](const std::vector<float>& values) { all.numbers.insert(all.numbers.end(), values.begin(), values.end()); };
  const std::vector<std::int32_t> prompt(ids.begin(), ids.begin() + 75);
  stage = "encode";
  const std::int32_t width = model.description().config.hidden_size;
  const std::vector<std::int64_t> offsets = {0, 5, 40, 75};
  std::vector<float> rows(3 * static_cast<std::size_t>(width));
  encode(model.runtime(Task::vectors), {.ids = prompt, .offsets = offsets, .types = {}}, rows, width, true, 0, {}, cancel);
  add(rows);
  if (!generates) return all;
  stage = "generate";
  const std::int32_t vocab = model.decoder().pipeline.vocab_size();
  GenerateParams params{.max_new_tokens = 6, .n = 2, .bad_words = {{1, 2}}, .sampling = {.temperature = 0.7f, .seed = 5}};
  params.filters.push_back(std::make_shared<Third>(vocab));
  const auto request = model.scheduler().request({prompt, std::vector<std::int32_t>(prompt.begin(), prompt.begin() + 40)}, params);
  std::vector<std::vector<std::int32_t>> answers(4);
  while (!request->done()) {
    if (!request->wait(3, 20'000)) fail(ErrorKind::device, "the request has no news for 20 s");
    for (const News& news : request->take()) {
      std::vector<std::int32_t>& answer = answers[static_cast<std::size_t>(news.sequence)];
      answer.insert(answer.end(), news.ids.begin(), news.ids.end());
    }
  }
  for (const auto& answer : answers) all.ids.insert(all.ids.end(), answer.begin(), answer.end());
  stage = "score";
  std::vector<float> scores(prompt.size() - 1);
  score(model.scheduler(), prompt, scores, cancel);
  add(scores);
  stage = "save";
  save_prefix(model, path, prompt, cancel);
  stage = "restore";
  const auto restored = load_prefix(model, path, cancel).ids;
  all.ids.insert(all.ids.end(), restored.begin(), restored.end());
  std::vector<float> row(static_cast<std::size_t>(vocab));
  logits(model.scheduler(), prompt, false, row, cancel);
  add(row);
  stage = "end";
  return all;
}

struct Kind {
  const char* name;  // of a variant of tests/random_models
  bool generates;
};
inline void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

// Writes the model. Its tests try a sample of the allocations, or as many as the environment variable PUMICE_TEST_FAILURES says.
class SmallModel : public testing::TestWithParam<Kind> {
 protected:
  SmallModel() {
    for (const model::random_models::Variant& v : model::random_models::variants())
      if (v.name == GetParam().name) model::random_models::write(v, folder_);
    for (std::int32_t i = 0; i < 75; ++i) ids_.push_back(i * 37 % 96);
  }
  Results calls(const engine::Model& model) { return toy::calls(model, ids_, GetParam().generates, folder_.path("prefix"), stage_); }

  // Returns the step between the numbers of the calls that are tried, one after the other.
  static std::int64_t stride_or(std::int64_t sample) {
    const char* asked = std::getenv("PUMICE_TEST_FAILURES");
    return asked ? std::max(1, std::atoi(asked)) : sample;
  }
  // Returns how many failures were errors in each stage, as " load 3 encode 5".
  std::string errors() const {
    std::string list;
    for (const auto& [stage, count] : errors_) list += ' ' + stage + ' ' + std::to_string(count);
    return list;
  }

  const files::testing::TempFolder folder_;
  std::vector<std::int32_t> ids_;
  Results expected_;
  std::string stage_;
  std::map<std::string, int> errors_;
};

}  // namespace pumice::engine::toy
