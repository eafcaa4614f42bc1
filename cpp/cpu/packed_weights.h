// Weights in the CPU's layout: groups of 16 rows (kernels.h), packed once.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/program_check.h"
#include "cpu/buffer.h"
#include "cpu/kernels.h"
#include "cpu/norms_before.h"
#include "cpu/team.h"

namespace pumice::cpu {

// How a matrix is stored. format: groups in its own format. row_major: float32 rows as in the file, for sgemm. fixed and bytes: float
// weights rounded to fixed point or to 8-bit codes (kernels.h); their original rows cannot be recovered.
enum class Packing : std::uint8_t { format, row_major, fixed, bytes };

// A norm's weight and bias, folded into the matrices that multiply the norm's output. For x = weight * y + bias, W x = (W weight) y + W
// bias, and y = x * scale + shift. The columns of y, and `weight` with them, are also evened out (packed_weights.cpp).
struct Folded {
  std::vector<float> weight, bias;
  std::vector<float> scale, shift;
};

struct PackedMatrix {
  std::string name;
  Format format = Format::F32;
  std::int64_t rows = 0, cols = 0;
  std::int64_t group_bytes = 0;
  const FormatKernels* kernels = nullptr;
  Packing packing = Packing::format;
  Rounding rounding = Rounding::none;  // as the matrix said
  bool has_floats = false;             // likewise
  const Folded* folded = nullptr;
  // Per row, the product with the bias of the folded norm. Null: no norm is folded.
  float* product_of_bias = nullptr;
  std::uint8_t* data = nullptr;  // address in the weights' arena; null: not among the used matrices

  const std::uint8_t* group(std::int64_t g) const { return data + g * group_bytes; }
  void unpack_row(std::int64_t row, float* out) const;
};

// PUMICE_SGEMM=openblas: float32 weights stay row-major and are multiplied by OpenBLAS; "own" (default) packs them like the rest.
bool sgemm_by_openblas();
Packing packing_of(const MatrixShape& matrix);

// Returns the bytes of a matrix after packing, a multiple of 64. Throws unsupported_model for a shape that the checks of files should have
// refused.
std::uint64_t packed_bytes(const MatrixShape& matrix);

class PackedWeights final : public DeviceWeights {
 public:
  // Packs on the whole team, in short jobs, so that other callers can run theirs in between.
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

  // All matrices one after another in the model's order. The matrices of a layer are neighbours, and even small ones lie in huge pages. (A
  // separate buffer below 2 MiB would get pages of 4 KiB, from which a core reads a third more slowly on Zen 4.)
  Buffer arena_;
  std::vector<PackedMatrix> matrices_;
  std::vector<std::unique_ptr<const Folded>> folded_;
  std::vector<Vector> vectors_;
  std::uint64_t bytes_ = 0;
};

WeightShapes shapes_of(const PackedWeights& weights);
std::vector<const Folded*> folded_of(const PackedWeights& weights);  // by MatrixId; null: nothing is folded

}  // namespace pumice::cpu
