// GPTQ, as AutoGPTQ and GPTQModel write it. A matrix of R rows and C columns, in groups of columns, consists of
//   qweight I32 [C bits / 32, R]: the codes of each row, as a stream of bits down a column of words
//   qzeros  I32 [groups, R bits / 32]: the zeros of each group, as a stream of bits along a row of words. With checkpoint_format "gptq",
//           one is subtracted from a zero before it is stored; with "gptq_v2", the zero itself is stored
//   scales  F16 [groups, R]
//   g_idx   I32 [C]: the group of each column; if missing, neighbouring columns are a group
// Source: auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py of AutoGPTQ 0.7.1, gptqmodel/utils/model.py of GPTQModel 7.7.
#include <algorithm>
#include <utility>

#include "core/checked.h"
#include "files/schemes/folder.h"

namespace pumice::files::schemes {
namespace {

struct Settings {
  std::int64_t bits;
  bool symmetric;  // all zeros are in the middle of the codes: 2^(bits - 1)
  bool minus_one;  // the file has zero - 1 in place of each zero
  bool ordered;    // g_idx must be there (act-order)
  bool by_module;  // some modules may have other settings than these
};

Settings settings_of(const PackedFolder& folder) {
  const Metadata& config = folder.config();
  const char* const name = config.has(folder.key("checkpoint_format")) ? "checkpoint_format" : "format";
  const std::string format = config.string(folder.key(name)).value_or("gptq");
  if (format != "gptq" && format != "gptq_v2") folder.unsupported(name, "is ", quote(format), "; gptq and gptq_v2 are read");
  return {.bits = config.integer(folder.key("bits")).value_or(0),
          .symmetric = config.boolean(folder.key("sym")).value_or(false),
          .minus_one = format == "gptq",
          .ordered = config.boolean(folder.key("desc_act")).value_or(false),
          .by_module = folder.has_object("dynamic") || folder.has_object("extra_config")};  // keys of GPTQModel and of AutoRound
}

// Returns the number of columns in a group. This is group_size in config.json, unless config.json has settings for single modules and the
// shapes do not agree with group_size. The number then follows from the shapes.
std::int64_t group_of_module(const PackedFolder& folder, const Settings& settings, const TensorInfo& scales, std::int64_t cols,
                             std::int64_t groups) {
  const std::int64_t usual = folder.config().integer(folder.key("group_size")).value_or(-1);
  const bool fits = usual < 1 ? groups == 1 : ceil_div(cols, usual) == groups;
  if (settings.by_module && !fits && cols % groups == 0) return cols / groups;
  return folder.group_size("group_size", scales, cols, groups);
}

// Reads the zeros of a row, one for each group, as they are stored. `words` is the column of qzeros in which the row's bits begin. It has
// one word for each group. The next column must follow it in memory, because the row's bits may end there.
void read_zeros(const std::uint32_t* words, std::int64_t row, int bits, std::vector<std::uint8_t>& zeros) {
  const int shift = static_cast<int>(row * bits % 32);
  const std::uint32_t* next = shift + bits > 32 ? words + zeros.size() : words;
  for (std::size_t g = 0; g < zeros.size(); ++g) {
    const std::uint64_t both = words[g] | static_cast<std::uint64_t>(next[g]) << 32;
    zeros[g] = static_cast<std::uint8_t>(both >> shift & ((1u << bits) - 1));
  }
}

// Throws unless each zero of a row is the middle of the codes, or the middle minus one. Both are accepted, because some writers of
// checkpoint_format "gptq" do not subtract one.
void check_middle(std::span<const File> files, const TensorInfo& tensor, std::int64_t row, int bits,
                  const std::vector<std::uint8_t>& zeros) {
  const int middle = 1 << (bits - 1);
  for (const std::uint8_t zero : zeros) {
    if (zero == middle || zero == middle - 1) continue;
    fail_at(ErrorKind::model_format, files[tensor.file].path(), "tensor " + tensor.name, std::nullopt, "row ", row, " has the zero ",
            int{zero}, "; with sym in config.json it is ", middle, " or ", middle - 1);
  }
}

}  // namespace

void add_gptq(PackedFolder& folder) {
  const Settings settings = settings_of(folder);
  for (const std::string& module : folder.modules({"qweight", "qzeros", "g_idx"})) {
    const TensorInfo &words = folder.need(module, "qweight", {"I32"}), &zeros = folder.need(module, "qzeros", {"I32"}),
                     &scales = folder.need(module, "scales", {"F16", "BF16", "F32"});
    const TensorInfo* index = folder.find(module, "g_idx");
    if (index || settings.ordered) index = &folder.need(module, "g_idx", {"I32"});
    folder.need_shape(words, {-1, -1});
    const std::int64_t rows = words.shape[1];
    folder.need_shape(scales, {-1, rows});
    const std::int64_t groups = scales.shape[0];
    folder.need_shape(zeros, {groups, -1});
    // The number of bits in a code follows from the shape of qzeros, because modules may have different numbers of bits.
    const std::int64_t bits = zeros.shape[1] <= rows ? zeros.shape[1] * 32 / rows : 0;
    if ((bits != 2 && bits != 3 && bits != 4 && bits != 8) || zeros.shape[1] * 32 != rows * bits)
      folder.fail_tensor(zeros, "has ", zeros.shape[1], " words for ", rows, " zeros; codes of 2, 3, 4 and 8 bits are read");
    if (!settings.by_module && settings.bits != bits)
      folder.fail_tensor(zeros, "has zeros of ", bits, " bits, and config.json says bits ", settings.bits);
    if (words.shape[0] * 32 % bits != 0)
      folder.fail_tensor(words, "has ", words.shape[0], " words a row, which do not divide into codes of ", bits, " bits");
    const std::int64_t cols = words.shape[0] * 32 / bits;

    Codes codes{.module = module, .library = "GPTQ", .rows = rows, .cols = cols, .groups = groups, .scales = scales};
    codes.bits = static_cast<int>(bits);
    codes.offsets = settings.symmetric ? Offsets::middle : Offsets::zeros;
    codes.group = group_of_module(folder, settings, scales, cols, groups);
    if (index) codes.group_of = folder.group_of_columns(*index, cols, groups, codes.group);
    codes.read = [columns = folder.columns({{words}, {zeros, static_cast<int>(bits)}, {scales}}, rows), zeros, scale = *scales.format,
                  bits = static_cast<int>(bits), cols, groups,
                  settings](std::span<const File> files, std::int64_t first, std::int64_t count) {
      CodeRows out(count, cols, groups, !settings.symmetric);
      std::vector<std::uint8_t> zero(static_cast<std::size_t>(groups));
      for (std::int64_t row = first; row < first + count;) {
        const Columns::Slab slab = columns->with(files, row);
        const std::int64_t end = std::min(first + count, slab.end());
        const Columns::Turned code_words = slab.turned(0, row, end), zero_words = slab.turned(1, row, end),
                              scale_rows = slab.turned(2, row, end);
        for (; row < end; ++row) {
          const auto at = static_cast<std::size_t>(row - first);
          unpack_words(code_words.column<std::uint32_t>(row), cols, bits, true, out.codes.data() + at * static_cast<std::size_t>(cols));
          unpack(scale, scale_rows.column<std::uint8_t>(row), groups, out.scales.data() + at * zero.size());
          read_zeros(zero_words.column<std::uint32_t>(row), row, bits, zero);
          if (settings.symmetric) {
            check_middle(files, zeros, row, bits, zero);
          } else {
            const int more = settings.minus_one ? 1 : 0, mask = (1 << bits) - 1;
            for (std::size_t g = 0; g < zero.size(); ++g) out.offsets[at * zero.size() + g] = static_cast<float>((zero[g] + more) & mask);
          }
        }
      }
      return out;
    };
    folder.add(std::move(codes), {&words, &zeros, &scales, index});
  }
}

}  // namespace pumice::files::schemes
