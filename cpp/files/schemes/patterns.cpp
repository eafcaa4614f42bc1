#include "files/schemes/patterns.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <utility>

namespace pumice::files::schemes {

// Parses a regular expression by recursive descent. If the syntax is not supported, the functions return nullopt or false.
class PatternReader {
 public:
  explicit PatternReader(std::string_view text) : text_(text) {}
  std::optional<Pattern> read() {
    auto root = either(0);
    if (!root || at_ != text_.size()) return std::nullopt;
    Pattern pattern;
    pattern.root_ = std::move(*root);
    return pattern;
  }

 private:
  using Kind = Pattern::Kind;
  using Node = Pattern::Node;
  static constexpr int kDepth = 16;              // largest nesting depth of groups
  static constexpr std::size_t kRepeats = 1000;  // largest number in {m,n}
  static constexpr std::size_t kNoEnd = std::numeric_limits<std::size_t>::max();

  bool done() const { return at_ == text_.size(); }
  bool next(char c) {
    if (done() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::optional<Node> either(int depth) {
    Node node{.kind = Kind::either};
    do {
      Node sequence;
      while (!done() && text_[at_] != '|' && text_[at_] != ')') {
        auto part = repeated(depth);
        if (!part) return std::nullopt;
        sequence.parts.push_back(std::move(*part));
      }
      node.parts.push_back(std::move(sequence));
    } while (next('|'));
    return node;
  }

  std::optional<Node> repeated(int depth) {
    auto part = one(depth);
    if (!part || done()) return part;
    Node repeat{.kind = Kind::repeat, .least = 0, .most = kNoEnd};
    if (next('?')) {
      repeat.most = 1;
    } else if (next('+')) {
      repeat.least = 1;
    } else if (next('{')) {
      const auto least = number();
      repeat.least = least.value_or(0);
      repeat.most = next(',') ? number().value_or(kNoEnd) : repeat.least;
      if (!least || !next('}') || repeat.least > kRepeats || (repeat.most != kNoEnd && repeat.most > kRepeats)) return std::nullopt;
    } else if (!next('*')) {
      return part;
    }
    // Skips the ? of a lazy quantifier such as *?, because lazy and greedy quantifiers match the same texts.
    next('?');
    if (!done() && (text_[at_] == '*' || text_[at_] == '+' || text_[at_] == '?' || text_[at_] == '{')) return std::nullopt;
    repeat.parts.push_back(std::move(*part));
    return repeat;
  }

  std::optional<std::size_t> number() {
    std::size_t value = 0, digits = 0;
    for (; !done() && text_[at_] >= '0' && text_[at_] <= '9' && digits < 5; ++at_, ++digits)
      value = value * 10 + static_cast<std::size_t>(text_[at_] - '0');
    return digits > 0 ? std::optional(value) : std::nullopt;
  }

  std::optional<Node> one(int depth) {
    if (next('^')) return Node{.kind = Kind::begin};
    if (next('$')) return Node{.kind = Kind::end};
    if (next('(')) {
      if (depth == kDepth || (next('?') && !next(':'))) return std::nullopt;
      auto group = either(depth + 1);
      return group && next(')') ? std::move(group) : std::nullopt;
    }
    Node node{.kind = Kind::character};
    if (next('[')) return classes(node.characters) ? std::optional(std::move(node)) : std::nullopt;
    if (next('.')) {
      node.characters.set().reset('\n');
    } else if (next('\\')) {
      if (!escape(node.characters)) return std::nullopt;
    } else if (text_[at_] == '*' || text_[at_] == '+' || text_[at_] == '?' || text_[at_] == '{') {
      return std::nullopt;
    } else {
      node.characters.set(static_cast<unsigned char>(text_[at_++]));
    }
    return node;
  }

  // Adds to `to` the characters that an escape such as \d matches. The \ has already been read.
  bool escape(std::bitset<256>& to) {
    if (done()) return false;
    const auto c = static_cast<unsigned char>(text_[at_++]);
    if (!std::isalnum(c)) {
      to.set(c);
      return true;
    }
    if (c != 'd' && c != 'w' && c != 's') return false;
    for (unsigned i = 0; i < 128; ++i) {
      const int each = static_cast<int>(i);
      if (c == 'd' ? std::isdigit(each) : c == 'w' ? std::isalnum(each) || i == '_' : std::isspace(each)) to.set(i);
    }
    return true;
  }

  bool classes(std::bitset<256>& to) {
    const bool turned = next('^');
    for (bool first = true; first || !next(']'); first = false) {
      if (done() || (first && text_[at_] == ']')) return false;
      if (next('\\')) {
        if (!escape(to)) return false;
        continue;
      }
      const auto low = static_cast<unsigned char>(text_[at_++]);
      unsigned high = low;
      if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        high = static_cast<unsigned char>(text_[at_ + 1]);
        at_ += 2;
        if (high == '\\' || high < low) return false;
      }
      for (unsigned c = low; c <= high; ++c) to.set(c);
    }
    if (turned) to.flip();
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

std::optional<Pattern> Pattern::read(std::string_view expression) { return PatternReader(expression).read(); }

// Returns all positions at which a match of `node` can end if it begins at one of `places`.
Pattern::Places Pattern::after(const Node& node, std::string_view text, Places places) {
  Places ends(places.size());
  switch (node.kind) {
    case Kind::character:
      for (std::size_t i = 0; i < text.size(); ++i) ends[i + 1] = places[i] && node.characters[static_cast<unsigned char>(text[i])];
      return ends;
    case Kind::begin:
      ends.front() = places.front();
      return ends;
    case Kind::end:
      ends.back() = places.back();
      return ends;
    case Kind::sequence:
      for (const Node& part : node.parts) places = after(part, text, std::move(places));
      return places;
    case Kind::either:
      for (const Node& part : node.parts) {
        const Places more = after(part, text, places);
        for (std::size_t i = 0; i < ends.size(); ++i) ends[i] = ends[i] || more[i];
      }
      return ends;
    case Kind::repeat:
      for (std::size_t times = 0; times < node.least; ++times) places = after(node.parts[0], text, std::move(places));
      for (std::size_t times = node.least; times < node.most; ++times) {
        const Places more = after(node.parts[0], text, places);
        ends = places;
        for (std::size_t i = 0; i < ends.size(); ++i) places[i] = places[i] || more[i];
        if (places == ends) break;
      }
      return places;
  }
  return ends;
}

bool Pattern::begins(std::string_view text) const {
  Places places(text.size() + 1);
  places[0] = true;
  const Places ends = after(root_, text, std::move(places));
  return std::ranges::find(ends, true) != ends.end();
}

ModuleList::ModuleList(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (!name.starts_with("re:")) {
      names_.insert(name);
    } else if (auto pattern = Pattern::read(std::string_view(name).substr(3))) {
      patterns_.push_back(std::move(*pattern));
    } else {
      unread_ = true;
    }
  }
}

ModuleList::By ModuleList::names(const std::string& module) const {
  if (names_.contains(module)) return By::name;
  if (unread_ || std::ranges::any_of(patterns_, [&](const Pattern& pattern) { return pattern.begins(module); })) return By::expression;
  // The module's class follows from its name. A module is an embedding if the last part of its name contains "embed", as in "embed_tokens".
  // Every other module with a matrix is a linear layer.
  const bool table = module.find("embed", module.rfind('.') + 1) != std::string::npos;
  return names_.contains(table ? "Embedding" : "Linear") ? By::type : By::none;
}

}  // namespace pumice::files::schemes
