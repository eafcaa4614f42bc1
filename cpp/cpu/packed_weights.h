// Weights in the CPU's layout, groups of 16 rows (kernels.h). They are packed once, when a model is loaded.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/checked.h"
#include "core/program_check.h"
#include "cpu/buffer.h"
#include "cpu/kernels.h"
#include "cpu/norms_before.h"
#include "cpu/team.h"

namespace pumice::cpu {

// How a matrix is stored. `format`: in groups, in the matrix's own format. `row_major`: as float32 rows like those of the file, for sgemm.
// `fixed` and `bytes`: in groups, with float weights rounded to fixed point or to 8-bit codes (kernels.h), from which the original rows
// cannot be recovered.
enum class Packing : std::uint8_t { format, row_major, fixed, bytes };

// A norm that is folded into the matrices that multiply its output x. With x = weight * y + bias, W x = (W weight) y + W bias. So products
// multiply W weight by y = x * scale + shift. `weight` also contains factors that make the columns of W more even (evened_columns() in
// packed_weights.cpp), and y contains their inverses.
struct Folded {
  std::vector<float> weight, bias;
  std::vector<float> scale, shift;
};

struct PackedMatrix {
  std::string name;
  Format format = Format::F32;
  std::int64_t rows = 0, cols = 0;  // rows: of all experts together
  std::int32_t experts = 1;
  std::int64_t group_bytes = 0;
  const FormatKernels* kernels = nullptr;
  Packing packing = Packing::format;
  Rounding rounding = Rounding::none;  // as in the source's MatrixShape
  bool has_floats = false;             // as in the source's MatrixShape
  const Folded* folded = nullptr;
  // The product of each row with the bias of the folded norm. Null if no norm is folded.
  float* product_of_bias = nullptr;
  std::uint8_t* data = nullptr;  // address in PackedWeights::arena_; null if no program uses the matrix

  std::int64_t rows_each() const { return rows / experts; }
  std::int64_t groups_each() const { return ceil_div(rows_each(), kGroupRows); }  // each expert begins a group of its own
  const std::uint8_t* group(std::int64_t g) const { return data + g * group_bytes; }
  void unpack_row(std::int64_t row, float* out) const;
};

// Returns true if the environment variable PUMICE_SGEMM is "openblas". Float32 weights then stay row-major, and OpenBLAS multiplies them.
// With "own", the default, they are packed like all other weights.
bool sgemm_by_openblas();
Packing packing_of(const MatrixShape& matrix);

// Returns the bytes of a matrix after packing, a multiple of 64. Throws unsupported_model for an impossible shape, which the checks of
// model files should have refused before.
std::uint64_t packed_bytes(const MatrixShape& matrix);

class PackedWeights final : public DeviceWeights {
 public:
  // Packs with all threads of the team, in short jobs, so that other callers can run their jobs in between.
  PackedWeights(const Weights& weights, std::span<const Program* const> programs, Team& team, const Progress& progress,
                const Cancel& cancel);
  std::uint64_t bytes() const override { return bytes_; }

  const std::vector<PackedMatrix>& matrices() const { return matrices_; }
  const std::vector<Vector>& vectors() const { return vectors_; }
  const PackedMatrix& matrix(MatrixId id) const { return matrices_[static_cast<std::size_t>(id)]; }
  const float* vector(VectorId id) const { return id == VectorId::none ? nullptr : vectors_[static_cast<std::size_t>(id)].values.data(); }

 private:
  void take_vectors(const std::vector<Vector>& vectors);
  void lay_out(const Weights& weights, const std::vector<bool>& used);
  void fold_norms(const Weights& weights, const std::vector<NormBefore>& norms);
  void pack(const std::vector<Matrix>& sources, Team& team, const Progress& progress, const Cancel& cancel);

  // Holds all matrices one after another, in the model's order. So the matrices of a layer are neighbours, and even small matrices lie in
  // huge pages. (A separate buffer below 2 MiB would get pages of 4 KiB, from which a core reads a third more slowly on Zen 4.)
  Buffer arena_;
  std::vector<PackedMatrix> matrices_;
  std::vector<std::unique_ptr<const Folded>> folded_;
  std::vector<Vector> vectors_;
  std::uint64_t bytes_ = 0;
};

WeightShapes shapes_of(const PackedWeights& weights);
std::vector<const Folded*> folded_of(const PackedWeights& weights);  // by MatrixId; null if nothing is folded into the matrix

}  // namespace pumice::cpu
