#include "engine/grammar.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "core/error.h"
#include "engine/at_fork.h"
#include "os/threads.h"

namespace pumice::engine {
namespace {

// Size in bytes of the stack of a thread that compiles a grammar. The stack takes address space, but it takes memory only for the pages
// that are used.
constexpr std::size_t kStack = std::size_t{256} << 20;
constexpr auto kPoll = std::chrono::milliseconds(20);  // how often a waiting thread looks for a cancel and checks the time limits
constexpr std::size_t kMessageBytes = 4000;            // maximum length of an error message, in bytes
// Limits for compilations. kMostTime limits the processor time of a compilation, and kMostWait its elapsed time. The elapsed time may be
// longer, because on a busy machine any grammar may take long. The library cannot be interrupted, so a compilation that exceeds a limit is
// abandoned and goes on in the background. At most kMostAtWork compilations run at a time, abandoned ones included, and others wait. So
// slow grammars leave processors to the models. The slowest of 1,500 real schemas (MaskBench) compiles in 57 ms.
constexpr auto kMostTime = std::chrono::seconds(5);
constexpr auto kMostWait = std::chrono::seconds(60);
constexpr int kMostAtWork = 2;
constexpr auto kTurnPoll = std::chrono::milliseconds(2);  // time between two attempts of a waiting compilation to begin
constexpr int kTriedTokens = 2;                           // number of tokens that a new grammar reads as a trial (CompiledGrammar::compile)
constexpr std::size_t kMostBeginnings = 64;               // one_text() returns -1 for a mask that allows more tokens than this

// Runs a function on a thread with a deep stack. The function calls a library that cannot be interrupted. If the caller gives up waiting,
// the function goes on in the background and its result is dropped.
class DeepWork {
 public:
  // Throws ErrorKind::grammar if the function takes more than `most_time` of processor time. Throws grammar_busy if the function has not
  // ended after an elapsed time of `most_wait`, or if it cannot begin because kMostAtWork abandoned functions still run. Also throws
  // cancelled, out_of_memory, and what the function throws.
  static void run(std::function<void()> work, const Cancel& cancel, std::chrono::nanoseconds most_time,
                  std::chrono::nanoseconds most_wait) {
    const auto end = std::chrono::steady_clock::now() + most_wait;
    auto self = std::make_shared<DeepWork>();
    self->work_ = std::move(work);
    auto handed = std::make_unique<std::shared_ptr<DeepWork>>(self);
    await_turn(end, cancel);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, kStack);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    const int refused = pthread_create(&thread, &attributes, &DeepWork::start, handed.get());
    pthread_attr_destroy(&attributes);
    if (refused) {
      --at_work_;
      fail(ErrorKind::out_of_memory, "compiling a grammar takes a thread with a stack of ", kStack >> 20,
           " MiB of address space, and the system gives none; raise the limit (ulimit -v), or that of processes (ulimit -u)");
    }
    handed.release();  // the new thread owns the object now
    const auto seconds = [](std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); };
    std::unique_lock lock(self->mutex_);
    const auto leave = [&] {
      ++unseen_;
      self->unseen_here_ = true;
    };
    while (!self->done_.wait_for(lock, kPoll, [&] { return self->ended_; })) {
      if (cancel.requested()) {
        leave();
        cancel.check();
      }
      const auto used = self->clock_.used();
      if (used > most_time) {
        leave();
        fail(ErrorKind::grammar, "compiling takes longer than ", seconds(most_time), " seconds. Make it smaller or less ambiguous");
      }
      if (std::chrono::steady_clock::now() > end) {
        leave();
        fail(ErrorKind::grammar_busy, "the grammar was not compiled within ", seconds(most_wait), " seconds, in which the system gave it ",
             seconds(used), " seconds of a processor; try again when the machine is less busy");
      }
    }
    if (self->failure_) std::rethrow_exception(self->failure_);
  }

  static void forget_parent() { at_work_ = unseen_ = 0; }

 private:
  // Waits until at_work_ is less than kMostAtWork, and then adds one to at_work_. Uses no mutex, because in the child of a fork a mutex
  // could stay locked for ever.
  static void await_turn(std::chrono::steady_clock::time_point end, const Cancel& cancel) {
    for (int now = at_work_.load();;) {
      if (now < kMostAtWork) {
        if (at_work_.compare_exchange_weak(now, now + 1)) return;
        continue;
      }
      if (unseen_.load() >= kMostAtWork)
        fail(ErrorKind::grammar_busy, "the compiler is busy with ", kMostAtWork,
             " grammars that were given up, and cannot be stopped; try again later");
      if (std::chrono::steady_clock::now() > end)
        fail(ErrorKind::grammar_busy, "the compiler was busy with other grammars for too long; try again later");
      cancel.check();
      std::this_thread::sleep_for(kTurnPoll);
      now = at_work_.load();
    }
  }

  static void* start(void* handed) {
    const std::unique_ptr<std::shared_ptr<DeepWork>> holder(static_cast<std::shared_ptr<DeepWork>*>(handed));
    DeepWork& self = **holder;
    {
      const std::lock_guard lock(self.mutex_);
      self.clock_ = os::ThreadClock::of_this_thread();
    }
    std::exception_ptr failure;
    try {
      self.work_();
    } catch (...) {
      failure = std::current_exception();
    }
    self.work_ = nullptr;
    const std::lock_guard lock(self.mutex_);
    self.failure_ = std::move(failure);
    self.ended_ = true;
    if (self.unseen_here_) --unseen_;
    --at_work_;
    self.done_.notify_all();
    return nullptr;
  }

  std::function<void()> work_;
  std::mutex mutex_;
  std::condition_variable done_;
  // Measures the processor time of the function's thread. It is used only with mutex_ held and while ended_ is false, because the thread
  // still exists then.
  os::ThreadClock clock_;
  std::exception_ptr failure_;
  // unseen_here_ is true if the caller has given up waiting, so that this function counts in unseen_.
  bool ended_ = false, unseen_here_ = false;
  static inline std::atomic<int> at_work_{0};  // number of functions that run, abandoned ones included
  static inline std::atomic<int> unseen_{0};   // number of abandoned functions that run
};

// Makes a fork wait until no matcher is in use. A matcher changes while it computes a mask, and the child must not get a half-changed
// matcher. A mask takes microseconds, and 0.2 s at worst.
//
// A scheduler that holds its lock may wait for this object, so a fork must take the locks of all schedulers first. The hooks of newer
// objects run first at a fork. So this object is made before all schedulers.
class MatchersAtWork {
 public:
  class Scope {
   public:
    Scope() { at_work().enter(); }
    ~Scope() { at_work().leave(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

 private:
  static MatchersAtWork& at_work() {
    static auto& all = *new MatchersAtWork;  // never destroyed, because threads may still use matchers when the process ends
    return all;
  }
  [[maybe_unused]] static inline MatchersAtWork& from_the_beginning_ = at_work();

  void enter() {
    const std::lock_guard lock(mutex_);
    ++working_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    if (--working_ == 0) idle_.notify_all();
  }

  std::mutex mutex_;  // the forking thread holds this mutex during the fork
  std::condition_variable idle_;
  int working_ = 0;
  const AtFork at_fork_{{.before =
                             [this] {
                               std::unique_lock lock(mutex_);
                               idle_.wait(lock, [this] { return working_ == 0; });
                               lock.release();
                             },
                         .in_parent = [this] { mutex_.unlock(); },
                         .in_child =
                             [this] {
                               mutex_.unlock();
                               DeepWork::forget_parent();
                             }}};
};

std::string message_of(const llguidance::Library& library, llguidance::Matcher* matcher) {
  const char* told = library.matcher_get_error(matcher);
  std::string text = told ? told : "it says no reason";
  // Drops the backtrace that follows the message of a panic in the library.
  if (const auto trace = text.find("\n<backtrace>"); trace != std::string::npos) text.resize(trace);
  if (text.size() > kMessageBytes) text.resize(kMessageBytes);
  return text;
}

class GrammarFilter final : public TokenFilter {
 public:
  GrammarFilter(std::shared_ptr<const GrammarTokens> tokens, llguidance::Matcher* matcher)
      : tokens_(std::move(tokens)), matcher_(matcher) {}
  ~GrammarFilter() override { tokens_->library().free_matcher(matcher_); }

  void mask(std::span<std::uint32_t> words) override {
    const auto& library = tokens_->library();
    const MatchersAtWork::Scope whole;
    require(words.size() >= tokens_->words(), "a mask of ", words.size(), " words is shorter than the grammar's ", tokens_->words());
    if (library.matcher_compute_mask_into(matcher_, words.data(), tokens_->words() * sizeof(std::uint32_t)) != 0) fail_here();
    std::fill(words.begin() + static_cast<std::ptrdiff_t>(tokens_->words()), words.end(), 0u);
  }

  bool accept(std::int32_t id) override {
    const auto& library = tokens_->library();
    const MatchersAtWork::Scope whole;
    if (library.matcher_consume_token(matcher_, static_cast<std::uint32_t>(id)) != 0) fail_here();
    return !library.matcher_is_stopped(matcher_);
  }

  bool foresees() const override { return true; }
  std::int32_t foreseen(std::span<const std::uint32_t> mask) const override { return tokens_->one_text(mask); }

  std::unique_ptr<TokenFilter> clone() const override {
    const MatchersAtWork::Scope whole;
    return std::make_unique<GrammarFilter>(tokens_, tokens_->library().clone_matcher(matcher_));
  }

 private:
  [[noreturn]] void fail_here() const {
    fail(ErrorKind::grammar, "the grammar went beyond its limits in the middle of an answer (", message_of(tokens_->library(), matcher_),
         "): make it smaller or less ambiguous");
  }

  std::shared_ptr<const GrammarTokens> tokens_;
  llguidance::Matcher* matcher_;
};

}  // namespace

std::shared_ptr<const GrammarTokens> GrammarTokens::make(std::shared_ptr<const llguidance::Library> library,
                                                         std::shared_ptr<const TokenBytes> bytes, std::vector<std::uint32_t> eos,
                                                         const Cancel& cancel) {
  require(library->missing.empty(), "llguidance lacks functions");
  require(!eos.empty(), "a grammar needs a token that ends the answer");
  for (const std::uint32_t id : eos) require(id < bytes->size(), "end token ", id, " is not in the vocabulary of ", bytes->size());

  struct Job {
    std::shared_ptr<const llguidance::Library> library;
    std::shared_ptr<const TokenBytes> bytes;
    std::vector<std::uint32_t> lengths, eos;
    std::shared_ptr<const GrammarTokens> made;
  };
  const auto job = std::make_shared<Job>(Job{std::move(library), std::move(bytes), {}, std::move(eos), nullptr});
  for (std::size_t id = 0; id < job->bytes->size(); ++id) job->lengths.push_back(static_cast<std::uint32_t>(job->bytes->of(id).size()));
  DeepWork::run(
      [job] {
        llguidance::TokenizerInit init;
        init.vocab_size = static_cast<std::uint32_t>(job->lengths.size());
        init.eos = job->eos.front();
        init.token_lengths = job->lengths.data();
        init.token_bytes = job->bytes->all().data();
        init.tokenize_greedily = true;  // has an effect only on the library's forced tokens, which the engine does not use
        init.more_eos = job->eos.data() + 1;
        init.more_eos_count = static_cast<std::uint32_t>(job->eos.size() - 1);
        char error[1024] = "";
        llguidance::Tokenizer* made = job->library->new_tokenizer_v2(&init, error, sizeof(error));
        require(made != nullptr, "the vocabulary cannot be used with grammars: ", error);
        job->made = std::shared_ptr<const GrammarTokens>(new GrammarTokens(job->library, made, job->bytes));
      },
      cancel, std::chrono::hours(24), std::chrono::hours(24));
  return std::exchange(job->made, nullptr);
}

std::int32_t GrammarTokens::one_text(std::span<const std::uint32_t> mask) const {
  std::array<std::size_t, kMostBeginnings> ids;
  std::size_t count = 0, longest = 0;
  for (std::size_t w = 0; w < words_; ++w) {
    for (std::uint32_t bits = mask[w]; bits != 0; bits &= bits - 1) {
      if (count == ids.size()) return -1;
      ids[count] = w * 32 + static_cast<std::size_t>(std::countr_zero(bits));
      if (ids[count] >= bytes_->size() || bytes_->of(ids[count]).empty()) return -1;
      if (bytes_->of(ids[count]).size() > bytes_->of(ids[longest]).size()) longest = count;
      ++count;
    }
  }
  if (count == 0) return -1;
  const auto whole = bytes_->of(ids[longest]);
  const auto begins = [&](std::size_t id) { return std::ranges::equal(bytes_->of(id), whole.first(bytes_->of(id).size())); };
  return std::all_of(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), begins) ? static_cast<std::int32_t>(ids[longest]) : -1;
}

GrammarTokens::~GrammarTokens() { library_->free_tokenizer(tokenizer_); }

std::shared_ptr<const CompiledGrammar> CompiledGrammar::compile(std::shared_ptr<const GrammarTokens> tokens, std::string kind,
                                                                std::string source, const Cancel& cancel) {
  if (source.size() > kMostGrammarBytes)
    fail(ErrorKind::grammar, "the grammar has ", source.size(), " bytes; ", kMostGrammarBytes, " are the most");
  if (source.find('\0') != std::string::npos) fail(ErrorKind::grammar, "the grammar has a NUL character; write it as \\u0000");
  struct Job {
    std::shared_ptr<const GrammarTokens> tokens;
    std::string kind, source;
    std::shared_ptr<const CompiledGrammar> made;
  };
  const auto job = std::make_shared<Job>(Job{std::move(tokens), std::move(kind), std::move(source), nullptr});
  DeepWork::run(
      [job] {
        const auto& library = job->tokens->library();
        llguidance::MatcherInit init;
        library.constraint_init_set_defaults(&init, job->tokens->get());
        init.log_stderr_level = 0;
        init.log_buffer_level = 0;
        init.limits.verbose_errors = false;
        llguidance::Matcher* matcher = library.new_matcher(&init, job->kind.c_str(), job->source.c_str());
        const std::shared_ptr<const CompiledGrammar> made(new CompiledGrammar(job->tokens, matcher));
        if (library.matcher_is_error(matcher)) fail(ErrorKind::grammar, message_of(library, matcher));
        // Computes the first mask now. While the library does this, it caches data in the matcher. Each copy of the matcher then begins
        // with these data.
        std::vector<std::uint32_t> words(job->tokens->words());
        const std::size_t bytes = words.size() * sizeof(std::uint32_t);
        require(library.matcher_get_mask_byte_size(matcher) == bytes, "llguidance's masks have another size than this vocabulary's");
        if (library.matcher_compute_mask_into(matcher, words.data(), bytes) != 0) fail(ErrorKind::grammar, message_of(library, matcher));
        // If a grammar exceeds the limits of the parser, the parser may report this only when it reads the first tokens. So a copy of the
        // matcher reads a few tokens now.
        const CompiledGrammar trial(job->tokens, library.clone_matcher(matcher));
        for (int i = 0; i < kTriedTokens && !library.matcher_is_stopped(trial.matcher_); ++i) {
          const auto word = std::find_if(words.begin(), words.end(), [](std::uint32_t w) { return w != 0; });
          if (word == words.end()) fail(ErrorKind::grammar, "no token of the model can ", i == 0 ? "begin" : "go on with", " an answer");
          const auto id = static_cast<std::uint32_t>((word - words.begin()) * 32 + std::countr_zero(*word));
          if (library.matcher_consume_token(trial.matcher_, id) != 0 ||
              library.matcher_compute_mask_into(trial.matcher_, words.data(), bytes) != 0)
            fail(ErrorKind::grammar, message_of(library, trial.matcher_));
        }
        job->made = made;
      },
      cancel, kMostTime, kMostWait);
  return std::exchange(job->made, nullptr);
}

CompiledGrammar::~CompiledGrammar() { tokens_->library().free_matcher(matcher_); }

std::unique_ptr<TokenFilter> CompiledGrammar::filter() const {
  const MatchersAtWork::Scope whole;
  return std::make_unique<GrammarFilter>(tokens_, tokens_->library().clone_matcher(matcher_));
}

}  // namespace pumice::engine
