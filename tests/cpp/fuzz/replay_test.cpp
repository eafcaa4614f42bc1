// Runs every fuzz target on its seeds, on the inputs that `make fuzz` has found (corpus/), and on changes of both. Needs no Clang.
// PUMICE_FUZZ is the number of changed inputs for each target.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <set>

#include "files/byte_reader.h"
#include "fuzz/mutate.h"
#include "fuzz/targets.h"

namespace pumice::fuzz {
namespace {

// Returns the inputs of a packed corpus: the size of each, u32, and its bytes (tests/fuzz/corpus.py).
std::vector<std::string> corpus(const std::string& name) {
  std::ifstream in(std::string(PUMICE_TESTS_DIR) + "/cpp/fuzz/corpus/" + name, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  std::vector<std::string> inputs;
  for (std::size_t at = 0; at + 4 <= all.size();) {
    const auto size = files::from_little_endian<std::uint32_t>(std::string_view(all).substr(at, 4));
    inputs.push_back(all.substr(at + 4, size));
    at += 4 + size;
  }
  return inputs;
}

class Targets : public ::testing::TestWithParam<Target> {};

TEST_P(Targets, LoadOrRefuse) {
  const Target& target = GetParam();
  std::vector<std::string> inputs = target.seeds();
  ASSERT_FALSE(inputs.empty());
  const std::size_t seeds = inputs.size();
  std::size_t sound = 0;
  for (const std::string& input : inputs) {
    const bool loaded = target.run(input);
    sound += loaded;
    if (!loaded) std::cout << "  a seed is refused: " << input.substr(0, 80) << "...\n";
  }
  EXPECT_GE(10 * sound, 9 * inputs.size());  // the weights of "model" are zeros, which few families refuse
  const std::vector<std::string> found = corpus(target.name);
  EXPECT_FALSE(found.empty()) << "tests/cpp/fuzz/corpus/" << target.name;
  inputs.insert(inputs.end(), found.begin(), found.end());
  for (const std::string& input : found) EXPECT_NO_THROW(target.run(input)) << input.substr(0, 200);

  std::mt19937 random(20'261'127);
  const auto change_bytes = [&](std::string_view bytes) {
    std::string changed(bytes);
    const std::size_t at = random() % (changed.size() + 1), length = random() % 16;
    switch (random() % 4) {
      case 0:
        if (at < changed.size()) changed[at] = static_cast<char>(random());
        break;
      case 1:
        changed.erase(at, length);
        break;
      case 2:
        changed.insert(at, length, static_cast<char>(random()));
        break;
      case 3:
        changed.insert(at, changed.substr(random() % (changed.size() + 1), length));
        break;
    }
    return changed;
  };
  const char* asked = std::getenv("PUMICE_FUZZ");
  const int rounds = asked ? std::atoi(asked) : 800;
  const Mutator mutator(target.form, target.seeds());
  int loaded = 0;
  std::set<std::string> different;
  for (int round = 0; round < rounds; ++round) {
    std::string input = inputs[random() % (round % 2 == 0 ? seeds : inputs.size())];  // most inputs of the corpus are refused
    for (unsigned changes = 1 + random() % 3; changes > 0; --changes)
      input = mutator.mutate(input, 8192, static_cast<std::uint32_t>(random()), change_bytes);
    different.insert(input);
    ASSERT_NO_THROW(loaded += target.run(input)) << "round " << round << ": " << input.substr(0, 200);
  }
  std::cout << "  " << found.size() << " inputs of the corpus, " << rounds << " changed ones, of which " << loaded << " loaded\n";
  // Changes that are all refused, or all the same, would test nothing behind the first check.
  EXPECT_GT(loaded, rounds / 200);
  EXPECT_GT(different.size(), static_cast<std::size_t>(rounds) / 2);
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Targets, ::testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace pumice::fuzz
