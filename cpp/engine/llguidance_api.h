// Declares the part of llguidance's C interface that is used here (https://github.com/guidance-ai/llguidance, parser/llguidance.h of
// version 1.9).
//
// The Python package llguidance contains the library but no header, so the types are declared again here with the same layouts. The engine
// is not linked against the library. It looks up the functions after Python has loaded the library. Only Python can load the library,
// because the library needs Python's symbols.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pumice::engine::llguidance {

struct Tokenizer;  // Tokenizer and Matcher are opaque types of the library
struct Matcher;

using Tokenize = std::size_t (*)(const void* user, const std::uint8_t* bytes, std::size_t size, std::uint32_t* tokens, std::size_t most);

struct TokenizerInit {  // the library's type LlgTokenizerInitV2, of which the library reads only the first struct_size bytes
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

struct ParserLimits {  // the library's type LlgParserLimits
  std::size_t items_in_row;
  std::uint64_t initial_lexer_fuel, step_lexer_fuel;
  std::size_t step_items, lexer_states, grammar_size;
  bool precompute_large_lexemes, verbose_errors;
};

// The library's type LlgConstraintInit. The library writes its defaults into this struct. A later version of the library may write more
// fields than are declared here, because the struct has no field struct_size. `room` reserves space for them.
struct MatcherInit {
  const Tokenizer* tokenizer = nullptr;
  std::uint32_t log_buffer_level = 0, log_stderr_level = 0;
  bool forced_tokens = false, backtrack = false;
  ParserLimits limits{};
  std::byte room[1024]{};
};

// Each entry is the name of a library function without its prefix llg_, and its type. A matcher function that returns an int returns 0, or
// -1 for an error that matcher_get_error() describes.
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
  std::vector<std::string> missing;  // names of functions that the library lacks; if there are any, no function may be called

  // Looks up the functions in the shared library that this process has loaded from `path`. Throws io if the process has not loaded it.
  static std::shared_ptr<const Library> open(const std::string& path);
  std::string version() const;  // for example "1.9.1"; empty if the library does not say
};

}  // namespace pumice::engine::llguidance
