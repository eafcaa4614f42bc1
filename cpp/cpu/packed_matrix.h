// A matrix in the CPU's layout (groups of 16 rows, kernels.h), and the code that packs the rows of a file into this layout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/checked.h"
#include "core/program_check.h"
#include "core/weights.h"
#include "cpu/kernels.h"

namespace pumice::cpu {

// The form in which a matrix is stored:
// - `format`: in groups, in the matrix's own format.
// - `row_major`: as float32 rows in the file's order, for sgemm.
// - `fixed` and `bytes`: in groups, with float weights rounded to fixed point or to 8-bit codes (kernels.h). The original rows cannot be
//   recovered from these.
enum class Packing : std::uint8_t { format, row_major, fixed, bytes };

// A norm that is folded into the matrices W that multiply its output x. With x = weight * y + bias, the product W x is (W weight) y + W
// bias. The matrices are therefore packed as W weight and multiply y, which is computed as x * scale + shift. `weight` also contains
// factors that make the columns of W more even (evened_columns() in packed_weights.cpp), and y contains the inverses of these factors.
struct Folded {
  std::vector<float> weight, bias;
  std::vector<float> scale, shift;
};

struct PackedMatrix {
  std::string name;
  Format format = Format::F32;
  std::int64_t rows = 0, cols = 0;  // `rows` counts the rows of all experts together
  std::int32_t experts = 1;
  std::int64_t group_bytes = 0;
  const FormatKernels* kernels = nullptr;
  Packing packing = Packing::format;
  Rounding rounding = Rounding::none;  // copied from the MatrixShape of the packed matrix
  bool has_floats = false;             // copied from the MatrixShape of the packed matrix
  const Folded* folded = nullptr;
  // The product of each row with the bias of the folded norm; null if no norm is folded.
  float* product_of_bias = nullptr;
  // Address in PackedWeights::arena_; null if no program uses the matrix or if the matrix is in an ExpertCache.
  std::uint8_t* data = nullptr;
  std::uint8_t* sketch = nullptr;  // address in PackedWeights::arena_ of the matrix's sketch (sketch.h); null if there is none
  // The next three members are used only for matrices in an ExpertCache. cached_layer is the index of the matrix's ExpertLayer. cached[e]
  // is the address of the layer's expert e, or null if this expert is not in memory. This matrix begins cached_at bytes behind that
  // address.
  std::int32_t cached_layer = -1;
  const std::uint8_t* const* cached = nullptr;
  std::int64_t cached_at = 0;

  bool present() const { return data != nullptr || cached != nullptr; }
  std::int64_t rows_each() const { return rows / experts; }
  std::int64_t groups_each() const { return ceil_div(rows_each(), kGroupRows); }  // each expert begins a new group
  std::int64_t expert_bytes() const;                                              // bytes of one expert's matrix
  // Returns the address of one expert's matrix. If the matrix is in an ExpertCache, the expert must be in memory (ExpertPass).
  const std::uint8_t* expert(std::int64_t e) const { return cached ? cached[e] + cached_at : data + e * expert_bytes(); }
  // Writes one row of the matrix to `out` as floats. Must not be called for matrices in an ExpertCache.
  void unpack_row(std::int64_t row, float* out) const;
};

// Returns true if the environment variable PUMICE_SGEMM is the name of the BLAS library in lower case ("openblas", or "accelerate" on
// macOS). The BLAS library then multiplies float32 weights, which stay row-major. With "own", the default, float32 weights are packed like
// all other weights.
bool sgemm_by_blas();
Packing packing_of(const MatrixShape& matrix);

// Returns the number of bytes of one group of a matrix. Throws the errors of packed_bytes().
std::int64_t group_bytes_of(const MatrixShape& matrix);
// Returns the number of bytes of a matrix after packing, a multiple of 64. Throws unsupported_model for an impossible shape, although the
// checks of model files should already have refused such a shape.
std::uint64_t packed_bytes(const MatrixShape& matrix);

// Some groups of one expert's matrix, which one thread reads and packs at a time.
struct Panel {
  std::size_t matrix;
  std::int32_t expert;
  std::int64_t first_group, groups, bytes;  // `bytes` is the size of the source rows
};
// Appends the panels of one expert's matrix to `panels`.
void add_panels(std::vector<Panel>& panels, std::size_t matrix, const PackedMatrix& packed, std::int32_t expert);

// The buffers that one thread uses to pack panels.
struct PanelBuffers {
  std::vector<std::uint8_t> rows;
  std::vector<float> floats;  // rows of one group, as floats
};

class PanelPacker {
 public:
  PanelPacker(const Matrix& source, const PackedMatrix& packed, PanelBuffers& buffers);

  // Packs a panel of an expert's matrix. The packed matrix begins at address `expert`. Returns the number of the panel's source bytes.
  // Throws numeric for NaN and infinities. The last group of a panel may have fewer than 16 rows.
  std::uint64_t pack(const Panel& panel, std::uint8_t* expert);
  // Reads a panel and throws the errors of pack(), but packs nothing.
  std::uint64_t check(const Panel& panel);

 private:
  struct Rows {
    std::int64_t in_expert, first, count;  // index of the first row within the expert and within the matrix, and number of rows
  };
  Rows rows_of(const Panel& panel) const;
  const std::uint8_t* read(std::int64_t first, std::int64_t rows, std::uint8_t* row_major);
  void pack_rounded(const std::uint8_t* from, std::int64_t row, std::int64_t count, std::uint8_t* group);
  void read_floats(std::int64_t row, std::int64_t count, float* out) const;

  const Matrix& source_;
  const PackedMatrix& packed_;
  PanelBuffers& buffers_;
  const std::int64_t stride_;  // number of bytes from one row of the source to the next
  const bool from_floats_;     // true if pack() rounds the floats of Matrix::read_floats
};

}  // namespace pumice::cpu
