// The C interface of llguidance (https://github.com/guidance-ai/llguidance, parser/llguidance.h of 1.9), as far as it is used here.
//
// Python's package contains the library but no header, so these are our own declarations of the same layouts. We link nothing of it: its
// functions are looked up in the image that Python has loaded. Only Python can load that image, because it needs Python's symbols.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pumice::engine::llguidance {

struct Tokenizer;  // the library's own types, seen only through pointers
struct Matcher;

using Tokenize = std::size_t (*)(const void* user, const std::uint8_t* bytes, std::size_t size, std::uint32_t* tokens, std::size_t most);

struct TokenizerInit {  // LlgTokenizerInitV2: the library reads struct_size bytes of it
  std::size_t struct_size = sizeof(TokenizerInit);
  std::uint32_t vocab_size = 0, eos = 0;
  const std::uint32_t* token_lengths = nullptr;
  const std::uint8_t* token_bytes = nullptr;
  const char* tokenizer_json = nullptr;
  bool tokenize_assumes_string = false;
  Tokenize tokenize = nullptr;
  bool tokenize_greedily = false;
  const void* user = nullptr;
  const char* const* slices = nullptr;
  const std::uint32_t* more_eos = nullptr;
  std::uint32_t more_eos_count = 0;
};

struct ParserLimits {  // LlgParserLimits
  std::size_t items_in_row;
  std::uint64_t initial_lexer_fuel, step_lexer_fuel;
  std::size_t step_items, lexer_states, grammar_size;
  bool precompute_large_lexemes, verbose_errors;
};

// LlgConstraintInit. It has no struct_size field. The library writes its defaults into it, and a later version of it may have more fields.
struct MatcherInit {
  const Tokenizer* tokenizer = nullptr;
  std::uint32_t log_buffer_level = 0, log_stderr_level = 0;
  bool forced_tokens = false, backtrack = false;
  ParserLimits limits{};
  std::byte room[1024]{};
};

// Each entry is a name in the library, and its type. Functions that return int return 0, or -1 for an error that matcher_get_error()
// describes.
#define PUMICE_LLGUIDANCE_FUNCTIONS(X)                                                                                                     \
  X(get_version, const char* (*)())                                                                                                        \
  X(new_tokenizer_v2, Tokenizer* (*)(const TokenizerInit*, char* error, std::size_t error_size))                                           \
  X(free_tokenizer, void (*)(Tokenizer*))                                                                                                  \
  X(constraint_init_set_defaults, void (*)(MatcherInit*, const Tokenizer*))                                                                \
  X(validate_grammar, std::int32_t (*)(const MatcherInit*, const char* kind, const char* source, char* message, std::size_t message_size)) \
  X(new_matcher, Matcher* (*)(const MatcherInit*, const char* kind, const char* source))                                                   \
  X(clone_matcher, Matcher* (*)(const Matcher*))                                                                                           \
  X(free_matcher, void (*)(Matcher*))                                                                                                      \
  X(matcher_get_error, const char* (*)(Matcher*))                                                                                          \
  X(matcher_is_error, bool (*)(const Matcher*))                                                                                            \
  X(matcher_is_stopped, bool (*)(const Matcher*))                                                                                          \
  X(matcher_is_accepting, bool (*)(Matcher*))                                                                                              \
  X(matcher_get_mask_byte_size, std::size_t (*)(const Matcher*))                                                                           \
  X(matcher_compute_mask_into, std::int32_t (*)(Matcher*, std::uint32_t* words, std::size_t bytes))                                        \
  X(matcher_consume_token, std::int32_t (*)(Matcher*, std::uint32_t token))

struct Library {
#define PUMICE_DECLARE(name, ...) std::type_identity_t<__VA_ARGS__> name = nullptr;
  PUMICE_LLGUIDANCE_FUNCTIONS(PUMICE_DECLARE)
#undef PUMICE_DECLARE
  std::vector<std::string> missing;  // functions that the library lacks; if there are any, none may be called

  // Looks the functions up in the image that this process has loaded from `path`. Throws io if it has loaded none.
  static std::shared_ptr<const Library> open(const std::string& path);
  std::string version() const;  // "1.9.1"; "" if the library does not tell
};

}  // namespace pumice::engine::llguidance
