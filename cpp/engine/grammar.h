// Token filters that make a text follow a grammar. They use llguidance, an Earley parser that works on the bytes of tokens. llguidance
// takes 10 to 60 us on average to compute which tokens may come next, for vocabularies of 49,152 to 262,144 tokens.
//
// Grammars and schemas may come from untrusted sources. llguidance's compiler recurses once for each rule in a chain of rules. On a thread
// with a stack of 8 MiB, a schema with 2,000 nested levels overflows the stack and ends the process. So compilation runs on a thread with a
// stack of 256 MiB, and a source has at most 256 KiB, which is too short for a chain that overflows that stack. Computing masks, and
// copying and freeing matchers, needs no such stack. A compilation that takes more than 5 seconds of processor time is abandoned.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/cancel.h"
#include "engine/llguidance_api.h"
#include "engine/token_bytes.h"
#include "engine/token_filter.h"

namespace pumice::engine {

inline constexpr std::size_t kMostGrammarBytes = 256 << 10;

// A model's vocabulary in the form that grammars need. All grammars of a model share one such object, which never changes.
class GrammarTokens {
 public:
  // `bytes` holds the bytes of each token. No grammar allows a token without bytes. `eos` holds the tokens that end an answer, at least
  // one. Throws invalid_argument for a vocabulary that cannot be used, and cancelled if `cancel` is requested. After a cancel, the work
  // goes on in its own thread and its result is dropped.
  static std::shared_ptr<const GrammarTokens> make(std::shared_ptr<const llguidance::Library> library,
                                                   std::shared_ptr<const TokenBytes> bytes, std::vector<std::uint32_t> eos,
                                                   const Cancel& cancel);
  ~GrammarTokens();
  GrammarTokens(const GrammarTokens&) = delete;
  GrammarTokens& operator=(const GrammarTokens&) = delete;

  const llguidance::Library& library() const { return *library_; }
  const llguidance::Tokenizer* get() const { return tokenizer_; }
  std::size_t words() const { return words_; }  // number of 32-bit words in a mask

  // Returns the longest token that `mask` allows if all other allowed tokens are prefixes of it. Returns -1 if they are not, and also if
  // the mask allows more than 64 tokens.
  std::int32_t one_text(std::span<const std::uint32_t> mask) const;

 private:
  GrammarTokens(std::shared_ptr<const llguidance::Library> library, llguidance::Tokenizer* tokenizer,
                std::shared_ptr<const TokenBytes> bytes)
      : library_(std::move(library)), tokenizer_(tokenizer), bytes_(std::move(bytes)), words_((bytes_->size() + 31) / 32) {}

  std::shared_ptr<const llguidance::Library> library_;
  llguidance::Tokenizer* tokenizer_;
  std::shared_ptr<const TokenBytes> bytes_;
  std::size_t words_;
};

// A grammar that was compiled for a model's vocabulary. Any thread may call filter().
class CompiledGrammar {
 public:
  // Compiles `source`. `kind` is "json", "regex" or "lark". Throws ErrorKind::grammar, with the compiler's message, if the source is
  // invalid or takes too long to compile, and grammar_busy if the machine is too busy to compile it now. Throws cancelled if `cancel` is
  // requested; the compilation then goes on in its own thread and its result is dropped. Throws out_of_memory if no thread with a stack of
  // 256 MiB can be started.
  static std::shared_ptr<const CompiledGrammar> compile(std::shared_ptr<const GrammarTokens> tokens, std::string kind, std::string source,
                                                        const Cancel& cancel);
  ~CompiledGrammar();
  CompiledGrammar(const CompiledGrammar&) = delete;
  CompiledGrammar& operator=(const CompiledGrammar&) = delete;

  std::unique_ptr<TokenFilter> filter() const;  // returns a new filter, in its state before the first token of an answer
  std::size_t words() const { return tokens_->words(); }

 private:
  CompiledGrammar(std::shared_ptr<const GrammarTokens> tokens, llguidance::Matcher* matcher)
      : tokens_(std::move(tokens)), matcher_(matcher) {}

  std::shared_ptr<const GrammarTokens> tokens_;
  llguidance::Matcher* matcher_;  // stays in its state before the first token; each filter gets a copy of it
};

}  // namespace pumice::engine
