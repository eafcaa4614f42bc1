// The roles of tensors, and what a model requires of the tensor in each role (roles.def).
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

// The part of a model that has the tensors of a role (explained in roles.def).
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
  maybe,      // used if the file has it
  always,     // the file must have it
  elsewhere,  // read by other code in model/, which reports a missing tensor
};

// How a role's matrix is used.
enum class Use : std::uint16_t {
  none = 0,
  table = 1,    // rows are looked up by index; the matrix keeps the file's format
  exact = 2,    // a small product whose error goes undamped into the result; the matrix keeps the file's format
  product = 4,  // a product; the matrix may be quantized and rounded
  // Flags of a product.
  // In an encoder, the activations may be rounded to 8-bit codes (docs/numerics.md). Matrices of values do not have this flag, because no
  // softmax damps their error. Matrices after a gate do not have it, because the largest activations there are far above the rest of their
  // block.
  bytes = 8,
  // An adapter may stay separate from the matrix. This requires that no activation is applied before the adapter's product is added.
  apart = 16,
  ends_branch = 32,  // the matrix is the last of its branch, so its bias is multiplied by what multiplies the branch's output
  // Flags of a vector.
  as_is = 64,  // used as the file has it, even if the file stores norms as w - 1
  // GGUF files may have it as a matrix, whose values are those of the vector in the same order (llama.cpp's converter for Mamba-2).
  folded = 128,
  // The vector is added to a row as it is. It becomes the bias of a norm whose weight is all zeros, so that Norm adds the bias alone.
  addend = 256,
};
constexpr Use operator|(Use a, Use b) { return static_cast<Use>(static_cast<unsigned>(a) | static_cast<unsigned>(b)); }
constexpr bool has(Use all, Use one) { return (static_cast<unsigned>(all) & static_cast<unsigned>(one)) != 0; }

// What a model requires of the tensor in one role (in one layer).
struct Asked {
  Need need = Need::never;
  // The shape of a matrix, where rows 0 means any number of rows. For a vector, `rows` is its length and `cols` is 0.
  std::int64_t rows = 0, cols = 0;
  std::int32_t experts = 0;  // number of experts or heads of which the tensor has one matrix each; 0 if it has a single matrix
  bool bias = false;         // the file must have its bias
  Use use = Use::none;

  bool is_vector() const { return cols == 0; }
};

// Returns what the model requires of the tensor in `role`. Reads only the parts of `d` that roles earlier in roles.def have filled. `layer`
// is ignored if the role is not a role of layers.
Asked asked(const Description& d, Role role, std::size_t layer);

}  // namespace pumice::model
