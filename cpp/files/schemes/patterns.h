// Names of modules that config.json lists: as they are, as the class of a module, or as a regular expression ("re:.*self_attn.*").
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

// A regular expression as Python's re.match() reads it: it must match a beginning of the text. Read are characters, ., classes in brackets,
// \d, \w and \s, groups, |, *, +, ?, {m,n}, ^ and $. Time grows with the length of the expression times the square of that of the text,
// whatever both are.
class Pattern {
 public:
  // Returns nothing if the expression has something else.
  static std::optional<Pattern> read(std::string_view expression);
  bool begins(std::string_view text) const;

 private:
  friend class PatternReader;
  enum class Kind : std::uint8_t { character, begin, end, sequence, either, repeat };
  struct Node {
    Kind kind = Kind::sequence;
    std::bitset<256> characters;  // of Kind::character
    std::vector<Node> parts;
    std::size_t least = 0, most = 0;  // of Kind::repeat
  };
  using Places = std::vector<bool>;  // of a text: 0 to its length
  static Places after(const Node& node, std::string_view text, Places places);

  Node root_;
};

// A list of names of modules.
class ModuleList {
 public:
  explicit ModuleList(const std::vector<std::string>& names);

  // How a list names a module. A larger one takes precedence.
  enum class By : std::uint8_t { none, type, expression, name };
  By names(const std::string& module) const;

 private:
  std::set<std::string, std::less<>> names_;  // of modules and of classes
  std::vector<Pattern> patterns_;
  bool unread_ = false;  // there is an expression that is not read; it may name any module
};

}  // namespace pumice::files::schemes
