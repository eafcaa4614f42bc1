#include "model/row_sources.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/error.h"

namespace pumice::model {

ReadRows read_rows(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& tensor, Part part, std::int64_t cols) {
  return [file = std::move(file), &tensor, part, bytes = row_bytes(*tensor.format, cols)](std::int64_t first, std::int64_t count,
                                                                                          std::uint8_t* out) {
    for (std::int64_t row = first; row < first + count;) {
      const std::int64_t run = std::min(first + count - row, part.run - row % part.run);
      file->read(tensor, static_cast<std::uint64_t>(part.of(row) * bytes), static_cast<std::uint64_t>(run * bytes), out);
      out += run * bytes;
      row += run;
    }
  };
}

static void require_single_weights(const files::ModelFile& file, const files::TensorInfo& tensor) {
  if (info(*tensor.format).block == 1) return;
  fail(ErrorKind::unsupported_model, file.path(), ": tensor ", tensor.name, " is stored transposed in ", name(*tensor.format),
       ", whose blocks cannot be turned");
}

// The tensor's rows are the matrix's columns. So from each row of the tensor, the returned function reads only the numbers that belong to
// the requested rows of the matrix.
ReadRows read_transposed(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& tensor, Part part, std::int64_t cols) {
  require_single_weights(*file, tensor);
  return [file = std::move(file), &tensor, part, cols, size = row_bytes(*tensor.format, 1)](std::int64_t first, std::int64_t count,
                                                                                            std::uint8_t* out) {
    const std::int64_t across = tensor.shape[1];
    std::vector<std::uint8_t> stretch(static_cast<std::size_t>(count * size));
    for (std::int64_t row = first; row < first + count;) {
      const std::int64_t run = std::min(first + count - row, part.run - row % part.run);
      for (std::int64_t col = 0; col < cols; ++col) {
        file->read(tensor, static_cast<std::uint64_t>((col * across + part.of(row)) * size), static_cast<std::uint64_t>(run * size),
                   stretch.data());
        for (std::int64_t r = 0; r < run; ++r)
          std::memcpy(out + ((row - first + r) * cols + col) * size, stretch.data() + r * size, static_cast<std::size_t>(size));
      }
      row += run;
    }
  };
}

ReadRows read_transposed_experts(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& tensor, Part part,
                                 std::int64_t cols, std::shared_ptr<files::Slices> slices) {
  require_single_weights(*file, tensor);
  return [file = std::move(file), &tensor, part, cols, slices = std::move(slices),
          size = static_cast<std::size_t>(row_bytes(*tensor.format, 1))](std::int64_t first, std::int64_t count, std::uint8_t* out) {
    const std::int64_t across = tensor.shape.back();
    files::Slices::Bytes slice;
    std::int64_t expert = -1;
    for (std::int64_t row = first; row < first + count; ++row) {
      const std::int64_t at = part.of(row);
      if (at / across != expert) {
        expert = at / across;
        const std::size_t bytes = static_cast<std::size_t>(cols * across) * size;
        slice = slices->of(&tensor, expert, {.size = bytes, .jobs = 1, .job = [&](std::int64_t, std::uint8_t* to) {
                                               file->read(tensor, static_cast<std::uint64_t>(expert) * bytes, bytes, to);
                                             }});
      }
      const std::uint8_t* from = slice.get() + static_cast<std::size_t>(at % across) * size;
      for (std::int64_t col = 0; col < cols; ++col, from += static_cast<std::size_t>(across) * size, out += size)
        std::memcpy(out, from, size);
    }
  };
}

ReadRows read_transposed_heads(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& tensor, Part part,
                               std::shared_ptr<files::Slices> slices) {
  const Format from = *tensor.format, to = info(from).block == 1 ? from : Format::F32;
  return [file = std::move(file), &tensor, part, slices = std::move(slices), from, to](std::int64_t first, std::int64_t count,
                                                                                       std::uint8_t* out) {
    const std::int64_t rows = tensor.shape[1], cols = part.run;  // the shape of a head's matrix
    const auto bytes = static_cast<std::size_t>(row_bytes(to, cols)), size = static_cast<std::size_t>(row_bytes(to, 1));
    // Reads the tensor's rows of one head, and writes the head's matrix.
    const auto turn = [&](std::int64_t head, std::uint8_t* matrix) {
      const std::int64_t in_file = row_bytes(from, rows);
      std::vector<std::uint8_t> read(static_cast<std::size_t>(cols * in_file));
      file->read(tensor, static_cast<std::uint64_t>(part.of(head * cols) * in_file), read.size(), read.data());
      std::vector<float> values(static_cast<std::size_t>(rows));
      std::vector<std::uint8_t> packed(static_cast<std::size_t>(rows) * size);
      for (std::int64_t col = 0; col < cols; ++col) {
        const std::uint8_t* row = read.data() + col * in_file;
        if (from != to) {
          unpack(from, row, rows, values.data());
          pack(to, values.data(), rows, packed.data());
          row = packed.data();
        }
        for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r)
          std::memcpy(matrix + r * bytes + static_cast<std::size_t>(col) * size, row + r * size, size);
      }
    };
    for (std::int64_t row = first; row < first + count;) {
      const std::int64_t head = row / rows, run = std::min(first + count - row, rows - row % rows);
      const files::Slices::Bytes matrix = slices->of(
          &tensor, head,
          {.size = static_cast<std::size_t>(rows) * bytes, .jobs = 1, .job = [&](std::int64_t, std::uint8_t* to) { turn(head, to); }});
      std::memcpy(out, matrix.get() + static_cast<std::size_t>(row % rows) * bytes, static_cast<std::size_t>(run) * bytes);
      out += static_cast<std::size_t>(run) * bytes;
      row += run;
    }
  };
}

// The returned function reads all rows of the tensors from the first to the last requested row, including rows of other roles between them.
// Without those rows there would be one read per row, and a checksum of many separate ranges of the file (files/read_sums.h).
ReadRows read_mxfp4(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& codes, const files::TensorInfo& scales,
                    Part part, std::int64_t cols) {
  constexpr std::size_t kHalf = 16;  // number of bytes of codes in a block
  return [file = std::move(file), &codes, &scales, part, blocks = static_cast<std::size_t>(cols) / (2 * kHalf)](
             std::int64_t first, std::int64_t count, std::uint8_t* out) {
    if (count < 1) return;
    const std::int64_t from = part.of(first) / part.stride * part.stride,
                       end = (part.of(first + count - 1) / part.stride + 1) * part.stride;
    const auto begin = static_cast<std::uint64_t>(from), rows = static_cast<std::uint64_t>(end - from);
    std::vector<std::uint8_t> bytes(rows * blocks * kHalf), scale(rows * blocks);
    file->read(codes, begin * blocks * kHalf, bytes.size(), bytes.data());
    file->read(scales, begin * blocks, scale.size(), scale.data());
    for (std::int64_t row = first; row < first + count; ++row) {
      const std::size_t at = static_cast<std::size_t>(part.of(row) - from) * blocks;
      for (std::size_t b = at; b < at + blocks; ++b) {
        const auto code = [&](std::size_t col) { return bytes[b * kHalf + col / 2] >> (col % 2 * 4) & 15; };
        *out++ = scale[b];
        for (std::size_t i = 0; i < kHalf; ++i) *out++ = static_cast<std::uint8_t>(code(i) | code(i + kHalf) << 4);
      }
    }
  };
}

ReadRows read_each(std::vector<ReadRows> matrices, std::int64_t rows, std::int64_t bytes) {
  return [matrices = std::move(matrices), rows, bytes](std::int64_t first, std::int64_t count, std::uint8_t* out) {
    for (std::int64_t row = first; row < first + count;) {
      const std::int64_t run = std::min(first + count - row, rows - row % rows);
      matrices[static_cast<std::size_t>(row / rows)](row % rows, run, out);
      out += run * bytes;
      row += run;
    }
  };
}

ReadRows read_floats(std::vector<float> values, std::int64_t cols) {
  return [values = std::make_shared<const std::vector<float>>(std::move(values)), cols](std::int64_t first, std::int64_t count,
                                                                                        std::uint8_t* out) {
    std::memcpy(out, values->data() + first * cols, static_cast<std::size_t>(count * cols) * sizeof(float));
  };
}

void repack(Matrix& matrix, Format to, AddRow change) {
  matrix.read = [source = std::move(matrix.read), name = matrix.name, from = matrix.format, to, cols = matrix.cols,
                 change = std::move(change)](std::int64_t first, std::int64_t count, std::uint8_t* out) {
    std::vector<std::uint8_t> packed(static_cast<std::size_t>(row_bytes(from, cols)));
    std::vector<float> weights(static_cast<std::size_t>(cols));
    for (std::int64_t row = 0; row < count; ++row) {
      source(first + row, 1, packed.data());
      unpack(from, packed.data(), cols, weights.data());
      if (change) change(first + row, weights.data());
      try {
        pack(to, weights.data(), cols, out + row * row_bytes(to, cols));
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::numeric) throw;
        fail(ErrorKind::numeric, "tensor '", name, "', row ", first + row, ": ", error.what());
      }
    }
  };
  matrix.format = to;
}

void divide_by_lengths_of_columns(Matrix& matrix, Format to, float floor) {
  struct Lengths {
    ForkLock lock;
    std::vector<float> values;
  };
  const auto lengths = std::make_shared<Lengths>();
  const auto length = [floats = floats_of(matrix), rows = matrix.rows, cols = static_cast<std::size_t>(matrix.cols),
                       floor](const Cancel& cancel) {
    std::vector<double> squares(cols);
    std::vector<float> row(cols), found(cols);
    for (std::int64_t i = 0; i < rows; ++i) {
      cancel.check();
      floats(i, 1, row.data());
      for (std::size_t col = 0; col < cols; ++col) squares[col] += static_cast<double>(row[col]) * static_cast<double>(row[col]);
    }
    for (std::size_t col = 0; col < cols; ++col) found[col] = static_cast<float>(std::sqrt(squares[col])) + floor;
    return found;
  };
  matrix.prepare = [lengths, length](const Cancel& cancel) {
    // If a fork interrupted the thread that computed the lengths, some lengths may be missing, so they are computed again. The old vector
    // is never freed, because the fork may have left it in a state that its destructor cannot handle.
    if (!lengths->lock.lock()) static_cast<void>(new std::vector<float>(std::exchange(lengths->values, {})));
    const std::unique_lock lock(lengths->lock, std::adopt_lock);
    if (lengths->values.empty()) lengths->values = length(cancel);
  };
  repack(matrix, to, [lengths, prepare = matrix.prepare](std::int64_t, float* row) {
    prepare(Cancel());
    for (std::size_t col = 0; col < lengths->values.size(); ++col) row[col] /= lengths->values[col];
  });
}

Matrix difference_of_rows(const Matrix& rows) {
  Matrix difference{.name = rows.name, .format = Format::F32, .rows = 1, .cols = rows.cols};
  difference.read = [floats = floats_of(rows), cols = static_cast<std::size_t>(rows.cols)](std::int64_t, std::int64_t count,
                                                                                           std::uint8_t* out) {
    if (count < 1) return;
    std::vector<float> both(2 * cols);
    floats(0, 2, both.data());
    for (std::size_t i = 0; i < cols; ++i) both[i] -= both[cols + i];
    std::memcpy(out, both.data(), cols * sizeof(float));
  };
  return difference;
}

std::function<void(std::int64_t, std::int64_t, float*)> floats_of(const Matrix& matrix) {
  return [read = matrix.read, from = matrix.format, cols = matrix.cols](std::int64_t first, std::int64_t count, float* out) {
    std::vector<std::uint8_t> packed(static_cast<std::size_t>(row_bytes(from, cols)));
    for (std::int64_t row = 0; row < count; ++row) {
      read(first + row, 1, packed.data());
      unpack(from, packed.data(), cols, out + row * cols);
    }
  };
}

}  // namespace pumice::model
