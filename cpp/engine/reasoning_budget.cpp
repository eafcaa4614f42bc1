#include "engine/reasoning_budget.h"

#include <algorithm>
#include <ranges>
#include <span>
#include <utility>

namespace pumice::engine {
namespace {

constexpr std::uint8_t kSpecial = 0xFF;      // the first byte of a special token (TokenBytes)
constexpr std::int64_t kMostCompleting = 3;  // maximum number of tokens to complete a character: UTF-8 has at most 3 bytes after the first
std::span<const std::uint8_t> spelling(const TokenBytes& tokens, std::size_t id) {
  const auto bytes = tokens.of(id);
  return !bytes.empty() && bytes.front() == kSpecial ? bytes.subspan(1) : bytes;
}

bool is_blank(std::uint8_t byte) { return byte == ' ' || (byte >= '\t' && byte <= '\r'); }

// Returns how many bytes the current UTF-8 character still lacks after `byte`, if it lacked `missing` bytes before.
int missing_after(int missing, std::uint8_t byte) {
  if (byte >= 0x80 && byte < 0xC0) return std::max(0, missing - 1);
  return byte >= 0xF0 && byte < 0xF5 ? 3 : byte >= 0xE0 && byte < 0xF0 ? 2 : byte >= 0xC2 && byte < 0xE0 ? 1 : 0;
}

class ReasoningBudget final : public TokenFilter {
 public:
  ReasoningBudget(std::shared_ptr<const ReasoningMarks> marks, std::int64_t most, bool opened) : marks_(std::move(marks)), most_(most) {
    if (!opened) return;
    enter();
    end_if_used_up();
  }

  void mask(std::span<std::uint32_t> words) override {
    const auto bit = [](std::int32_t id) { return 1u << (id % 32); };
    if (ending_) {
      std::ranges::fill(words, 0u);
      const std::int32_t id = marks_->close_ids[spelt_];
      words[static_cast<std::size_t>(id / 32)] = bit(id);
      return;
    }
    std::ranges::fill(words, ~0u);
    if (open()) return;
    const auto forbid = [&](std::int32_t id) { words[static_cast<std::size_t>(id / 32)] &= ~bit(id); };
    std::ranges::for_each(marks_->openers, forbid);
    if (again_ends()) forbid(marks_->again.back());
    for (std::size_t matched = matched_; matched > 0; matched = marks_->open.shorter(matched)) {
      const auto rest = marks_->open.text().subspan(matched);
      for (std::size_t id = 0; id < marks_->tokens->size(); ++id) {
        const auto token = spelling(*marks_->tokens, id);
        if (token.size() >= rest.size() && token.front() == rest.front() && std::ranges::equal(token.first(rest.size()), rest))
          forbid(static_cast<std::int32_t>(id));
      }
    }
  }

  bool accept(std::int32_t id) override {
    ++taken_;
    if (place_ == Place::over) return true;
    if (ending_) {
      if (++spelt_ == marks_->close_ids.size()) leave();
      return true;
    }
    remember(id);
    const bool inside = place_ == Place::inside;
    for (const std::uint8_t byte : spelling(*marks_->tokens, static_cast<std::size_t>(id))) read(byte);
    spent_ += inside && place_ == Place::inside;
    end_if_used_up();
    return true;
  }

  std::unique_ptr<TokenFilter> clone() const override { return std::make_unique<ReasoningBudget>(*this); }
  bool open() const override {
    const bool may_begin_again = place_ == Place::outside && cut_ >= 0 && (matched_ > 0 || !marks_->openers.empty() || again_ends());
    return !ending_ && !may_begin_again;
  }
  std::int64_t reasoning_cut() const override { return cut_; }

 private:
  // Where the answer so far ends: outside of reasoning, inside of reasoning, or where no reasoning can follow any more (over).
  enum class Place : std::uint8_t { outside, inside, over };

  void enter() {
    place_ = Place::inside;
    matched_ = 0;
    last_.clear();
  }
  void leave() {
    place_ = marks_->leads ? Place::over : Place::outside;
    ending_ = false;
    matched_ = called_ = 0;
    last_.clear();
  }

  void read(std::uint8_t byte) {
    missing_ = missing_after(missing_, byte);
    if (place_ == Place::inside) {
      matched_ = marks_->close.after(matched_, byte);
      if (matched_ == marks_->close.size()) leave();
    } else if (place_ == Place::outside) {
      look_for_reasoning(byte);
    }
  }

  void look_for_reasoning(std::uint8_t byte) {
    if (marks_->leads && begun_ == 0 && is_blank(byte)) return;
    ++begun_;
    matched_ = marks_->open.after(matched_, byte);
    if (matched_ == marks_->open.size()) return enter();
    if (marks_->leads && matched_ != begun_) place_ = Place::over;
    if (marks_->call.size() == 0) return;
    called_ = marks_->call.after(called_, byte);
    if (called_ == marks_->call.size()) place_ = Place::over;
  }

  void end_if_used_up() {
    if (place_ != Place::inside || spent_ < most_) return;
    if (missing_ > 0 && completing_++ < kMostCompleting) return;
    // If the last ids are the beginning of the closing marker, only the rest of the marker must still follow.
    const std::span<const std::int32_t> ids = marks_->close_ids, last = last_;
    spelt_ = std::min(ids.size() - 1, last.size());
    while (!std::ranges::equal(ids.first(spelt_), last.last(spelt_))) --spelt_;
    ending_ = true;
    completing_ = 0;
    if (cut_ < 0) cut_ = taken_;
  }

  // Returns true if the text ends with all ids of `again` but the last one, so that this last id would begin reasoning again.
  bool again_ends() const {
    if (marks_->again.empty()) return false;
    const auto before = std::span(marks_->again).first(marks_->again.size() - 1);
    return last_.size() >= before.size() && std::ranges::equal(before, std::span(last_).last(before.size()));
  }

  void remember(std::int32_t id) {
    const std::size_t most = std::max(marks_->close_ids.size(), marks_->again.size());
    if (last_.size() == most) last_.erase(last_.begin());
    last_.push_back(id);
  }

  std::shared_ptr<const ReasoningMarks> marks_;
  std::int64_t most_, spent_ = 0;  // maximum number of reasoning tokens, and number of reasoning tokens so far
  std::int64_t taken_ = 0;         // number of tokens of the answer so far
  std::int64_t cut_ = -1;          // index of the first token after the budget was used up; -1 before that (reasoning_cut)
  Place place_ = Place::outside;
  bool ending_ = false;          // true if close_ids[spelt_] is the only token that may come next
  std::size_t spelt_ = 0;        // the text ends with this many of close_ids already; used while ending_ is true
  std::size_t matched_ = 0;      // the text ends with this many first bytes of `close` (inside of reasoning) or of `open` (outside)
  std::size_t called_ = 0;       // the text ends with this many first bytes of the marker `call`
  std::size_t begun_ = 0;        // number of bytes of the answer outside of reasoning; without leading blanks if ReasoningMarks::leads
  int missing_ = 0;              // number of bytes that the last UTF-8 character still lacks
  std::int64_t completing_ = 0;  // number of tokens that were allowed beyond the budget to complete a UTF-8 character
  // The last ids of the answer, which are compared with close_ids and `again`. Cleared when reasoning begins or ends.
  std::vector<std::int32_t> last_;
};

}  // namespace

Marker::Marker(std::string_view text) : text_(text.begin(), text.end()), shorter_(text.size()) {
  for (std::size_t end = 1, matched = 0; end < text_.size(); ++end) {
    while (matched > 0 && text_[matched] != text_[end]) matched = shorter_[matched - 1];
    matched += text_[matched] == text_[end];
    shorter_[end] = matched;
  }
}

std::size_t Marker::after(std::size_t matched, std::uint8_t byte) const {
  while (matched > 0 && text_[matched] != byte) matched = shorter_[matched - 1];
  return matched + (text_[matched] == byte);
}

std::vector<std::int32_t> tokens_with(const Marker& marker, const TokenBytes& tokens) {
  std::vector<std::int32_t> found;
  for (std::size_t id = 0; id < tokens.size(); ++id)
    if (!std::ranges::search(spelling(tokens, id), marker.text()).empty()) found.push_back(static_cast<std::int32_t>(id));
  return found;
}

std::unique_ptr<TokenFilter> reasoning_budget(std::shared_ptr<const ReasoningMarks> marks, std::int64_t most, bool opened) {
  return std::make_unique<ReasoningBudget>(std::move(marks), most, opened);
}

}  // namespace pumice::engine
