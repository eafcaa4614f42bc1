// What a backend gets of a model: a short list of fused operations on activation slots, weights and caches, which they name by index.
// Programs are plain data. A program does not fix the number of rows; each batch sets it.
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

// The shape of one layer's cache: for each position and each kv head it holds key_dim numbers of the key and value_dim of the value.
struct CacheShape {
  std::int32_t heads = 0, key_dim = 0, value_dim = 0;
  bool operator==(const CacheShape&) const = default;
};

struct Program {
  std::string name;  // "body", "head", "encoder": for errors and profiles
  std::vector<Op> ops;
  std::vector<SlotShape> slots;
  std::vector<CacheShape> caches;  // by CacheId
  std::int32_t input = -1;         // slot that Io::in fills; -1: the program starts from token ids
  std::int32_t output = -1;        // slot that Io::out receives
  // The expected format of the caches, for which a GPU compiles pipelines. Other formats work, too.
  KvFormat kv_format = KvFormat::f16;
};

}  // namespace pumice
