#include "model/roles.h"

#include "model/description.h"

namespace pumice::model {
namespace {

struct Shape {
  std::int64_t rows, cols;
};
constexpr Shape matrix(std::int64_t rows, std::int64_t cols) { return {rows, cols}; }
constexpr Shape vector(std::int64_t length) { return {length, 0}; }
constexpr std::int64_t any = 0;
constexpr bool no = false;

Asked make(Need need, Shape shape, bool bias, Use use) {
  return {.need = need, .rows = shape.rows, .cols = shape.cols, .bias = bias, .use = use};
}

}  // namespace

Asked asked(const Description& d, Role role, std::size_t layer) {
  using enum Need;
  using enum Use;
  static const Layer kNone;
  const Config& c = d.config;
  const Layer& l = of_layer(role) ? c.layers[layer] : kNone;
  const Attention& a = l.attention;
  const FeedForward& f = l.feed_forward;
  const std::int64_t hidden = c.hidden_size;
  const auto when = [](bool asks) { return asks ? always : never; };
  const auto norm = [&](bool asks) { return when(asks && c.norm_weight); };
  switch (role) {
#define PUMICE_ROLE(name, of, need, shape, bias, use) \
  case Role::name:                                    \
    return make(need, shape, bias, use);
#include "model/roles.def"
#undef PUMICE_ROLE
  }
  fail(ErrorKind::unsupported_model, "a role without a row in roles.def");
}

}  // namespace pumice::model
