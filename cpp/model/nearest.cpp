#include "model/nearest.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace pumice::model {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string_view nearest(std::string_view name, std::span<const std::string> names) {
  std::string_view found;
  std::size_t best = std::numeric_limits<std::size_t>::max();
  for (const std::string& each : names.first(std::min(names.size(), kNamesCompared))) {
    if (const std::size_t distance = edit_distance(name, each); distance < best) best = distance, found = each;
  }
  return found;
}

}  // namespace pumice::model
