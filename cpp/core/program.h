// What a model is to a backend: a short list of fused operations over named activation slots, weights and caches.
// Programs are plain data. The number of rows is left open: a batch brings it.
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

// What a layer keeps of each position: for each of its kv heads key_dim numbers of the key and value_dim of the value.
struct CacheShape {
  std::int32_t heads = 0, key_dim = 0, value_dim = 0;
  bool operator==(const CacheShape&) const = default;
};

struct Program {
  std::string name;  // "body", "head", "encoder": for errors and profiles
  std::vector<Op> ops;
  std::vector<SlotShape> slots;
  std::vector<CacheShape> caches;      // by CacheId
  std::int32_t input = -1;             // slot that Io::in fills, or -1: the program begins with ids
  std::int32_t output = -1;            // slot that Io::out receives
  KvFormat kv_format = KvFormat::f16;  // of the caches that it will run with: a GPU compiles pipelines for it. Others work, too
};

}  // namespace pumice
