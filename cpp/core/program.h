// A program is the part of a model that a backend runs: a short list of fused operations. The operations refer to slots, weights and caches
// by index. Programs are plain data. A program does not fix the number of rows; each batch has its own.
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

// The shape of one layer's cache. For each position and each kv head, the cache has a key of key_dim numbers and a value of value_dim
// numbers.
struct CacheShape {
  std::int32_t heads = 0, key_dim = 0, value_dim = 0;
  bool operator==(const CacheShape&) const = default;
};

// The shape of one operation's state, which consists of float32 matrices. The state of Conv is one matrix with the last width - 1 rows of
// the operation's input. The state of Scan is a matrix of key_dim x value_dim for each head.
struct StateShape {
  std::int32_t matrices = 0, rows = 0, cols = 0;
  bool operator==(const StateShape&) const = default;
};

struct Program {
  std::string name;  // for example "body", "head" or "encoder"; shown in errors and profiles
  std::vector<Op> ops;
  std::vector<SlotShape> slots;
  std::vector<CacheShape> caches;  // indexed by CacheId
  std::vector<StateShape> states;  // indexed by StateId
  std::int32_t input = -1;         // index of the slot that Io::in fills, or -1 if the program starts from token ids
  std::int32_t output = -1;        // index of the slot that is copied to Io::out, or -1 if there is none
  // The format that the caches probably have. A GPU compiles its pipelines for this format beforehand. Caches of other formats work, too.
  KvFormat kv_format = KvFormat::f16;
  // True if another program with the same store writes the keys and values that this program's Attend operations read. If false, this
  // program must store keys and values before an Attend reads them.
  bool stored_by_others = false;
};

}  // namespace pumice
