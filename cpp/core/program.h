// A program is what a backend sees of a model: a short list of fused operations. The operations name their slots, weights and caches by
// index. Programs are plain data. The number of rows is not part of a program; each batch sets it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/batch.h"
#include "core/kv_format.h"
#include "core/ops.h"
#include "core/top.h"
#include "core/weights.h"

namespace pumice {

struct SlotShape {
  Rows rows = Rows::tokens;
  std::int32_t width = 0;
};

// The shape of one layer's cache. For each position and each kv head, the cache holds the key_dim numbers of the key and the value_dim
// numbers of the value.
struct CacheShape {
  std::int32_t heads = 0, key_dim = 0, value_dim = 0;
  bool operator==(const CacheShape&) const = default;
};

// The shape of one operation's state: matrices of float32. Conv has one matrix, the last width - 1 rows of its input. Scan has a matrix
// of key_dim x value_dim for each head.
struct StateShape {
  std::int32_t matrices = 0, rows = 0, cols = 0;
  bool operator==(const StateShape&) const = default;
};

struct Program {
  std::string name;  // "body", "head", "encoder"; shown in errors and profiles
  std::vector<Op> ops;
  std::vector<SlotShape> slots;
  std::vector<CacheShape> caches;  // by CacheId
  std::vector<StateShape> states;  // by StateId
  std::int32_t input = -1;         // slot that Io::in fills, or -1 if the program starts from token ids
  std::int32_t output = -1;        // slot that is copied to Io::out
  // The format that the caches are expected to have. A GPU compiles its pipelines for it beforehand. Caches of other formats work, too.
  KvFormat kv_format = KvFormat::f16;
  // True if other programs with the same store write the keys and values that this program's Attend operations read. If false, the program
  // itself must store them first.
  bool stored_by_others = false;
};

}  // namespace pumice
