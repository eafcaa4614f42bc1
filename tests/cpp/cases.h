// Deterministic random data for test cases, from a counter that goes through splitmix64 (Steele, Lea and Flood 2014). Python makes the same
// bits.
#pragma once

#include <cstdint>
#include <vector>

namespace pumice::cases {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  // Returns a multiple of 2^-24 in [0, 1).
  double uniform() { return static_cast<double>(bits() >> 40) * 0x1p-24; }
  // Returns a number in (-3.5, 3.5) of mean 0 and variance 1: a sum of four uniform numbers, rounded to float once.
  float normal() {
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += uniform();
    return static_cast<float>((sum - 2) * 1.7320508075688772);
  }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(n)); }

  std::vector<float> normals(std::int64_t n, float scale = 1, float offset = 0) {
    std::vector<float> values(static_cast<std::size_t>(n));
    for (float& v : values) v = normal() * scale + offset;
    return values;
  }

 private:
  std::uint64_t state_;
};

}  // namespace pumice::cases
