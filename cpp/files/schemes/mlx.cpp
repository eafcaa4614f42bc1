// MLX, as mlx-lm writes it. In config.json, "quantization" has group_size, bits and mode for all modules, and may have other values of
// these under the name of a single module. A matrix of R rows and C columns, in groups of columns, consists of
//   weight U32 [R, C bits / 32]: the codes of each row as a stream of bits
//   scales, biases F16, BF16 or F32 [R, C / group_size]: a weight is scale * code + bias
// Source: mlx/ops.cpp (quantize) of MLX 0.32, mlx_lm/utils.py of mlx-lm 0.28.
#include <algorithm>
#include <utility>

#include "files/schemes/folder.h"

namespace pumice::files::schemes {

void add_mlx(PackedFolder& folder) {
  const Metadata& config = folder.config();
  for (const std::string& module : folder.modules({"scales", "biases"}, "U32")) {
    const auto setting = [&](std::string_view name) {
      const std::string own = str(module, ".", name);
      return config.has(folder.key(own)) ? own : std::string(name);
    };
    if (const std::string name = setting("mode"), mode = config.string(folder.key(name)).value_or("affine"); mode != "affine")
      folder.unsupported(name, "is ", quote(mode), "; affine is read");
    const TensorInfo &words = folder.need(module, "weight", {"U32"}), &scales = folder.need(module, "scales", {"F16", "BF16", "F32"}),
                     &biases = folder.need(module, "biases", {"F16", "BF16", "F32"});
    if (words.shape.size() == 3 && scales.shape.size() == 3)
      folder.unsupported(module, "has all experts in ", words.name, ", which is not read if it is packed; one tensor for each expert is");
    folder.need_shape(words, {-1, -1});
    const std::int64_t rows = words.shape[0], across = words.shape[1], bits = config.integer(folder.key(setting("bits"))).value_or(0);
    if (bits < 2 || bits > 8) folder.unsupported(setting("bits"), "is ", bits, "; 2 to 8 are read");
    if (across * 32 % bits != 0)
      folder.fail_tensor(words, "has rows of ", across, " words, which do not divide into codes of ", bits, " bits");
    const std::int64_t cols = across * 32 / bits;
    folder.need_shape(scales, {rows, -1});
    folder.need_shape(biases, scales.shape);
    const std::int64_t groups = scales.shape[1];

    Codes codes{.module = module, .library = "MLX", .rows = rows, .cols = cols, .groups = groups, .scales = scales, .biases = biases};
    codes.bits = static_cast<int>(bits);
    codes.group = folder.group_size(setting("group_size"), scales, cols, groups);
    codes.offsets = Offsets::biases;
    codes.read = [words, scales, biases, cols, groups, bits = static_cast<int>(bits)](std::span<const File> files, std::int64_t first,
                                                                                      std::int64_t count) {
      CodeRows out(count, cols, groups, true);
      read_numbers(files, scales, first * groups, count * groups, out.scales.data());
      read_numbers(files, biases, first * groups, count * groups, out.offsets.data());
      const std::int64_t across = words.shape[1];
      std::vector<std::uint32_t> read(static_cast<std::size_t>(across * count));
      read_bytes(files, words, static_cast<std::uint64_t>(first * across) * 4, read.size() * 4, read.data());
      for (std::int64_t row = 0; row < count; ++row)
        unpack_words(read.data() + row * across, cols, bits, true, out.codes.data() + row * cols);
      return out;
    };
    folder.add(std::move(codes), {&words, &scales, &biases});
  }
}

}  // namespace pumice::files::schemes
