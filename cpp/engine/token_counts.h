// TokenCounts records which ids a sequence has, and ChangedIds records the ids whose logits penalties or a bias change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace pumice::engine {

// The set of ids in a sequence, with the number of times that each id was generated. It is a hash table with open addressing, so that add()
// allocates memory only when the table must grow.
class TokenCounts {
 public:
  void add(std::int32_t id, bool generated);
  // Returns how often the id was generated, which is 0 for an id that occurs only in the prompt. Returns nothing if the id is not in the
  // sequence.
  std::optional<std::int32_t> generated(std::int32_t id) const;
  template <class Visit>
  void each(Visit&& visit) const {
    for (const Entry& entry : table_)
      if (entry.id >= 0) visit(entry.id, entry.generated);
  }

 private:
  struct Entry {
    std::int32_t id = -1, generated = 0;
  };
  std::size_t place(std::int32_t id) const;
  std::vector<Entry> table_;  // the size is a power of two, and at most half of the entries are used
  std::size_t used_ = 0;
};

// The ids whose logits are changed by penalties or a bias, in ascending order. A device has only raw logits, so it leaves these ids out of
// its ranking (Top) and reports their logits separately.
class ChangedIds {
 public:
  explicit ChangedIds(std::size_t most = 0) : most_(most) {}
  void add(std::int32_t id);
  bool fit() const { return ids_.size() <= most_; }  // returns false if there are more than `most` ids; ids() is then incomplete
  std::span<const std::int32_t> ids() const { return ids_; }

 private:
  std::size_t most_;
  std::vector<std::int32_t> ids_;
};

}  // namespace pumice::engine
