// An ordered set whose nodes are allocated in advance, so that insert() and erase() need no memory and cannot fail.
#pragma once

#include <cstddef>
#include <set>
#include <utility>
#include <vector>

namespace pumice::engine {

template <class Key>
class ReservedSet {
 public:
  void reserve(std::size_t elements) {  // allocates nodes until there are enough for `elements` elements in all
    spare_.reserve(elements);
    while (set_.size() + spare_.size() < elements) {
      std::set<Key> one{Key{}};
      spare_.push_back(one.extract(one.begin()));
    }
  }
  void insert(const Key& key) noexcept {  // the set must have fewer elements than are reserved
    auto node = std::move(spare_.back());
    spare_.pop_back();
    node.value() = key;
    auto result = set_.insert(std::move(node));
    if (!result.inserted) spare_.push_back(std::move(result.node));
  }
  bool erase(const Key& key) noexcept {  // returns true if the set contained the key
    auto node = set_.extract(key);
    if (!node) return false;
    spare_.push_back(std::move(node));
    return true;
  }
  bool contains(const Key& key) const { return set_.contains(key); }
  bool empty() const { return set_.empty(); }
  std::size_t size() const { return set_.size(); }
  auto begin() const { return set_.begin(); }
  auto end() const { return set_.end(); }

 private:
  std::set<Key> set_;
  std::vector<typename std::set<Key>::node_type> spare_;
};

}  // namespace pumice::engine
