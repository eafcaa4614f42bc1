// Grammars as token filters, by llguidance: an Earley parser over the bytes of a vocabulary's tokens, which gives the set of tokens that
// may come next in 10 to 60 us (mean; 49,152 to 262,144 tokens).
//
// Schemas come from strangers. Long chains of rules nest as deep in the compiler's stack as they are long (2,000 levels of a schema end a
// thread of 8 MiB, and the process with it), so what compiles has a stack of its own, 256 MiB, and a source of 256 KiB at most: no chain
// that fits there reaches the end. Masks, copies and frees need no such stack. What takes longer than 5 seconds is given up.
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
  // lengths: of each token's bytes, which stand one behind the other in `bytes`; 0: no grammar allows the token. Special tokens begin with
  // 0xFF. eos: what ends an answer, at least one. Throws invalid_argument, cancelled (the work then ends unseen).
  static std::shared_ptr<const GrammarTokens> make(std::shared_ptr<const llguidance::Library> library, std::vector<std::uint32_t> lengths,
                                                   std::vector<std::uint8_t> bytes, std::vector<std::uint32_t> eos, const Cancel& cancel);
  ~GrammarTokens();
  GrammarTokens(const GrammarTokens&) = delete;
  GrammarTokens& operator=(const GrammarTokens&) = delete;

  const llguidance::Library& library() const { return *library_; }
  const llguidance::Tokenizer* get() const { return tokenizer_; }
  std::size_t words() const { return words_; }  // words of a mask

  // The longest token of a mask where all other tokens of the mask are beginnings of it; else -1.
  std::int32_t one_text(std::span<const std::uint32_t> mask) const;

 private:
  GrammarTokens(std::shared_ptr<const llguidance::Library> library, llguidance::Tokenizer* tokenizer,
                std::span<const std::uint32_t> lengths, std::vector<std::uint8_t> bytes);
  std::span<const std::uint8_t> text(std::size_t id) const { return std::span(bytes_).subspan(first_[id], first_[id + 1] - first_[id]); }

  std::shared_ptr<const llguidance::Library> library_;
  llguidance::Tokenizer* tokenizer_;
  std::size_t words_;
  std::vector<std::uint32_t> first_;  // byte of each token, and their end
  std::vector<std::uint8_t> bytes_;
};

// A grammar, compiled for a model's tokens. Any thread may take filters from it.
class CompiledGrammar {
 public:
  // kind: "json", "regex" or "lark". Throws grammar with what the compiler says, cancelled (the work then ends unseen), out_of_memory
  // where no thread with such a stack can be started.
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
  llguidance::Matcher* matcher_;  // before the first token; filters get copies
};

}  // namespace pumice::engine
