// compressed-tensors, which llm-compressor writes. A matrix of R rows and C columns, in groups of columns, has one of four forms. As packed
// integers of 2 to 8 bits, it consists of
//   weight_packed     I32 [R, C bits / 32]: the codes of each row as a stream of bits; in files from before May 2026, no code begins in one
//                     word and ends in the next, so the last bits of a word may be unused
//   weight_shape      I64 or I32 [2]: R and C
//   weight_scale      [R, groups], or one number, or [1]
//   weight_zero_point I32 [R bits / 32, groups]: the zeros of each group as a stream of bits down a column of words; if missing, every zero
//                     is the number 0
//   weight_g_idx      I32 [C]: the group of each column; if missing, neighbouring columns are a group
// As integers of 8 bits that are not packed, it consists of
//   weight I8 [R, C], weight_scale, and weight_zero_point I8 [R, groups]
// As floats of 8 bits, it consists of
//   weight F8_E4M3 [R, C], weight_scale [R / block rows, C / block columns], or [R, 1], or one number
// As floats of 4 bits, it consists of
//   weight_packed U8 [R, C / 2], and
//     NVFP4: weight_scale F8_E4M3 [R, C / 16], and weight_global_scale F32 [1], which divides the scales
//     MXFP4: weight_scale U8 [R, C / 32]: exponents
// Packed codes and zeros are stored with 2^(bits - 1), half of their range, added to them. Scales of activations (input_scale,
// input_global_scale) are not used.
// Source: compressed_tensors/compressors of compressed-tensors 0.20.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "core/checked.h"
#include "files/schemes/folder.h"
#include "files/schemes/fp4.h"
#include "files/schemes/fp8.h"
#include "files/schemes/patterns.h"

namespace pumice::files::schemes {
namespace {

// The values of "format" in config.json that are accepted. The kind of each module follows from its tensors, because modules of a folder
// with the format "mixed-precision" have several kinds.
constexpr std::string_view kFormats[] = {"pack-quantized",       "int-quantized",        "naive-quantized", "float-quantized",
                                         "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mixed-precision", "dense"};

enum class Kind : std::uint8_t { integers, fp8, fp4 };
constexpr const char* kKinds[] = {"int", "float of 8 bits", "float of 4 bits"};

struct Group {          // an entry of config_groups in config.json: modules that are packed in the same way
  std::string columns;  // the key in config.json whose value is the number of columns that share a scale
  std::int64_t bits = 0;
  bool symmetric = true;
  bool one_scale = false;  // true if the whole matrix has one scale
  bool ordered = false;    // true if there is a tensor with the group of each column (weight_g_idx)
  Kind kind = Kind::integers;
  std::vector<std::int64_t> block = {};  // for floats: numbers of rows and columns that share a scale; 0 stands for all
  ModuleList targets;                    // the modules of the group
  bool operator==(const Group& other) const {
    return kind == other.kind && block == other.block && bits == other.bits && symmetric == other.symmetric &&
           one_scale == other.one_scale && ordered == other.ordered;
  }
};

// Returns the numbers of rows and columns that share a scale, for a group of floats; 0 stands for all. `name` is the beginning of the
// group's keys: "config_groups.group_0.weights.", for example.
std::vector<std::int64_t> block_of(const PackedFolder& folder, const std::string& name, const std::string& strategy) {
  if (strategy == "tensor") return {0, 0};
  if (strategy == "channel") return {1, 0};
  const std::string key = name + (strategy == "group" ? "group_size" : "block_structure");
  std::vector<std::int64_t> block = folder.config().integer_list(folder.key(key)).value_or(std::vector<std::int64_t>{});
  if (strategy == "group") block.insert(block.begin(), 1);
  if (block.size() != 2 || std::ranges::any_of(block, [](std::int64_t n) { return n < 1 || n > (1 << 20); }))
    fail_at(ErrorKind::model_format, folder.config().file(), folder.key(key), std::nullopt, "says no sizes from 1 to ", 1 << 20,
            " for the strategy ", quote(strategy));
  return block;
}

// Returns the groups in config.json whose weights are integers of 2 to 8 bits, or floats of 8 or 4 bits. Other groups are left out.
std::vector<Group> groups_of(const PackedFolder& folder) {
  const Metadata& config = folder.config();
  const std::string list = "config_groups.", weights = ".weights.";
  std::set<std::string> names;
  const auto& keys = config.entries();
  for (auto key = keys.lower_bound(folder.key(list)); key != keys.end() && key->first.starts_with(folder.key(list)); ++key) {
    const std::string name = key->first.substr(folder.key("").size());
    if (const std::size_t end = name.find(weights); end != std::string::npos) names.insert(name.substr(0, end + weights.size()));
  }
  std::vector<Group> groups;
  for (const std::string& name : names) {
    const auto text = [&](const char* key, const char* otherwise) { return config.string(folder.key(name + key)).value_or(otherwise); };
    const bool sized = config.integer(folder.key(name + "group_size")).has_value();
    Group group{.columns = name + "group_size",
                .bits = config.integer(folder.key(name + "num_bits")).value_or(8),
                .symmetric = config.boolean(folder.key(name + "symmetric")).value_or(true),
                .one_scale = text("strategy", sized ? "group" : "tensor") == "tensor",
                .ordered = text("actorder", "") == "group",
                .targets = ModuleList(folder.list(name.substr(0, name.size() - weights.size()) + ".targets"))};
    const std::string type = text("type", "int");
    if (type == "int" && group.bits >= 2 && group.bits <= 8) groups.push_back(group);
    if (type != "float" || (group.bits != 8 && group.bits != 4)) continue;
    group.kind = group.bits == 8 ? Kind::fp8 : Kind::fp4;
    group.block = block_of(folder, name, group.kind == Kind::fp4 ? "group" : text("strategy", sized ? "group" : "tensor"));
    groups.push_back(group);
  }
  return groups;
}

struct Modules {
  std::vector<Group> groups;
  ModuleList ignore;  // modules that are not packed
};

bool is_one(const TensorInfo& scales) { return scales.shape.empty() || scales.shape == std::vector<std::int64_t>{1}; }

// Returns the groups of this kind whose targets name a module. If some targets have the module's name itself, only their groups count.
// Else, if some targets have a regular expression that matches the name, only their groups count. Else those groups count that have the
// module's class among their targets. Throws if there is no such group, or if config.json lists the module as not packed.
// Source: match_named_modules and match_targets in compressed_tensors/utils/match.py of compressed-tensors 0.20.
std::vector<const Group*> groups_naming(const PackedFolder& folder, const Modules& modules, const std::string& module,
                                        const TensorInfo& packed, Kind kind) {
  using By = ModuleList::By;
  if (modules.ignore.names(module) != By::none)
    folder.fail_tensor(packed, "is packed, and ", folder.key("ignore"), " in config.json says that ", module, " is not");
  std::vector<const Group*> found;
  By best = By::none;
  for (const Group& group : modules.groups) {
    const By by = group.targets.names(module);
    if (by > best) found.clear();
    best = std::max(best, by);
    if (by == best && by != By::none) found.push_back(&group);
  }
  if (found.empty())
    folder.fail_tensor(packed, "is packed, and no group of integers or of floats of 8 or 4 bits in ", folder.key("config_groups"),
                       " of config.json has ", module, " among its targets");
  const Kind said = found[0]->kind;
  std::erase_if(found, [&](const Group* group) { return group->kind != kind; });
  if (found.empty())
    folder.fail_tensor(packed, "is ", packed.format_name, ", and its group in config.json says type ",
                       kKinds[static_cast<std::size_t>(said)]);
  return found;
}

// Returns the group in config.json that a module belongs to. `known` are the groups whose targets name the module. The module belongs to
// the one that agrees with the number of scales and with the other tensors. fits() checks the other tensors. Throws if no group agrees, or
// if two groups with different settings do.
template <class Fits>
const Group& group_for(const PackedFolder& folder, const std::vector<const Group*>& known, const TensorInfo& packed,
                       const TensorInfo& scales, std::int64_t cols, std::int64_t groups, Fits&& fits) {
  const Group* found = nullptr;
  const Group* narrow = nullptr;  // a group that agrees with the other tensors, but perhaps not with the scales
  for (const Group* group : known) {
    if (!fits(*group)) continue;
    narrow = group;
    const std::int64_t size = folder.config().integer(folder.key(group->columns)).value_or(-1);
    if (group->one_scale != is_one(scales) || (size < 1 ? groups != 1 : ceil_div(cols, size) != groups)) continue;
    if (found && !(*found == *group))
      folder.unsupported("config_groups", "has two groups that ", packed.name, " can be of, and they differ");
    found = group;
  }
  if (found) return *found;
  if (!narrow) folder.fail_tensor(packed, "has a width that its group in config.json does not give to rows of ", cols, " codes");
  folder.group_size(narrow->columns, scales, cols, groups);  // throws if the number of columns in a group does not fit
  folder.fail_tensor(scales, is_one(scales) ? "is one number" : "is more than one number",
                     ", and the strategy in config.json says otherwise");
}

// Returns whether a code may begin in one word and end in the next. This follows from the number of words in a row of `cols` codes. Returns
// nothing if neither way of packing gives this number of words.
std::optional<bool> crosses_words(std::int64_t words, std::int64_t cols, std::int64_t bits) {
  if (words == ceil_div(cols * bits, 32)) return true;
  if (words == ceil_div(cols, 32 / bits)) return false;
  return std::nullopt;
}

// Returns the number of columns of the matrix, which is the second number in weight_shape. Throws if the first number is not `rows`.
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

// Returns the number of groups in a row. `scales` is [rows, groups], [rows], or one number for the whole matrix.
std::int64_t groups_in(const PackedFolder& folder, const TensorInfo& scales, std::int64_t rows) {
  if (is_one(scales) || scales.shape == std::vector<std::int64_t>{rows}) return 1;
  folder.need_shape(scales, {rows, -1});
  return scales.shape[1];
}

// Reads the scales of rows [first, first + count).
void read_scales(std::span<const File> files, const TensorInfo& scales, std::int64_t groups, std::int64_t first, std::int64_t count,
                 std::vector<float>& out) {
  if (is_one(scales)) {
    float all = 0;
    read_numbers(files, scales, 0, 1, &all);
    std::ranges::fill(out, all);
  } else {
    read_numbers(files, scales, first * groups, count * groups, out.data());
  }
}

// Reads the packed zeros of rows [first, first + count). The zeros of a group are a column of the tensor.
void read_packed_zeros(std::span<const File> files, const TensorInfo& zeros, std::int64_t first, std::int64_t count, int bits, bool crosses,
                       std::vector<float>& out) {
  const std::int64_t groups = zeros.shape[1], each = 32 / bits;
  const auto word_of = [&](std::int64_t row) { return crosses ? row * bits / 32 : row / each; };
  const std::int64_t begin = word_of(first), end = std::min(zeros.shape[0], word_of(first + count - 1) + 2);
  std::vector<std::uint32_t> words(static_cast<std::size_t>((end - begin) * groups));
  read_bytes(files, zeros, static_cast<std::uint64_t>(begin * groups) * 4, words.size() * 4, words.data());
  for (std::int64_t row = 0; row < count; ++row) {
    const int shift = static_cast<int>(crosses ? (first + row) * bits % 32 : (first + row) % each * bits);
    const std::uint32_t* low = words.data() + (word_of(first + row) - begin) * groups;
    const std::uint32_t* high = shift + bits > 32 ? low + groups : low;
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::uint64_t both = low[g] | static_cast<std::uint64_t>(high[g]) << 32;
      out[static_cast<std::size_t>(row * groups + g)] = static_cast<float>(both >> shift & ((1u << bits) - 1));
    }
  }
}

void add_packed(PackedFolder& folder, const std::string& module, const Modules& modules) {
  const TensorInfo &words = folder.need(module, "weight_packed", {"I32"}), &shape = folder.need(module, "weight_shape", {"I64", "I32"}),
                   &scales = folder.need(module, "weight_scale", {"F16", "BF16", "F32"});
  const TensorInfo *zeros = folder.find(module, "weight_zero_point"), *index = folder.find(module, "weight_g_idx");
  folder.need_shape(words, {-1, -1});
  const std::int64_t rows = words.shape[0], cols = columns_of(folder, shape, rows), groups = groups_in(folder, scales, rows);
  const Group& group = group_for(folder, groups_naming(folder, modules, module, words, Kind::integers), words, scales, cols, groups,
                                 [&](const Group& each) { return crosses_words(words.shape[1], cols, each.bits).has_value(); });
  const auto bits = static_cast<int>(group.bits);
  const bool crosses = *crosses_words(words.shape[1], cols, bits);
  if (group.symmetric && zeros) folder.fail_tensor(*zeros, "is there, and config.json says that the weights are symmetric");
  if (!group.symmetric) {
    zeros = &folder.need(module, "weight_zero_point", {"I32"});
    folder.need_shape(*zeros, {crosses ? ceil_div(rows * bits, 32) : ceil_div(rows, 32 / bits), groups});
  }
  if (group.ordered || index) index = &folder.need(module, "weight_g_idx", {"I32"});

  Codes codes{
      .module = module, .library = "compressed-tensors", .rows = rows, .cols = cols, .groups = groups, .bits = bits, .scales = scales};
  codes.group = folder.group_size(group.columns, scales, cols, groups);
  codes.offsets = zeros ? Offsets::zeros : Offsets::middle;
  if (index) codes.group_of = folder.group_of_columns(*index, cols, groups, codes.group);
  codes.read = [words, scales, cols, groups, bits, crosses, zeros = zeros ? std::optional(*zeros) : std::nullopt](
                   std::span<const File> files, std::int64_t first, std::int64_t count) {
    CodeRows out(count, cols, groups, zeros.has_value());
    read_scales(files, scales, groups, first, count, out.scales);
    const std::int64_t across = words.shape[1];
    std::vector<std::uint32_t> read(static_cast<std::size_t>(across * count));
    read_bytes(files, words, static_cast<std::uint64_t>(first * across) * 4, read.size() * 4, read.data());
    for (std::int64_t row = 0; row < count; ++row)
      unpack_words(read.data() + row * across, cols, bits, crosses, out.codes.data() + row * cols);
    if (zeros) read_packed_zeros(files, *zeros, first, count, bits, crosses, out.offsets);
    return out;
  };
  folder.add(std::move(codes), {&words, &shape, &scales, zeros, index});
}

void add_bytes(PackedFolder& folder, const std::string& module, const TensorInfo& weight, const Modules& modules) {
  const TensorInfo& scales = folder.need(module, "weight_scale", {"F16", "BF16", "F32"});
  folder.need_shape(weight, {-1, -1});
  const std::int64_t rows = weight.shape[0], cols = weight.shape[1], groups = groups_in(folder, scales, rows);
  const Group& group = group_for(folder, groups_naming(folder, modules, module, weight, Kind::integers), weight, scales, cols, groups,
                                 [](const Group&) { return true; });
  const TensorInfo* zeros = folder.find(module, "weight_zero_point");
  if (group.symmetric && zeros) folder.fail_tensor(*zeros, "is there, and config.json says that the weights are symmetric");
  if (!group.symmetric) {
    zeros = &folder.need(module, "weight_zero_point", {"I8"});
    if (is_one(*zeros) != is_one(scales) || groups_in(folder, *zeros, rows) != groups) folder.need_shape(*zeros, scales.shape);
  }

  Codes codes{.module = module, .library = "compressed-tensors", .rows = rows, .cols = cols, .groups = groups, .bits = 8, .scales = scales};
  codes.group = folder.group_size(group.columns, scales, cols, groups);
  codes.offsets = zeros ? Offsets::zeros : Offsets::middle;
  codes.read = [weight, scales, cols, groups, zeros = zeros ? std::optional(*zeros) : std::nullopt](
                   std::span<const File> files, std::int64_t first, std::int64_t count) {
    CodeRows out(count, cols, groups, zeros.has_value());
    read_scales(files, scales, groups, first, count, out.scales);
    read_bytes(files, weight, static_cast<std::uint64_t>(first * cols), out.codes.size(), out.codes.data());
    for (std::uint8_t& code : out.codes) code ^= 0x80;  // signed codes from -128 to 127 become codes from 0 to 255
    if (!zeros) return out;
    std::vector<std::uint8_t> zero(out.offsets.size());
    const bool one = is_one(*zeros);
    read_bytes(files, *zeros, one ? 0 : static_cast<std::uint64_t>(first * groups), one ? 1 : zero.size(), zero.data());
    if (one) std::ranges::fill(zero, zero[0]);
    std::ranges::transform(zero, out.offsets.begin(), [](std::uint8_t each) { return static_cast<float>(each ^ 0x80); });
    return out;
  };
  folder.add(std::move(codes), {&weight, &scales, zeros});
}

// Returns the group of config.json that a module of floats belongs to. Throws if groups with different settings name the module.
const Group& group_of_floats(const PackedFolder& folder, const Modules& modules, const std::string& module, const TensorInfo& packed,
                             Kind kind) {
  const std::vector<const Group*> groups = groups_naming(folder, modules, module, packed, kind);
  for (const Group* group : groups) {
    if (!(*group == *groups[0])) folder.unsupported("config_groups", "has two groups that ", packed.name, " can be of, and they differ");
  }
  return *groups[0];
}

void add_floats(PackedFolder& folder, const std::string& module, const TensorInfo& weight, const Modules& modules) {
  const TensorInfo& scales = folder.need(module, "weight_scale", {"F16", "BF16", "F32"});
  const Group& group = group_of_floats(folder, modules, module, weight, Kind::fp8);
  add_fp8_matrix(folder, {.module = module,
                          .library = "compressed-tensors",
                          .weight = &weight,
                          .scales = &scales,
                          .block_rows = group.block[0],
                          .block_cols = group.block[1]});
}

// Returns whether a module without a tensor "weight" has tensors that occur only with floats of 4 bits.
bool has_fp4(const PackedFolder& folder, const std::string& module) {
  const TensorInfo *packed = folder.find(module, "weight_packed"), *scales = folder.find(module, "weight_scale");
  return folder.find(module, "weight_global_scale") || (packed && packed->format_name == "U8") || (scales && scales->format_name == "U8");
}

void add_fp4(PackedFolder& folder, const std::string& module, const Modules& modules) {
  const TensorInfo& codes = folder.need(module, "weight_packed", {"U8"});
  const Group& group = group_of_floats(folder, modules, module, codes, Kind::fp4);
  if (!group.symmetric)
    folder.unsupported("config_groups", "says that ", codes.name, " has zero points, which floats of 4 bits are read without");
  if (const TensorInfo* zeros = folder.find(module, "weight_zero_point"))
    folder.fail_tensor(*zeros, "is there, and config.json says that the weights are symmetric");
  Fp4 fp4{.module = module, .library = "compressed-tensors", .codes = &codes, .divides = true};
  if (group.block[1] == 16) {
    fp4.scales = &folder.need(module, "weight_scale", {"F8_E4M3"});
    fp4.factor = &folder.need(module, "weight_global_scale", {"F32"});
  } else if (group.block[1] == 32) {
    fp4.scales = &folder.need(module, "weight_scale", {"U8"});
  } else {
    folder.unsupported(group.columns, "is ", group.block[1], " for floats of 4 bits; 16 (NVFP4) and 32 (MXFP4) are read");
  }
  add_fp4_matrix(folder, fp4);
}

}  // namespace

void add_compressed_tensors(PackedFolder& folder) {
  const Metadata& config = folder.config();
  if (const auto sparse = config.string(folder.key("sparsity_config.format")); sparse && *sparse != "dense")
    folder.unsupported("sparsity_config.format", "is ", quote(*sparse), "; sparse weights are not read");
  if (folder.has_object("transform_config.config_groups")) folder.unsupported("transform_config", "rotates the weights, which is not read");
  const std::string format = config.string(folder.key("format")).value_or("pack-quantized");
  if (std::ranges::find(kFormats, format) == std::end(kFormats))
    folder.unsupported("format", "is ", quote(format),
                       "; pack-quantized, int-quantized, float-quantized, nvfp4-pack-quantized and "
                       "mxfp4-pack-quantized are read");
  const Modules modules{.groups = groups_of(folder), .ignore = ModuleList(folder.list("ignore"))};
  std::set<std::string> packed_modules =
      folder.modules({"weight_packed", "weight_shape", "weight_scale", "weight_global_scale", "weight_zero_point", "weight_g_idx"}, "I8");
  packed_modules.merge(folder.modules({}, "F8_E4M3"));
  for (const std::string& module : packed_modules) {
    for (const char* unused : {"input_scale", "input_zero_point", "input_global_scale"}) folder.drop(folder.find(module, unused));
    const TensorInfo *weight = folder.find(module, "weight"), *packed = folder.find(module, "weight_packed");
    if (!weight && has_fp4(folder, module)) {
      add_fp4(folder, module, modules);
    } else if (!weight && (packed || folder.find(module, "weight_shape"))) {
      add_packed(folder, module, modules);
    } else if (weight && weight->format_name == "F8_E4M3") {
      add_floats(folder, module, *weight, modules);
    } else if (!weight || weight->format_name == "I8") {
      add_bytes(folder, module, folder.need(module, "weight", {"I8"}), modules);
    } else {
      folder.unsupported("format", "has ", weight->name, " in ", weight->format_name,
                         " with scales; I8, F8_E4M3 and packed integers are read");
    }
  }
}

}  // namespace pumice::files::schemes
