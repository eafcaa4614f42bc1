// Grammars as token filters, by llguidance: an Earley parser over the bytes of a vocabulary's tokens. It computes the set of tokens that
// may come next in 10 to 60 us (mean, for vocabularies of 49,152 to 262,144 tokens).
//
// Schemas come from strangers. The compiler recurses as deep as a chain of rules is long: on a thread with a stack of 8 MiB, 2,000 levels
// of a schema end the process. So compilation runs on a thread with a stack of 256 MiB, and a source has at most 256 KiB, in which no chain
// is long enough to overflow that stack. Masks, copies and frees need no such stack. A compilation of more than 5 seconds is given up.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/cancel.h"
#include "engine/llguidance_api.h"
#include "engine/token_filter.h"

namespace pumice::engine {

inline constexpr std::size_t kMostGrammarBytes = 256 << 10;

// A model's tokens as grammars see them. All grammars of the model share it; it never changes.
class GrammarTokens {
 public:
  // `bytes` holds the bytes of all tokens one after another; lengths: the number of bytes per token, 0 for a token that no grammar allows.
  // Special tokens begin with 0xFF. eos: the tokens that end an answer, at least one. Throws invalid_argument, and cancelled (the work then
  // ends on its thread, and its result is dropped).
  static std::shared_ptr<const GrammarTokens> make(std::shared_ptr<const llguidance::Library> library, std::vector<std::uint32_t> lengths,
                                                   std::vector<std::uint8_t> bytes, std::vector<std::uint32_t> eos, const Cancel& cancel);
  ~GrammarTokens();
  GrammarTokens(const GrammarTokens&) = delete;
  GrammarTokens& operator=(const GrammarTokens&) = delete;

  const llguidance::Library& library() const { return *library_; }
  const llguidance::Tokenizer* get() const { return tokenizer_; }
  std::size_t words() const { return words_; }  // number of 32-bit words in a mask

  // Returns the longest token of the mask if all other tokens of the mask are prefixes of it, else -1.
  std::int32_t one_text(std::span<const std::uint32_t> mask) const;

 private:
  GrammarTokens(std::shared_ptr<const llguidance::Library> library, llguidance::Tokenizer* tokenizer,
                std::span<const std::uint32_t> lengths, std::vector<std::uint8_t> bytes);
  std::span<const std::uint8_t> text(std::size_t id) const { return std::span(bytes_).subspan(first_[id], first_[id + 1] - first_[id]); }

  std::shared_ptr<const llguidance::Library> library_;
  llguidance::Tokenizer* tokenizer_;
  std::size_t words_;
  std::vector<std::uint32_t> first_;  // offset of each token's first byte, then the end of the last token
  std::vector<std::uint8_t> bytes_;
};

// A grammar, compiled for a model's tokens. Any thread may take filters from it.
class CompiledGrammar {
 public:
  // kind: "json", "regex" or "lark". Throws grammar with the compiler's message, cancelled (the work then ends on its thread, and its
  // result is dropped), and out_of_memory if no thread with such a stack can be started.
  static std::shared_ptr<const CompiledGrammar> compile(std::shared_ptr<const GrammarTokens> tokens, std::string kind, std::string source,
                                                        const Cancel& cancel);
  ~CompiledGrammar();
  CompiledGrammar(const CompiledGrammar&) = delete;
  CompiledGrammar& operator=(const CompiledGrammar&) = delete;

  std::unique_ptr<TokenFilter> filter() const;  // for the first token of an answer
  std::size_t words() const { return tokens_->words(); }

 private:
  CompiledGrammar(std::shared_ptr<const GrammarTokens> tokens, llguidance::Matcher* matcher)
      : tokens_(std::move(tokens)), matcher_(matcher) {}

  std::shared_ptr<const GrammarTokens> tokens_;
  llguidance::Matcher* matcher_;  // in its state before the first token; filters get copies
};

}  // namespace pumice::engine
