// Writes the seeds of each target to FOLDER/TARGET/seed-N, and prints the names of the targets.
// Usage: fuzz_seeds FOLDER
#include <filesystem>
#include <fstream>
#include <iostream>

#include "fuzz/targets.h"

int main(int count, char** arguments) {
  if (count != 2) return std::cerr << "usage: fuzz_seeds FOLDER\n", 2;
  for (const pumice::fuzz::Target& target : pumice::fuzz::targets()) {
    const std::filesystem::path folder = std::filesystem::path(arguments[1]) / target.name;
    std::filesystem::create_directories(folder);
    std::size_t number = 0;
    for (const std::string& seed : target.seeds())
      std::ofstream(folder / ("seed-" + std::to_string(number++)), std::ios::binary).write(seed.data(), std::streamsize(seed.size()));
    std::cout << target.name << '\n';
  }
}
