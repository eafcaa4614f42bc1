#include "text/spm_merges.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

#include "core/error.h"

namespace pumice::text {
namespace {

constexpr std::int32_t none = -1;
constexpr std::size_t code_points = 0x110000;

// A hash table that maps two tokens (left, right) to the token into which they merge. A token is identified by its rank in the order of
// merging. The table uses open addressing and is at most half full. It is larger than the processor's cache, and nine of ten look-ups find
// nothing. A filter with 16 bits per pair, which fits into the cache, is therefore checked first and ends most of these look-ups.
class PairTable {
 public:
  explicit PairTable(std::size_t most) : slots_(std::bit_ceil(2 * most + 2)), filter_(std::bit_ceil(most / 4 + 1)) {}

  std::int32_t find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t hash = mix(left, right);
    if ((filter_[word(hash)] & bit(hash)) == 0) return none;
    for (std::size_t i = start(hash);; i = next(i)) {
      const Slot& slot = slots_[i];
      if (slot.merged == none || (slot.left == left && slot.right == right)) return slot.merged;
    }
  }

  void insert(std::int32_t left, std::int32_t right, std::int32_t merged) {
    const std::uint64_t hash = mix(left, right);
    filter_[word(hash)] |= bit(hash);
    std::size_t i = start(hash);
    while (slots_[i].merged != none) i = next(i);
    slots_[i] = {left, right, merged};
  }

 private:
  struct Slot {
    std::int32_t left = none, right = none, merged = none;
  };

  static std::uint64_t mix(std::int32_t left, std::int32_t right) {  // Fibonacci hashing
    const std::uint64_t key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
    return (key ^ key >> 29) * 0x9E3779B97F4A7C15u;
  }
  static std::uint64_t bit(std::uint64_t hash) { return std::uint64_t{1} << (hash >> 58); }
  std::size_t word(std::uint64_t hash) const { return static_cast<std::size_t>(hash >> 36) & (filter_.size() - 1); }
  std::size_t start(std::uint64_t hash) const { return static_cast<std::size_t>(hash >> 20) & (slots_.size() - 1); }
  std::size_t next(std::size_t i) const { return (i + 1) & (slots_.size() - 1); }

  std::vector<Slot> slots_;
  std::vector<std::uint64_t> filter_;
};

// Returns the code point at text[at], and moves `at` behind it. Returns `none` if the bytes at text[at] are not UTF-8.
std::int32_t next_code_point(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(at);
  const std::size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0 || length > text.size() - at) return none;
  std::uint32_t point = length == 1 ? lead : lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return none;
    point = point << 6 | (byte(at + i) & 0x3Fu);
  }
  at += length;
  return point < code_points ? static_cast<std::int32_t>(point) : none;
}

// Tokenizes texts, one after another, with the merges that were found so far. Reuses its buffers.
class Merger {
 public:
  explicit Merger(const PairTable& pairs) : pairs_(pairs) {}

  // Merges the characters of a text to longer and longer symbols until no merge applies. ranks[i] is the rank of character i, or `none` if
  // this character is not a token. Returns true if exactly two symbols are left.
  bool leaves_two(std::span<const std::int32_t> ranks) {
    const auto count = static_cast<std::int32_t>(ranks.size());
    symbols_.resize(ranks.size());
    for (std::int32_t i = 0; i < count; ++i) symbols_[i] = {ranks[i], i - 1, i + 1 < count ? i + 1 : none};
    queue_.clear();
    for (std::int32_t i = 0; i + 1 < count; ++i) offer(i);
    std::int32_t left_over = count;
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end(), later);
      const Candidate best = queue_.back();
      queue_.pop_back();
      Symbol& left = symbols_[best.at];
      if (left.rank != best.left || left.next == none || symbols_[left.next].rank != best.right)
        continue;  // one of the two symbols has been merged since the candidate was added
      symbols_[left.next].rank = none;
      left.rank = best.merged;
      left.next = symbols_[left.next].next;
      if (left.next != none) symbols_[left.next].previous = best.at;
      --left_over;
      if (left.previous != none) offer(left.previous);
      offer(best.at);
    }
    return left_over == 2;
  }

  Merge two() const { return {symbols_[0].rank, symbols_[symbols_[0].next].rank}; }

 private:
  struct Symbol {
    std::int32_t rank, previous, next;
  };
  struct Candidate {
    std::int32_t merged, at, left, right;
  };

  static bool later(const Candidate& a, const Candidate& b) { return a.merged != b.merged ? a.merged > b.merged : a.at > b.at; }

  void offer(std::int32_t at) {
    const Symbol& left = symbols_[at];
    if (left.next == none || left.rank == none) return;
    const std::int32_t right = symbols_[left.next].rank;
    const std::int32_t merged = right == none ? none : pairs_.find(left.rank, right);
    if (merged == none) return;
    queue_.push_back({merged, at, left.rank, right});
    std::push_heap(queue_.begin(), queue_.end(), later);
  }

  const PairTable& pairs_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> queue_;
};

}  // namespace

std::vector<Merge> spm_merges(std::span<const std::string_view> tokens, std::span<const float> scores,
                              std::span<const std::uint8_t> mergeable) {
  const auto wrong = [](const auto&... parts) { fail(ErrorKind::model_format, "tokenizer: ", parts...); };
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    wrong(tokens.size(), " tokens are more than 2^31 - 1");
  if (scores.size() != tokens.size()) wrong(scores.size(), " scores for ", tokens.size(), " tokens");
  if (mergeable.size() != tokens.size()) wrong(mergeable.size(), " token types for ", tokens.size(), " tokens");
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (!std::isfinite(scores[i])) wrong("the score of token ", i, " is no finite number");
  }

  const auto count = static_cast<std::int32_t>(tokens.size());
  std::vector<std::int32_t> by_urgency(tokens.size());
  std::iota(by_urgency.begin(), by_urgency.end(), 0);
  const auto more_urgent = [&](std::int32_t a, std::int32_t b) { return scores[a] > scores[b]; };
  std::stable_sort(by_urgency.begin(), by_urgency.end(), more_urgent);

  // Decodes the characters of all tokens into one array, in file order. The loop below goes through the tokens in order of length. It reads
  // this array, because the texts themselves are scattered in memory.
  struct Text {
    std::size_t first, size;
    std::int32_t rank;
  };
  std::vector<std::int32_t> rank_of(tokens.size()), points;
  for (std::int32_t rank = 0; rank < count; ++rank) rank_of[by_urgency[rank]] = rank;
  std::vector<Text> texts;
  texts.reserve(tokens.size());
  std::vector<std::int32_t> character(code_points, none);
  for (std::int32_t token = 0; token < count; ++token) {
    const std::string_view text = tokens[token];
    if (mergeable[token] == 0 || text.empty()) continue;
    const std::size_t first = points.size();
    for (std::size_t at = 0; at < text.size();) {
      const std::int32_t point = next_code_point(text, at);
      if (point == none) wrong("token ", token, " is not UTF-8 at byte ", at);
      points.push_back(point);
    }
    const std::size_t size = points.size() - first;
    if (size > 1) {
      texts.push_back({first, size, rank_of[token]});
    } else {
      character[points.back()] = rank_of[token];
    }
  }
  for (std::int32_t& point : points) point = character[point];

  // Shorter tokens come first, because a token's merge is found by merging inside its text, which needs the merges of the shorter tokens.
  std::stable_sort(texts.begin(), texts.end(), [](const Text& a, const Text& b) { return a.size < b.size; });
  PairTable pairs(texts.size());
  Merger merger(pairs);
  std::vector<Merge> merge_of(tokens.size(), Merge{none, none});
  std::size_t found = 0;
  for (const Text& text : texts) {
    // No merge produces this token if its own text does not become two symbols.
    if (!merger.leaves_two(std::span(points).subspan(text.first, text.size))) continue;
    const Merge merge = merger.two();
    if (merge.left == none || merge.right == none) continue;
    pairs.insert(merge.left, merge.right, text.rank);
    merge_of[text.rank] = merge;
    ++found;
  }

  std::vector<Merge> merges;
  merges.reserve(found);
  for (const Merge& merge : merge_of) {
    if (merge.left != none) merges.push_back({by_urgency[merge.left], by_urgency[merge.right]});
  }
  return merges;
}

}  // namespace pumice::text
