// compressed-tensors, which llm-compressor writes: integers of 2 to 8 bits. A matrix of R rows and C columns, in groups of columns,
// consists of
//   weight_packed     I32 [R, C bits / 32]: the codes of each row as a stream of bits; files from before May 2026 leave the last bits of
//                     each word unused where a code would end in the next word
//   weight_shape      I64 or I32 [2]: R and C
//   weight_scale      [R, groups], or one number, or [1]
//   weight_zero_point I32 [R bits / 32, groups]: the zeros of each group as a stream down a column of words; without it all are 0
//   weight_g_idx      I32 [C]: the group of each column; without it, neighbouring columns are a group
// or, with 8 bits that are not packed, of
//   weight I8 [R, C], weight_scale, and weight_zero_point I8 [R, groups]
// Packed codes and zeros are stored plus half of their range. Scales of activations (input_scale) are not used.
// Source: compressed_tensors/compressors of compressed-tensors 0.20.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "core/checked.h"
#include "files/schemes/folder.h"

namespace pumice::files::schemes {
namespace {

struct Group {  // of modules that are packed in the same way: an entry of config_groups
  std::int64_t bits = 0;
  bool symmetric = true, integers = true, ordered = false;
};

std::vector<Group> groups_of(const PackedFolder& folder) {
  const Metadata& config = folder.config();
  const std::string list = folder.key("config_groups."), end = ".weights.num_bits";
  std::vector<Group> groups;
  const auto& keys = config.entries();
  for (auto key = keys.lower_bound(list); key != keys.end() && key->first.starts_with(list); ++key) {
    if (!key->first.ends_with(end)) continue;
    const std::string weights = key->first.substr(0, key->first.size() - end.size()) + ".weights.";
    groups.push_back({.bits = config.integer(key->first).value_or(0),
                      .symmetric = config.boolean(weights + "symmetric").value_or(true),
                      .integers = config.string(weights + "type").value_or("int") == "int",
                      .ordered = config.has(weights + "actorder") && config.string(weights + "actorder").value_or("") == "group"});
  }
  return groups;
}

// Returns how many words a row of `cols` codes takes, and sets whether codes never cross words.
std::optional<bool> crosses_words(std::int64_t words, std::int64_t cols, std::int64_t bits) {
  if (words == ceil_div(cols * bits, 32)) return true;
  if (words == ceil_div(cols, 32 / bits)) return false;
  return std::nullopt;
}

// Returns the columns that the two numbers of weight_shape say.
std::int64_t columns_of(const PackedFolder& folder, const TensorInfo& shape, std::int64_t rows) {
  folder.need_shape(shape, {2});
  std::array<std::int64_t, 2> lengths{};
  if (shape.format_name == "I64") {
    read_bytes(folder.files(), shape, 0, shape.bytes, lengths.data());
  } else {
    std::array<std::int32_t, 2> narrow{};
    read_bytes(folder.files(), shape, 0, shape.bytes, narrow.data());
    lengths = {narrow[0], narrow[1]};
  }
  if (lengths[0] != rows || lengths[1] < 1 || lengths[1] > std::numeric_limits<std::int32_t>::max())
    folder.fail_tensor(shape, "says [", lengths[0], ", ", lengths[1], "]; the packed matrix has ", rows, " rows");
  return lengths[1];
}

// Returns the number of groups that the scales have: [rows, groups], or one number for all.
std::int64_t groups_in(const PackedFolder& folder, const TensorInfo& scales, std::int64_t rows) {
  if (scales.shape.empty() || scales.shape == std::vector<std::int64_t>{1}) return 1;
  if (scales.shape == std::vector<std::int64_t>{rows}) return 1;
  folder.need_shape(scales, {rows, -1});
  return scales.shape[1];
}

std::vector<std::int32_t> order_of(const PackedFolder& folder, const TensorInfo& index, std::int64_t cols, std::int64_t groups) {
  folder.need_shape(index, {cols});
  std::vector<std::int32_t> found(static_cast<std::size_t>(cols));
  read_bytes(folder.files(), index, 0, index.bytes, found.data());
  bool plain = cols % groups == 0;
  for (std::int64_t col = 0; col < cols; ++col) {
    const std::int32_t g = found[static_cast<std::size_t>(col)];
    if (g < 0 || g >= groups) folder.fail_tensor(index, "column ", col, " is of group ", g, "; there are ", groups, " groups");
    plain = plain && g == col / (cols / groups);
  }
  if (plain) found.clear();
  return found;
}

// Reads the scales of rows [first, first + count).
std::vector<float> scales_of(std::span<const File> files, const TensorInfo& scales, std::int64_t groups, std::int64_t first,
                             std::int64_t count) {
  std::vector<float> found(static_cast<std::size_t>(groups * count));
  const bool one = scales.shape.empty() || scales.shape == std::vector<std::int64_t>{1};
  if (one) {
    float all = 0;
    read_numbers(files, scales, 0, 1, &all);
    std::ranges::fill(found, all);
  } else {
    read_numbers(files, scales, first * groups, count * groups, found.data());
  }
  return found;
}

void add_packed(PackedFolder& folder, const std::string& module, const std::vector<Group>& known) {
  const TensorInfo &words = folder.need(module, "weight_packed", {"I32"}), &shape = folder.need(module, "weight_shape", {"I64", "I32"}),
                   &scales = folder.need(module, "weight_scale", {"F16", "BF16", "F32"});
  const TensorInfo *zeros = folder.find(module, "weight_zero_point"), *index = folder.find(module, "weight_g_idx");
  folder.need_shape(words, {-1, -1});
  const std::int64_t rows = words.shape[0], cols = columns_of(folder, shape, rows), groups = groups_in(folder, scales, rows);
  if (cols % groups != 0) folder.fail_tensor(scales, "has ", groups, " groups for ", cols, " columns, which they do not divide");

  // Which of the groups of config.json the module is of, by the width of its rows and whether it has zeros.
  const Group* group = nullptr;
  for (const Group& each : known) {
    if (!each.integers || each.bits < 2 || each.bits > 8 || !crosses_words(words.shape[1], cols, each.bits)) continue;
    if (!group || (group->symmetric && zeros && !each.symmetric)) group = &each;
  }
  if (!group)
    folder.fail_tensor(words, "has rows of ", words.shape[1], " words for ", cols, " codes; no group of config.json has so many bits");
  const auto bits = static_cast<int>(group->bits);
  const bool crosses = *crosses_words(words.shape[1], cols, bits);
  if (group->symmetric && zeros) folder.fail_tensor(*zeros, "is there, and config.json says that the weights are symmetric");
  if (!group->symmetric) {
    zeros = &folder.need(module, "weight_zero_point", {"I32"});
    folder.need_shape(*zeros, {crosses ? ceil_div(rows * bits, 32) : ceil_div(rows, 32 / bits), groups});
  }
  if (group->ordered || index) index = &folder.need(module, "weight_g_idx", {"I32"});

  Codes codes{.module = module, .rows = rows, .cols = cols, .groups = groups, .bits = bits, .scales = scales};
  codes.offsets = zeros ? Offsets::zeros : Offsets::middle;
  if (index) codes.group_of = order_of(folder, *index, cols, groups);
  codes.packing = str("compressed-tensors, ", bits, " bits, groups of ", cols / groups, codes.group_of.empty() ? "" : ", act-order");
  codes.read = [words, scales, cols, groups, bits, crosses, zeros = zeros ? std::optional(*zeros) : std::nullopt](
                   std::span<const File> files, std::int64_t first, std::int64_t count) {
    const auto n = static_cast<std::size_t>(count), width = static_cast<std::size_t>(cols), high = static_cast<std::size_t>(groups);
    CodeRows out{.codes = std::vector<std::uint8_t>(n * width), .scales = scales_of(files, scales, groups, first, count), .offsets = {}};
    const auto across = static_cast<std::size_t>(words.shape[1]);
    std::vector<std::uint32_t> row(across);
    const auto code = [&](std::int64_t i, auto&& word) -> std::uint8_t {
      if (crosses) return in_stream(i, bits, word);
      const std::int64_t each = 32 / bits;
      return static_cast<std::uint8_t>(word(i / each) >> (i % each * bits) & ((1u << bits) - 1));
    };
    for (std::size_t r = 0; r < n; ++r) {
      read_bytes(files, words, (static_cast<std::uint64_t>(first) + r) * across * 4, across * 4, row.data());
      for (std::int64_t col = 0; col < cols; ++col)
        out.codes[r * width + static_cast<std::size_t>(col)] = code(col, [&](std::int64_t i) { return row[static_cast<std::size_t>(i)]; });
    }
    if (!zeros) return out;
    out.offsets.resize(n * high);
    // The words that hold the zeros of these rows, and the one after them, in which the last zero may end.
    const std::int64_t begin = crosses ? first * bits / 32 : first / (32 / bits);
    const std::int64_t end = std::min(zeros->shape[0], (crosses ? (first + count) * bits / 32 : (first + count) / (32 / bits)) + 2);
    std::vector<std::uint32_t> some(static_cast<std::size_t>(end - begin) * high);
    read_bytes(files, *zeros, static_cast<std::uint64_t>(begin) * high * 4, some.size() * 4, some.data());
    for (std::size_t r = 0; r < n; ++r) {
      for (std::size_t g = 0; g < high; ++g)
        out.offsets[r * high + g] = static_cast<float>(code(
            first + static_cast<std::int64_t>(r), [&](std::int64_t i) { return some[static_cast<std::size_t>(i - begin) * high + g]; }));
    }
    return out;
  };
  folder.add(std::move(codes), {&words, &shape, &scales, zeros, index});
}

void add_bytes(PackedFolder& folder, const std::string& module, const TensorInfo& weight) {
  const TensorInfo& scales = folder.need(module, "weight_scale", {"F16", "BF16", "F32"});
  const TensorInfo* zeros = folder.find(module, "weight_zero_point");
  if (zeros) zeros = &folder.need(module, "weight_zero_point", {"I8"});
  folder.need_shape(weight, {-1, -1});
  const std::int64_t rows = weight.shape[0], cols = weight.shape[1], groups = groups_in(folder, scales, rows);
  if (cols % groups != 0) folder.fail_tensor(scales, "has ", groups, " groups for ", cols, " columns, which they do not divide");
  if (zeros) folder.need_shape(*zeros, scales.shape);

  Codes codes{.module = module, .rows = rows, .cols = cols, .groups = groups, .bits = 8, .scales = scales};
  codes.offsets = zeros ? Offsets::zeros : Offsets::middle;
  codes.packing = str("compressed-tensors, 8 bits, groups of ", cols / groups);
  codes.read = [weight, scales, cols, groups, zeros = zeros ? std::optional(*zeros) : std::nullopt](
                   std::span<const File> files, std::int64_t first, std::int64_t count) {
    const auto high = static_cast<std::size_t>(groups * count), all = static_cast<std::size_t>(cols * count);
    CodeRows out{.codes = std::vector<std::uint8_t>(all), .scales = scales_of(files, scales, groups, first, count), .offsets = {}};
    read_bytes(files, weight, static_cast<std::uint64_t>(first * cols), all, out.codes.data());
    for (std::uint8_t& code : out.codes) code ^= 0x80;  // -128 to 127 become 0 to 255
    if (!zeros) return out;
    std::vector<std::uint8_t> zero(high);
    const bool one = zeros->shape.empty() || zeros->shape == std::vector<std::int64_t>{1};
    read_bytes(files, *zeros, one ? 0 : static_cast<std::uint64_t>(first * groups), one ? 1 : high, zero.data());
    if (one) std::ranges::fill(zero, zero[0]);
    for (const std::uint8_t each : zero) out.offsets.push_back(static_cast<float>(each ^ 0x80));
    return out;
  };
  folder.add(std::move(codes), {&weight, &scales, zeros});
}

}  // namespace

void add_compressed_tensors(PackedFolder& folder) {
  const Metadata& config = folder.config();
  if (const auto sparse = config.string(folder.key("sparsity_config.format")); sparse && *sparse != "dense")
    folder.unsupported("sparsity_config.format", "is ", quote(*sparse), "; sparse weights are not read");
  if (const auto& keys = config.entries();
      keys.lower_bound(folder.key("transform_config.config_groups.")) != keys.lower_bound(folder.key("transform_config.config_groups/")))
    folder.unsupported("transform_config", "rotates the weights, which is not read");
  const std::vector<Group> groups = groups_of(folder);
  for (const std::string& module : folder.modules({"weight_packed", "weight_shape", "weight_scale", "weight_zero_point", "weight_g_idx"})) {
    for (const char* unused : {"input_scale", "input_zero_point", "input_global_scale"}) folder.drop(folder.find(module, unused));
    const TensorInfo* weight = folder.find(module, "weight");
    if (!weight) {
      const TensorInfo* packed = folder.find(module, "weight_packed");
      if (packed && packed->format_name == "U8")
        folder.unsupported("format", "packs ", packed->name, " in floats of 4 bits (mxfp4, nvfp4), which is not read");
      add_packed(folder, module, groups);
    } else if (weight->format_name == "I8") {
      add_bytes(folder, module, *weight);
    } else {
      folder.unsupported("format", "has ", weight->name, " in ", weight->format_name, " with scales; I8 and packed integers are read");
    }
  }
}

}  // namespace pumice::files::schemes
