// Lists of modules in config.json. Such a list has names of modules, classes of modules, and regular expressions ("re:.*self_attn.*").
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

// A regular expression that is matched as by Python's re.match(): it must match a beginning of the text. Supported are characters, .,
// classes in brackets, \d, \w and \s, groups, |, *, +, ?, {m,n}, ^ and $. For every expression and text, the time is at most proportional
// to the length of the expression times the square of the length of the text.
class Pattern {
 public:
  // Returns nothing if the expression has any other syntax.
  static std::optional<Pattern> read(std::string_view expression);
  bool begins(std::string_view text) const;

 private:
  friend class PatternReader;
  enum class Kind : std::uint8_t { character, begin, end, sequence, either, repeat };
  struct Node {
    Kind kind = Kind::sequence;
    std::bitset<256> characters;  // for Kind::character: the bytes that match
    std::vector<Node> parts;
    std::size_t least = 0, most = 0;  // for Kind::repeat: the numbers of repetitions
  };
  using Places = std::vector<bool>;  // a set of positions in a text, from 0 to the length of the text
  static Places after(const Node& node, std::string_view text, Places places);

  Node root_;
};

// A list of modules in config.json.
class ModuleList {
 public:
  explicit ModuleList(const std::vector<std::string>& names);

  // How a list names a module. If several lists name a module, the largest value takes precedence.
  enum class By : std::uint8_t { none, type, expression, name };
  By names(const std::string& module) const;

 private:
  std::set<std::string, std::less<>> names_;  // names of modules and of classes
  std::vector<Pattern> patterns_;
  bool unread_ = false;  // true if an expression has unsupported syntax; every module then counts as named by an expression
};

}  // namespace pumice::files::schemes
