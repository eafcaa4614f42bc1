// Roles of tensors, and what a model requires of the tensor in each role (roles.def).
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

// Which part of a model has tensors of a role (roles.def).
enum class Of : std::uint8_t { model, end, layer, attention, feed_forward };
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
  maybe,      // used where the file has it
  always,     // the file must have it
  elsewhere,  // another part of model/ reads it and reports a missing one
};

// How a role's matrix is used.
enum class Use : std::uint8_t {
  none = 0,
  table = 1,    // rows are looked up by index; the file's format is kept
  exact = 2,    // a small product whose error reaches the result undamped; the file's format is kept
  product = 4,  // may be quantized and rounded
  // Of a product:
  bytes = 8,         // in an encoder its activations may be codes of 8 bits (docs/numerics.md). Not for values, whose error no softmax
                     // damps, and not after a gate, where the largest activations stand far above the rest of their block
  apart = 16,        // an adapter's factors may stand beside it: no activation changes its output before theirs is added
  ends_branch = 32,  // its bias is multiplied by Join::scale
};
constexpr Use operator|(Use a, Use b) { return static_cast<Use>(static_cast<unsigned>(a) | static_cast<unsigned>(b)); }
constexpr bool has(Use all, Use one) { return (static_cast<unsigned>(all) & static_cast<unsigned>(one)) != 0; }

// What a model requires of the tensor in one role (in one layer).
struct Asked {
  Need need = Need::never;
  std::int64_t rows = 0, cols = 0;  // rows 0: any number. For a vector, `rows` is its length and cols is 0
  bool bias = false;                // the file must have its bias
  Use use = Use::none;

  bool is_vector() const { return cols == 0; }
};

// Uses those parts of `d` that roles earlier in roles.def have filled. `layer` matters only for roles of layers.
Asked asked(const Description& d, Role role, std::size_t layer);

}  // namespace pumice::model
