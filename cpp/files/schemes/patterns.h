// Reads lists of modules in config.json, for example the list of modules that are not packed. A list has names of modules, names of classes
// of modules, and regular expressions ("re:.*self_attn.*").
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace pumice::files::schemes {

// A regular expression. A match must start at the beginning of the text, as with Python's re.match(). Supported are characters, ., classes
// in brackets, \d, \w and \s, groups, |, *, +, ?, {m,n}, ^ and $. Matching takes at most time proportional to the length of the expression
// times the square of the length of the text.
class Pattern {
 public:
  // Returns nullopt if the expression has syntax that is not supported.
  static std::optional<Pattern> read(std::string_view expression);
  bool begins(std::string_view text) const;

 private:
  friend class PatternReader;
  enum class Kind : std::uint8_t { character, begin, end, sequence, either, repeat };
  struct Node {
    Kind kind = Kind::sequence;
    std::bitset<256> characters;  // for Kind::character: the bytes that match
    std::vector<Node> parts;
    std::size_t least = 0, most = 0;  // for Kind::repeat: the smallest and the largest number of repetitions
  };
  using Places = std::vector<bool>;  // a set of positions in a text, from 0 to the length of the text
  static Places after(const Node& node, std::string_view text, Places places);

  Node root_;
};

// A list in config.json that says which modules a setting applies to.
class ModuleList {
 public:
  explicit ModuleList(const std::vector<std::string>& names);

  // Says how a list names a module. If several lists name the same module, the one that names it with the largest value of this enum
  // applies.
  enum class By : std::uint8_t { none, type, expression, name };
  By names(const std::string& module) const;

 private:
  std::set<std::string, std::less<>> names_;  // names of modules, and names of classes such as "Linear"
  std::vector<Pattern> patterns_;
  // True if an expression of the list has unsupported syntax. names() then returns By::expression for all modules that the list does not
  // name literally.
  bool unread_ = false;
};

}  // namespace pumice::files::schemes
