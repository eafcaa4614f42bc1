#include "engine/word_filters.h"

#include <algorithm>

#include "core/batch.h"

namespace pumice::engine {
namespace {

void forbid(std::span<std::uint32_t> words, std::int32_t id) { words[static_cast<std::size_t>(id / 32)] &= ~(1u << (id % 32)); }

class NotBefore final : public TokenFilter {
 public:
  NotBefore(std::span<const std::int32_t> ids, std::int64_t count) : ids_(ids.begin(), ids.end()), left_(count) {}

  void mask(std::span<std::uint32_t> words) override {
    std::ranges::fill(words, ~0u);
    if (left_ <= 0) return;
    for (const std::int32_t id : ids_) forbid(words, id);
  }
  bool accept(std::int32_t) override {
    --left_;
    return true;
  }
  std::unique_ptr<TokenFilter> clone() const override { return std::make_unique<NotBefore>(*this); }
  bool open() const override { return left_ <= 0; }

 private:
  std::vector<std::int32_t> ids_;
  std::int64_t left_;
};

class Without final : public TokenFilter {
 public:
  Without(std::shared_ptr<const BadWords> words, std::span<const std::int32_t> prompt) : words_(std::move(words)) {
    const auto tail = prompt.last(std::min(prompt.size(), words_->longest() - 1));
    last_.assign(tail.begin(), tail.end());
  }

  void mask(std::span<std::uint32_t> words) override {
    const auto known = words_->mask();
    if (known.empty()) {
      std::ranges::fill(words, ~0u);
    } else {
      std::ranges::copy(known, words.begin());
    }
    words_->each_ending(last_, [&](std::int32_t id) { forbid(words, id); });
  }
  bool accept(std::int32_t id) override {
    if (words_->longest() == 1) return true;
    if (last_.size() == words_->longest() - 1) last_.erase(last_.begin());
    last_.push_back(id);
    return true;
  }
  std::unique_ptr<TokenFilter> clone() const override { return std::make_unique<Without>(*this); }
  bool open() const override {
    bool ends = false;
    words_->each_ending(last_, [&](std::int32_t) { ends = true; });
    return !ends && words_->mask().empty();
  }

 private:
  std::shared_ptr<const BadWords> words_;
  std::vector<std::int32_t> last_;  // the last ids of the text, at most BadWords::longest() - 1 of them
};

}  // namespace

std::unique_ptr<TokenFilter> not_before(std::span<const std::int32_t> ids, std::int64_t count) {
  return std::make_unique<NotBefore>(ids, count);
}

BadWords::BadWords(std::vector<std::vector<std::int32_t>> words, std::int32_t vocab) {
  for (std::vector<std::int32_t>& word : words) {
    longest_ = std::max(longest_, word.size());
    if (word.size() > 1) {
      longer_.push_back(std::move(word));
      continue;
    }
    mask_.resize(mask_words(vocab), ~0u);
    forbid(mask_, word.front());
  }
}

std::unique_ptr<TokenFilter> without(std::shared_ptr<const BadWords> words, std::span<const std::int32_t> prompt) {
  return std::make_unique<Without>(std::move(words), prompt);
}

}  // namespace pumice::engine
