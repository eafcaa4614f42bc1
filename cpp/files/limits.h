// The largest sizes that parts of a model file may have. Real files stay far below these limits. A larger part is broken or hostile, and is
// refused before memory is allocated for it. "Largest seen" means in published models.
#pragma once

#include <cstdint>

namespace pumice::files {

// GGUF
inline constexpr std::uint64_t kMaxKeys = 65'536;                 // number of metadata entries; largest seen: about 60
inline constexpr std::uint64_t kMaxKeyBytes = 65'535;             // length of a key in bytes; the specification's own limit
inline constexpr std::uint64_t kMaxStringBytes = 16u << 20;       // bytes in a string; largest seen: about 20 KiB (chat templates)
inline constexpr std::uint64_t kMaxArrayElements = 16u << 20;     // elements of an array; largest seen: 514,906 (merges of Gemma 3)
inline constexpr std::uint64_t kMaxGgufHeaderBytes = 512u << 20;  // size of metadata and tensor list; largest seen: 16 MiB (Llama 4)
inline constexpr std::uint64_t kMaxGgufNameBytes = 64;            // length of a tensor's name in bytes; the specification's own limit
inline constexpr std::uint32_t kMaxGgufDims = 4;                  // number of dimensions of a tensor; the specification's own limit
inline constexpr std::uint64_t kMaxAlignment = 65'536;            // alignment of tensors in bytes; the format's default is 32
// safetensors
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // size of the header; the reference implementation's own limit
inline constexpr std::uint64_t kMaxSafetensorsNameBytes = 1024;
inline constexpr std::uint64_t kMaxSafetensorsDims = 8;
inline constexpr std::uint64_t kMaxIndexBytes = 100'000'000;  // size of model.safetensors.index.json; largest seen: 16 MiB
inline constexpr std::uint64_t kMaxConfigBytes = 16u << 20;   // size of config.json; largest seen: 1.2 MiB (21,841 class names)
inline constexpr std::uint64_t kMaxConfigKeyBytes = 1024;     // length in bytes of a dotted key such as "rope.factor" (parse_config())
inline constexpr std::uint64_t kMaxConfigValues = 1u << 20;
// GGUF and safetensors
inline constexpr std::uint64_t kMaxTensors = 1u << 20;  // number of tensors; largest seen: about 100,000 (experts stored one by one)
inline constexpr std::uint64_t kMaxShards = 4096;       // number of shards, each of which is an open file; largest seen: 191
inline constexpr int kMaxJsonDepth = 64;

}  // namespace pumice::files
