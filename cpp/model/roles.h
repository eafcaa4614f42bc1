// Defines the roles of tensors (roles.def), and what a model requires of the tensor in each role.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace pumice::model {

struct Description;

enum class Role : std::uint8_t {
#define PUMICE_ROLE(name, ...) name,
#include "model/roles.def"
#undef PUMICE_ROLE
};

inline constexpr std::string_view kRoleNames[] = {
#define PUMICE_ROLE(name, ...) #name,
#include "model/roles.def"
#undef PUMICE_ROLE
};
inline constexpr std::size_t kRoles = std::size(kRoleNames);

// Says which part of a model has the tensor of a role. roles.def explains the values.
enum class Of : std::uint8_t { model, end, layer, attention, latent_attention, recurrent, short_conv, feed_forward, mixture, draft };
constexpr Of of(Role role) {
  constexpr Of kOf[] = {
#define PUMICE_ROLE(name, of, ...) Of::of,
#include "model/roles.def"
#undef PUMICE_ROLE
  };
  return kOf[static_cast<std::size_t>(role)];
}
constexpr bool of_layer(Role role) { return of(role) != Of::model && of(role) != Of::end; }

enum class Need : std::uint8_t {
  never,
  maybe,      // the tensor is used if the file has it
  always,     // the file must have the tensor
  elsewhere,  // other code in model/ loads the tensor and reports an error if it is missing
};

// Says how the matrix or vector of a role is used.
enum class Use : std::uint16_t {
  none = 0,
  table = 1,  // rows are looked up by index; the matrix keeps the file's format
  // The matrix of a small product, for example of a router or a classifier. The matrix keeps the file's format, because rounding errors of
  // such a product reach the model's output in full.
  exact = 2,
  product = 4,  // a matrix product; the matrix may be quantized and rounded
  // In an encoder, the activations that the matrix multiplies may be rounded to 8-bit codes (docs/numerics.md). The matrices that compute
  // values of attention do not have this flag, because no softmax damps the error of values. Nor do matrices behind a gate. A gate makes
  // the largest activations of a block so large that 8-bit codes would keep little of the other activations.
  bytes = 8,
  // An adapter may stay separate from the matrix. Another operation then adds the adapter's product to the matrix's product, so the
  // operation with the matrix must not apply an activation.
  apart = 16,
  // The matrix is the last of its branch. The number that multiplies the branch's output also multiplies the bias of this matrix.
  ends_branch = 32,
  // Flags of a vector.
  as_is = 64,  // the values are used as the file has them, even if the file stores w - 1 for the weight w of norms
  // GGUF files may store the vector as a matrix that has the same values in the same order (llama.cpp's converter for Mamba-2).
  folded = 128,
  // The vector is added to a row. It is stored as the bias of a Norm with zeros as weights, so that the Norm adds only the vector.
  addend = 256,
};
constexpr Use operator|(Use a, Use b) { return static_cast<Use>(static_cast<unsigned>(a) | static_cast<unsigned>(b)); }
constexpr bool has(Use all, Use one) { return (static_cast<unsigned>(all) & static_cast<unsigned>(one)) != 0; }

// What a model requires of the tensor in one role, in one layer.
struct Asked {
  Need need = Need::never;
  // The shape of a matrix; if `rows` is 0, the number of rows may be any. For a vector, `rows` is the vector's length and `cols` is 0.
  std::int64_t rows = 0, cols = 0;
  std::int32_t experts = 0;  // number of matrices in the tensor, one per expert or head; 0: the tensor is a single matrix
  bool bias = false;         // the file must have a bias in this role
  Use use = Use::none;

  bool is_vector() const { return cols == 0; }
};

// Returns what the model requires of the tensor in `role`. The answer depends only on d.config and on roles that precede `role` in
// roles.def, so `d` must have these already. `layer` is ignored if the role does not belong to layers (of_layer()).
Asked asked(const Description& d, Role role, std::size_t layer);

}  // namespace pumice::model
