// The functions that libFuzzer calls. The environment variable PUMICE_FUZZ_TARGET has the name of the target. Nothing here catches a
// signal, an abort or an exception: each of them ends the program, and libFuzzer keeps the input.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <stdexcept>

#include "fuzz/mutate.h"
#include "fuzz/targets.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace {

const pumice::fuzz::Target& target() {
  const char* name = std::getenv("PUMICE_FUZZ_TARGET");
  static const pumice::fuzz::Target& found = pumice::fuzz::target(name ? name : "");
  return found;
}

std::string mutate_bytes(std::string_view bytes) {
  std::string changed(bytes.size() + 32, '\0');
  std::ranges::copy(bytes, changed.begin());
  changed.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(changed.data()), bytes.size(), changed.size()));
  return changed;
}

constexpr double kMostSeconds = 10;  // of the processor, for one input

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::clock_t begin = std::clock();
  target().run({reinterpret_cast<const char*>(data), size});
  if (static_cast<double>(std::clock() - begin) > kMostSeconds * CLOCKS_PER_SEC) throw std::runtime_error("took more than 10 s");
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned int seed) {
  static const pumice::fuzz::Mutator mutator(target().form, target().seeds());
  const std::string changed = mutator.mutate({reinterpret_cast<const char*>(data), size}, most, seed, mutate_bytes);
  const std::size_t kept = std::min(changed.size(), most);
  std::memcpy(data, changed.data(), kept);
  return kept;
}
