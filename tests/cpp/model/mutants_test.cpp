// Mutation tests. In every small decoder, one field of the model's description is changed at a time. The logits that
// tests/python/families/test_random_models.py compares with a golden must then move by more than three times the tolerance, or the program
// must be refused. If a change did not move the logits of any model, no test would cover the field.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "cpu/cpu_backend.h"
#include "files/model_file.h"
#include "model/programs.h"
#include "model/random_models.h"
#include "model/positions.h"

namespace pumice::model::mutants_test {
namespace {

constexpr std::int32_t kRows = 64;  // more than twice the window of the small models
// The tolerance of a golden's logits. For comparison, GELU in place of its tanh approximation moves logits by 8e-4 or more.
constexpr float kForgiven = 2e-4f;
constexpr float kNoticed = 3 * kForgiven;
constexpr std::int64_t kKept = 6400;  // maximum number of logits in a golden, which has every 2^n-th column of a row

// ---------------------------------------------------------------- a run
Backend& cpu_backend() {
  static const std::shared_ptr<Backend> backend = cpu::make_backend(1);
  return *backend;
}

std::vector<float> run(const Program& program, const std::shared_ptr<const DeviceWeights>& weights, const Batch& batch,
                       std::span<const float> in) {
  std::vector<float> out(static_cast<std::size_t>(batch.rows) *
                         static_cast<std::size_t>(program.slots[static_cast<std::size_t>(program.output)].width));
  const auto workspace = cpu_backend().make_workspace(Crew::team);
  cpu_backend().prepare(program, weights, Compute::float32)->run(*workspace, nullptr, batch, {in, out}, Cancel());
  return out;
}

// Returns the logits of kRows ids. They are computed without a cache, because a cache would make attention causal whatever `causal` is.
std::vector<float> logits(const Description& d) {
  cases::Random random(7);
  std::vector<std::int32_t> ids(kRows);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(3 + random.below(497));
  const std::vector<Segment> segments = {{.rows = kRows}};
  const Batch batch{.rows = kRows, .ids = ids, .segments = segments};
  Description body = d;
  body.config.final_norm = false;  // the head program has this norm
  const auto weights = cpu_backend().pack(d.weights, {}, {}, Cancel());
  const auto hidden = run(body_program(body, 0, d.config.layers.size(), Output::tokens), weights, batch, {});
  return run(head_program(d), weights, {.rows = kRows, .segments = segments}, hidden);
}

// Returns the logits, or nothing if the description gives a program that is refused.
std::vector<float> logits_or_nothing(const Description& d) {
  try {
    return logits(d);
  } catch (const Error&) {
    return {};
  }
}

// Returns the largest difference among the columns that a golden of `ids` rows keeps. It is infinite if `b` is empty or a difference is
// NaN.
float moved(const std::vector<float>& a, const std::vector<float>& b, std::int64_t vocab, std::int64_t ids) {
  if (b.empty()) return INFINITY;
  std::int64_t stride = 1;
  while (stride * kKept < ids * vocab) stride *= 2;
  float most = 0;
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t col = 0; col < vocab; col += stride) {
      const float off = std::fabs(a[static_cast<std::size_t>(row * vocab + col)] - b[static_cast<std::size_t>(row * vocab + col)]);
      if (!(off <= most)) most = std::isnan(off) ? INFINITY : off;
    }
  }
  return most;
}

// ---------------------------------------------------------------- mutants
struct Mutant {
  std::string field, name;
  std::function<bool(Description&)> change;  // returns false if nothing changes in this model
};

Parameter& global(Description& d, Role role) { return d.globals[static_cast<std::size_t>(role)]; }
Parameter& of(Description& d, std::size_t layer, Role role) { return d.layers[layer][static_cast<std::size_t>(role)]; }

// Return a mutant that applies `change` to every layer of the text model: Description::layers also has those for draft tokens.
Mutant in_layers(std::string field, std::string name, std::function<bool(Layer&)> change) {
  return {std::move(field), std::move(name), [change = std::move(change)](Description& d) {
            bool any = false;
            for (Layer& layer : d.config.layers) any = change(layer) || any;
            return any;
          }};
}
Mutant in_parameters(std::string field, std::string name, std::function<bool(Description&, std::size_t)> change) {
  return {std::move(field), std::move(name), [change = std::move(change)](Description& d) {
            bool any = false;
            for (std::size_t layer = 0; layer < d.config.layers.size(); ++layer) any = change(d, layer) || any;
            return any;
          }};
}
template <class T>
bool set(T& field, const T& value) {
  const bool other = !(field == value);
  field = value;
  return other;
}
template <class T>
bool times(T& field, double by) {
  return set(field, static_cast<T>(static_cast<double>(field) * by));
}

constexpr Role kNorms[] = {Role::embedding_norm,    Role::attn_norm,          Role::q_norm,   Role::k_norm,
                           Role::attn_branch_norm,  Role::attn_residual_norm, Role::ffn_norm, Role::ffn_branch_norm,
                           Role::ffn_residual_norm, Role::final_norm};

// Applies `change` to the parameter (weight and bias) of every norm. Returns true if anything changed.
bool each_norm(Description& d, const std::function<bool(Parameter&)>& change) {
  bool any = false;
  for (const Role role : kNorms) {
    if (!of_layer(role)) any = change(global(d, role)) || any;
    for (std::size_t layer = 0; of_layer(role) && layer < d.layers.size(); ++layer) any = change(of(d, layer, role)) || any;
  }
  return any;
}
bool drop_bias(Parameter& p) { return set(p.bias, VectorId::none); }

VectorId added(Description& d, std::vector<float> values) {
  d.weights.vectors.push_back({.name = "mutant", .values = std::move(values)});
  return static_cast<VectorId>(d.weights.vectors.size() - 1);
}

// Adds a copy of the matrix, in which row i is row place(i) of the original.
MatrixId reordered(Description& d, MatrixId id, const std::function<std::int64_t(std::int64_t)>& place) {
  Matrix m = d.matrix(id);
  m.read = [read = m.read, place, size = row_bytes(m.format, m.cols)](std::int64_t first, std::int64_t count, std::uint8_t* out) {
    for (std::int64_t row = 0; row < count; ++row) read(place(first + row), 1, out + row * size);
  };
  d.weights.matrices.push_back(std::move(m));
  return static_cast<MatrixId>(d.weights.matrices.size() - 1);
}

bool other_heads(Description& d) {
  bool any = false;
  for (std::size_t layer = 0; layer < d.config.layers.size(); ++layer) {
    Attention* a = d.config.layers[layer].if_attention();
    if (!a || a->head_dim % 4 != 0 || a->qk_norm == QkNorm::head || a->has_norm_after_rope() || a->position_bias == PositionBias::alibi)
      continue;
    a->heads *= 2;
    a->kv_heads *= 2;
    a->head_dim /= 2;
    any = true;
  }
  for (RopeTable& rope : d.config.ropes) rope.inv_freq.resize(rope.inv_freq.size() / 2);
  return any;
}

// Changes the qk_norm `from` to `to` in every layer that has `from`. The new norm weights are the old ones, repeated for all heads or cut
// to the first head.
bool other_qk_norm(Description& d, QkNorm from, QkNorm to) {
  return in_parameters("", "",
                       [&](Description& m, std::size_t layer) {
                         Attention* a = m.config.layers[layer].if_attention();
                         if (!a || a->qk_norm != from) return false;
                         a->qk_norm = to;
                         for (const auto& [role, width] : {std::pair(Role::q_norm, a->q_width()), std::pair(Role::k_norm, a->kv_width())}) {
                           Parameter& p = of(m, layer, role);
                           if (p.vector == VectorId::none) continue;
                           const std::vector<float>& old = m.weights.vectors[static_cast<std::size_t>(p.vector)].values;
                           std::vector<float> values(static_cast<std::size_t>(to == QkNorm::head ? a->head_dim : width));
                           for (std::size_t i = 0; i < values.size(); ++i) values[i] = old[i % old.size()];
                           p.vector = added(m, std::move(values));
                         }
                         return true;
                       })
      .change(d);
}

bool has_mixer(const Layer& l) { return !std::holds_alternative<std::monostate>(l.mixer); }
bool has_network(const Layer& l) { return !std::holds_alternative<std::monostate>(l.network); }

std::vector<Attention*> with_attention(Config& c) {
  std::vector<Attention*> found;
  for (Layer& layer : c.layers) {
    if (Attention* a = layer.if_attention()) found.push_back(a);
  }
  return found;
}

// Adds a mutant of a bias that a mixer may have. The mutant drops the bias, or adds one where there is
// none.
void toggle_bias(std::vector<Mutant>& all, const char* field, std::vector<Role> roles) {
  for (const bool drops : {true, false}) {
    all.push_back(in_parameters(field, drops ? "the other way" : "another one", [drops, roles](Description& d, std::size_t layer) {
      bool any = false;
      for (const Role role : roles) {
        Parameter& p = of(d, layer, role);
        if (p.matrix == MatrixId::none && p.vector == VectorId::none) continue;
        std::size_t width = p.matrix != MatrixId::none ? static_cast<std::size_t>(d.matrix(p.matrix).rows) : 0;
        if (const Recurrent* r = d.config.layers[layer].if_recurrent(); r && role == Role::scan_taps)
          width = static_cast<std::size_t>(r->conv_width());
        if (role == Role::conv_taps) width = static_cast<std::size_t>(d.config.hidden_size);
        p.bias = drops && p.bias != VectorId::none ? VectorId::none : added(d, std::vector<float>(width, 0.3f));
        any = true;
      }
      return any;
    }));
  }
}

// Returns whether a norm of the network's output cancels what multiplies the whole output of a mixture.
bool norm_cancels(const Layer& l) { return l.network_norms.branch && !l.if_mixture()->shared; }

void add_mixture_mutants(std::vector<Mutant>& all) {
  const auto mixture = [&](const char* field, std::string what, std::function<bool(Mixture&, const Layer&)> change) {
    all.push_back(
        in_layers(field, std::move(what), [change = std::move(change)](Layer& l) { return l.if_mixture() && change(*l.if_mixture(), l); }));
  };
  const auto parameters = [&](const char* field, std::string what, std::function<bool(Description&, std::size_t, const Mixture&)> change) {
    all.push_back(in_parameters(field, std::move(what), [change = std::move(change)](Description& d, std::size_t layer) {
      const Mixture* x = d.config.layers[layer].if_mixture();
      return x && change(d, layer, *x);
    }));
  };
  // Returns one number for each expert, or for each row of each expert, between -2 and 2.
  const auto numbers = [](std::int64_t count) {
    cases::Random random(11);
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = static_cast<float>(random.below(401)) / 100 - 2;
    return values;
  };

  mixture("Router::chosen", "one less",
          [](Mixture& x, const Layer&) { return x.router.chosen > 1 && set(x.router.chosen, x.router.chosen - 1); });
  mixture("Router::chosen", "one more",
          [](Mixture& x, const Layer&) { return x.router.chosen < x.router.experts && set(x.router.chosen, x.router.chosen + 1); });
  for (const char* field : {"Router::groups", "Router::kept"}) {
    mixture(field, "one of two groups", [](Mixture& x, const Layer&) {
      if (x.router.experts % 2 != 0 || x.router.chosen > x.router.experts / 2) return false;
      x.router.kept = 1;
      return set(x.router.groups, 2);
    });
  }
  mixture("Router::groups", "none", [](Mixture& x, const Layer&) { return set(x.router.groups, 1); });
  mixture("Router::kept", "one more",
          [](Mixture& x, const Layer&) { return x.router.kept < x.router.groups && set(x.router.kept, x.router.kept + 1); });
  mixture("Router::score", "the other one", [](Mixture& x, const Layer&) {
    return set(x.router.score, x.router.score == RouteScore::softmax ? RouteScore::sigmoid : RouteScore::softmax);
  });
  mixture("Router::softcap", "0.5", [](Mixture& x, const Layer&) { return set(x.router.softcap, 0.5f); });
  mixture("Router::softcap", "none", [](Mixture& x, const Layer&) { return set(x.router.softcap, 0.0f); });
  parameters("Router::bias", "where there is none", [numbers](Description& d, std::size_t layer, const Mixture& x) {
    return set(of(d, layer, Role::router).bias, added(d, numbers(x.router.experts)));
  });
  parameters("Router::choice_bias", "where there is none", [numbers](Description& d, std::size_t layer, const Mixture& x) {
    if (x.router.chosen == x.router.experts) return false;
    VectorId& bias = of(d, layer, Role::router_choice_bias).vector;
    return bias == VectorId::none && set(bias, added(d, numbers(x.router.experts)));
  });
  parameters("Router::choice_bias", "none", [](Description& d, std::size_t layer, const Mixture& x) {
    return x.router.chosen < x.router.experts && set(of(d, layer, Role::router_choice_bias).vector, VectorId::none);
  });
  mixture("Router::normalised", "the other way", [](Mixture& x, const Layer& l) {
    // The softmax of all experts adds up to 1.
    return !norm_cancels(l) && x.router.chosen < x.router.experts && set(x.router.normalised, !x.router.normalised);
  });
  mixture("Router::floor", "0.2",
          [](Mixture& x, const Layer& l) { return !norm_cancels(l) && x.router.normalised && set(x.router.floor, 0.2f); });
  mixture("Router::scale", "a tenth more", [](Mixture& x, const Layer& l) { return !norm_cancels(l) && times(x.router.scale, 1.1); });

  mixture("SharedExpert::opened", "not", [](Mixture& x, const Layer&) { return x.shared && set(x.shared->opened, false); });
  parameters("SharedExpert::opened", "where it is not", [](Description& d, std::size_t layer, const Mixture& x) {
    if (!x.shared || x.shared->opened) return false;
    Matrix row = d.matrix(of(d, layer, Role::router).matrix);
    row.rows = 1;
    d.weights.matrices.push_back(std::move(row));
    of(d, layer, Role::shared_opening).matrix = static_cast<MatrixId>(d.weights.matrices.size() - 1);
    return d.config.layers[layer].if_mixture()->shared->opened = true;
  });
  mixture("Mixture::combine", "half the sum, or the whole", [](Mixture& x, const Layer& l) {
    if (!x.shared || x.own_norms || l.network_norms.branch) return false;
    return set(x.combine, x.combine == Combine::averaged ? Combine::sum : Combine::averaged);
  });
  parameters("Mixture::shared", "none", [](Description& d, std::size_t layer, const Mixture& x) {
    return x.shared && (d.config.layers[layer].if_mixture()->shared.reset(), true);
  });

  parameters("Mixture::gated", "not",
             [](Description& d, std::size_t layer, const Mixture&) { return set(of(d, layer, Role::expert_gate).matrix, MatrixId::none); });
  parameters("Mixture::gated", "gate and up swapped", [](Description& d, std::size_t layer, const Mixture& x) {
    std::swap(of(d, layer, Role::expert_gate), of(d, layer, Role::expert_up));
    return x.gated;
  });
  for (const auto& [to, name] : {std::pair(Activation::gelu, "gelu"), std::pair(Activation::relu, "relu")})
    mixture("Mixture::activation", name, [to = to](Mixture& x, const Layer&) { return set(x.activation, to); });
  for (const Role role : {Role::expert_gate, Role::expert_up, Role::expert_down}) {
    parameters("Mixture::bias", str("where there is none, of ", kRoleNames[static_cast<std::size_t>(role)]),
               [numbers, role](Description& d, std::size_t layer, const Mixture&) {
                 Parameter& p = of(d, layer, role);
                 return p.matrix != MatrixId::none && set(p.bias, added(d, numbers(d.matrix(p.matrix).rows)));
               });
  }
  const auto clamped = [](Mixture& x) -> Clamp& { return x.clamp ? *x.clamp : x.clamp.emplace(); };
  mixture("Clamp::limit", "0.1", [clamped](Mixture& x, const Layer&) { return set(clamped(x).limit, 0.1f); });
  mixture("Clamp::shift", "1", [clamped](Mixture& x, const Layer&) { return set(clamped(x).shift, 1.0f); });
  mixture("Clamp::shift", "0", [](Mixture& x, const Layer&) { return x.clamp && set(x.clamp->shift, 0.0f); });
  const auto scaled = [](const Mixture& x) { return x.own_norms && x.own_norms->expert_scales; };
  parameters("OwnNorms::expert_scales", "none", [scaled](Description& d, std::size_t layer, const Mixture& x) {
    return scaled(x) && set(of(d, layer, Role::router_scales).vector, VectorId::none);
  });
  parameters("OwnNorms::expert_scales", "where there are none", [scaled](Description& d, std::size_t layer, const Mixture& x) {
    std::vector<float> values(static_cast<std::size_t>(x.router.experts), 1.0f);
    for (std::size_t i = 0; i < values.size(); i += 2) values[i] = 2;
    return !scaled(x) && set(of(d, layer, Role::router_scales).vector, added(d, std::move(values)));
  });
  mixture("Mixture::own_norms", "none", [](Mixture& x, const Layer&) { return x.own_norms && (x.own_norms.reset(), true); });
  mixture("Mixture::combine", "the weights multiply the inputs, or the outputs", [](Mixture& x, const Layer&) {
    // If one expert is chosen and its weight is divided by itself, the weight is 1.
    if ((x.router.chosen == 1 && x.router.normalised) || x.combine == Combine::averaged) return false;
    return set(x.combine, x.combine == Combine::inputs ? Combine::sum : Combine::inputs);
  });

  parameters("roles", "the router's rows in another order", [](Description& d, std::size_t layer, const Mixture& x) {
    MatrixId& router = of(d, layer, Role::router).matrix;
    router = reordered(d, router, [experts = std::int64_t{x.router.experts}](std::int64_t row) { return experts - 1 - row; });
    return true;
  });
}

std::vector<Mutant> mutants() {
  std::vector<Mutant> all;
  const auto add = [&](Mutant m) { all.push_back(std::move(m)); };
  const auto attention = [&](const char* name, std::string what, std::function<bool(Attention&)> change) {
    add(in_layers(std::string("Attention::") + name, std::move(what),
                  [change = std::move(change)](Layer& l) { return l.if_attention() && change(*l.if_attention()); }));
  };
  const auto recurrent = [&](const char* field, std::string what, std::function<bool(Recurrent&)> change) {
    add(in_layers(field, std::move(what),
                  [change = std::move(change)](Layer& l) { return l.if_recurrent() && change(*l.if_recurrent()); }));
  };
  const auto network = [&](const char* field, std::string what, std::function<bool(FeedForward&)> change) {
    add(in_layers(field, std::move(what), [change = std::move(change)](Layer& l) {
      Mixture* x = l.if_mixture();
      FeedForward* f = x && x->shared ? &x->shared->network : l.if_feed_forward();
      return f && change(*f);
    }));
  };
  const auto config = [&](const char* name, std::string what, std::function<bool(Config&)> change) {
    add({std::string("Config::") + name, std::move(what), [change = std::move(change)](Description& d) { return change(d.config); }});
  };

  for (const char* field : {"Attention::heads", "Attention::kv_heads", "Attention::head_dim"}) add({field, "twice the heads", other_heads});
  attention("causal", "sees what follows", [](Attention& a) { return set(a.causal, !a.causal); });
  attention("window", "none", [](Attention& a) { return set(a.window, 0); });
  attention("window", "one less", [](Attention& a) { return a.window > 1 && a.window < kRows && set(a.window, a.window - 1); });
  attention("window", "one where there is none", [](Attention& a) { return a.window == 0 && !a.chunks && set(a.window, 16); });
  add({"Attention::window", "in the next layer", [](Description& d) {
         const std::vector<Attention*> attend = with_attention(d.config);
         if (attend.empty()) return false;
         bool any = false;
         const std::int32_t first = attend.front()->window;
         for (std::size_t i = 0; i < attend.size(); ++i)
           any = set(attend[i]->window, i + 1 < attend.size() ? attend[i + 1]->window : first) || any;
         return any;
       }});
  attention("rope", "none", [](Attention& a) { return set(a.rope, -1); });
  add({"Attention::rope", "where there is none", [](Description& d) {
         bool any = false;
         for (Attention* a : with_attention(d.config)) any = (!d.config.ropes.empty() && a->rope < 0 && set(a->rope, 0)) || any;
         return any;
       }});
  add({"Attention::rope", "the other layers' one", [](Description& d) {
         bool any = false;
         const bool two = d.config.ropes.size() > 1 && !(d.config.ropes[0] == d.config.ropes[1]);
         for (Attention* a : with_attention(d.config)) any = (two && a->rope >= 0 && set(a->rope, 1 - std::min(a->rope, 1))) || any;
         return any;
       }});
  attention("scale", "a tenth more", [](Attention& a) { return times(a.scale, 1.1); });
  attention("softcap", "none", [](Attention& a) { return set(a.softcap, 0.0f); });
  attention("softcap", "where there is none", [](Attention& a) { return a.softcap == 0 && set(a.softcap, 1.0f); });
  attention("sinks", "none", [](Attention& a) { return set(a.sinks, false); });
  add({"Attention::sinks", "where there are none", [](Description& d) {
         bool any = false;
         for (std::size_t layer = 0; layer < d.config.layers.size(); ++layer) {
           Attention* a = d.config.layers[layer].if_attention();
           if (!a || a->sinks) continue;
           of(d, layer, Role::sinks).vector = added(d, std::vector<float>(static_cast<std::size_t>(a->heads), 1.0f));
           any = a->sinks = true;
         }
         return any;
       }});
  attention("qk_norm", "none", [](Attention& a) { return set(a.qk_norm, QkNorm::none); });
  add({"Attention::qk_norm", "whole for each head", [](Description& d) { return other_qk_norm(d, QkNorm::head, QkNorm::whole); }});
  add({"Attention::qk_norm", "each head for whole", [](Description& d) { return other_qk_norm(d, QkNorm::whole, QkNorm::head); }});
  add({"Attention::qk_norm", "where there is none", [](Description& d) { return other_qk_norm(d, QkNorm::none, QkNorm::head); }});
  attention("qk_norm", "the other side of rope", [](Attention& a) {
    if (a.rope < 0) return false;
    if (a.qk_norm == QkNorm::head) return set(a.qk_norm, QkNorm::head_after_rope);
    return a.qk_norm == QkNorm::head_after_rope && set(a.qk_norm, QkNorm::head);
  });
  attention("values", "not normalised", [](Attention& a) { return a.values && !a.values->from_keys && set(a.values->normalised, false); });
  attention("values", "keys where they have a matrix",
            [](Attention& a) { return a.values && a.values->normalised && !a.kv_from && set(a.values->from_keys, true); });
  attention("kv_from", "the layer before",
            [](Attention& a) { return a.kv_from && a.kv_from->layer > 0 && set(a.kv_from->layer, a.kv_from->layer - 1); });
  attention("temperature", "none", [](Attention& a) { return a.temperature && (a.temperature.reset(), true); });
  attention("temperature", "where there is none", [](Attention& a) {  // a norm after the factor would cancel it
    if (a.temperature || a.has_norm_after_rope()) return false;
    a.temperature = {.growth = 0.1f, .length = 16};
    return true;
  });
  attention("temperature", "half the length",
            [](Attention& a) { return a.temperature && set(a.temperature->length, a.temperature->length / 2); });
  attention("temperature", "from the position before or after",
            [](Attention& a) { return a.temperature && set(a.temperature->offset, 1 - a.temperature->offset); });
  attention("chunks", "none", [](Attention& a) { return a.chunks && (a.chunks.reset(), true); });
  attention("chunks", "one less", [](Attention& a) { return a.chunks && set(a.chunks->length, a.chunks->length - 1); });
  attention("chunks", "a window as long", [](Attention& a) {
    if (!a.chunks) return false;
    a.window = a.chunks->length;
    a.chunks.reset();
    return true;
  });
  attention("chunks", "where there are none", [](Attention& a) {
    if (a.chunks || a.window > 0 || !a.causal) return false;
    a.chunks = {.length = 16};
    return true;
  });
  attention("position_bias", "none", [](Attention& a) { return set(a.position_bias, PositionBias::none); });
  add({"Attention::position_bias", "where there is none", [](Description& d) {
         const std::vector<Attention*> attend = with_attention(d.config);
         if (attend.empty()) return false;
         if (d.alibi_slopes == VectorId::none) d.alibi_slopes = added(d, alibi_slopes(attend.front()->heads));
         bool any = false;
         for (Attention* a : attend) any = set(a->position_bias, PositionBias::alibi) || any;
         return any;
       }});
  attention("gate", "none", [](Attention& a) { return a.gate && (a.gate.reset(), true); });
  for (const auto& [to, name] : {std::pair(Activation::sigmoid, "sigmoid"), std::pair(Activation::softplus, "softplus")})
    add(in_layers("OutputGate::activation", name, [to = to](Layer& l) {
      Attention* a = l.if_attention();
      return a && a->gate && set(a->gate->activation, to);
    }));
  toggle_bias(all, "OutputGate::bias", {Role::attn_gate});
  add(in_layers("Attention::multipliers", "a tenth more of the output", [](Layer& l) {  // a norm on the branch would cancel the factor
    if (!l.if_attention() || l.mixer_norms.branch) return false;
    if (!l.attention().multipliers) l.attention().multipliers = Multipliers{};
    return times(l.attention().multipliers->out, 1.1);
  }));

  const auto latent = [&](const char* field, std::string what, std::function<bool(LatentAttention&)> change) {
    add(in_layers(field, std::move(what),
                  [change = std::move(change)](Layer& l) { return l.if_latent_attention() && change(*l.if_latent_attention()); }));
  };
  latent("LatentAttention::rope", "none", [](LatentAttention& t) { return set(t.rope, -1); });
  latent("LatentAttention::scale", "a tenth more", [](LatentAttention& t) { return times(t.scale, 1.1); });
  latent("LatentAttention::scale", "without a magnitude of YaRN",
         [](LatentAttention& t) { return set(t.scale, static_cast<float>(1 / std::sqrt(static_cast<double>(t.plain_dim + t.rope_dim)))); });
  for (const Role role : {Role::latent_q_down, Role::latent_down, Role::latent_k_rope, Role::latent_out})
    toggle_bias(all, "LatentAttention::bias", {role});

  recurrent("Recurrent::rule", "of a state space model", [](Recurrent& r) { return set(r.rule, ScanRule::ssd); });
  for (const char* field : {"Recurrent::key_heads", "Recurrent::key_dim"}) {
    recurrent(field, "twice the heads", [](Recurrent& r) {
      if (r.key_dim % 2 != 0) return false;
      r.key_heads *= 2;
      r.key_dim /= 2;
      return true;
    });
  }
  recurrent("Recurrent::activation", "none", [](Recurrent& r) { return set(r.activation, Activation::none); });
  recurrent("Recurrent::activation", "gelu", [](Recurrent& r) { return set(r.activation, Activation::gelu); });
  recurrent("DeltaRule::tiled", "the other way", [](Recurrent& r) {
    if (r.key_heads == 1 || r.key_heads >= r.heads) return false;
    if (!r.delta) r.delta = DeltaRule{};
    return set(r.delta->tiled, !r.delta->tiled);
  });
  recurrent("DeltaRule::strength", "twice or half",
            [](Recurrent& r) { return r.delta && set(r.delta->strength, r.delta->strength == 1 ? 2.0f : 1.0f); });
  recurrent("Recurrent::norm", "none", [](Recurrent& r) { return r.norm && (r.norm.reset(), true); });
  recurrent("ScanNorm::group", "all columns",
            [](Recurrent& r) { return r.norm && r.norm->per_column && set(r.norm->group, r.value_width()); });
  recurrent("ScanNorm::before_gate", "the other way",
            [](Recurrent& r) { return r.norm && set(r.norm->before_gate, !r.norm->before_gate); });
  recurrent("ScanNorm::eps", "0.1", [](Recurrent& r) { return r.norm && set(r.norm->eps, 0.1f); });
  recurrent("ScanFactors::gate", "where there are none", [](Recurrent& r) {
    if (r.factors) return false;
    r.factors = ScanFactors{.gate = 1.1f};
    return true;
  });
  for (const auto& [field, factor] : {std::pair("ScanFactors::q", &ScanFactors::q), std::pair("ScanFactors::k", &ScanFactors::k),
                                      std::pair("ScanFactors::v", &ScanFactors::v), std::pair("ScanFactors::gate", &ScanFactors::gate),
                                      std::pair("ScanFactors::step", &ScanFactors::step)}) {
    recurrent(field, "a fifth more", [factor = factor](Recurrent& r) {
      if (!r.factors) r.factors = ScanFactors{};
      return times((*r.factors).*factor, 1.2);
    });
  }
  recurrent("Recurrent::multipliers", "a tenth more of the input", [](Recurrent& r) {
    if (!r.multipliers) r.multipliers = Multipliers{};
    return times(r.multipliers->in, 1.1);
  });
  attention("multipliers", "a tenth more of the input", [](Attention& a) {
    if (a.qk_norm != QkNorm::none) return false;  // a norm would cancel the factor of queries and keys
    if (!a.multipliers) a.multipliers = Multipliers{};
    return times(a.multipliers->in, 1.1);
  });
  add(in_layers("Recurrent::multipliers", "a tenth more of the output", [](Layer& l) {  // a norm on the branch would cancel the factor
    Recurrent* r = l.if_recurrent();
    if (!r || l.mixer_norms.branch) return false;
    if (!r->multipliers) r->multipliers = Multipliers{};
    return times(r->multipliers->out, 1.1);
  }));
  toggle_bias(all, "Recurrent::in_bias", {Role::scan_q, Role::scan_k, Role::scan_v, Role::scan_gate, Role::scan_step, Role::scan_beta});
  toggle_bias(all, "Recurrent::conv_bias", {Role::scan_taps});
  toggle_bias(all, "Recurrent::out_bias", {Role::scan_out});
  toggle_bias(all, "ShortConv::bias", {Role::conv_in});
  toggle_bias(all, "ShortConv::bias", {Role::conv_taps});
  toggle_bias(all, "ShortConv::bias", {Role::conv_out});
  add(in_layers("ShortConv::causal", "the other way",
                [](Layer& l) { return l.if_short_conv() && set(l.if_short_conv()->causal, !l.if_short_conv()->causal); }));

  add_mixture_mutants(all);

  struct Branch {
    const char* name;
    Norms& (*norms)(Layer&);
  };
  for (const Branch& b : {Branch{"Layer::mixer_norms", [](Layer& l) -> Norms& { return l.mixer_norms; }},
                          Branch{"Layer::network_norms", [](Layer& l) -> Norms& { return l.network_norms; }}}) {
    const auto norms = [&](const char* field, std::function<bool(Layer&)> change) {
      add(in_layers(field, std::string(field) + " of " + b.name, [f = b.norms, change = std::move(change)](Layer& l) {
        const bool there = &f(l) == &l.mixer_norms ? has_mixer(l) : has_network(l);
        return there && change(l);
      }));
    };
    norms("Norms::before", [f = b.norms](Layer& l) { return f(l).before = !f(l).before, true; });
    norms("Norms::branch", [f = b.norms](Layer& l) { return f(l).branch = !f(l).branch, true; });
    norms("Norms::sum", [f = b.norms](Layer& l) { return !f(l).branch && set(f(l).sum, !f(l).sum); });
    norms("Norms::residual", [f = b.norms](Layer& l) {  // no effect without a norm before, or in a network parallel to the mixer
      if (!f(l).before || (l.join.parallel && &f(l) == &l.network_norms)) return false;
      return set(f(l).residual, f(l).residual == Residual::row ? Residual::normalised : Residual::row);
    });
  }
  const auto biases = [&](const char* field, std::vector<Role> roles) {
    add(in_parameters(field, "none", [roles = std::move(roles)](Description& d, std::size_t layer) {
      bool any = false;
      for (const Role role : roles) any = drop_bias(of(d, layer, role)) || any;
      return any;
    }));
  };
  biases("Attention::qkv_bias", {Role::q, Role::k, Role::v});
  biases("Attention::out_bias", {Role::attn_out});
  biases("FeedForward::bias", {Role::gate, Role::up, Role::down});

  network("FeedForward::gated", "not", [](FeedForward& f) { return set(f.gated, false); });
  add({"FeedForward::gated", "where there is no gate", [](Description& d) {
         return in_parameters("", "",
                              [](Description& m, std::size_t layer) {
                                FeedForward* f = m.config.layers[layer].if_feed_forward();
                                if (!f || f->gated || f->activation == Activation::xielu) return false;
                                of(m, layer, Role::gate) = of(m, layer, Role::up);
                                return f->gated = true;
                              })
             .change(d);
       }});
  add(in_parameters("FeedForward::gated", "gate and up swapped", [](Description& d, std::size_t layer) {
    std::swap(of(d, layer, Role::gate), of(d, layer, Role::up));
    const FeedForward* f = d.config.layers[layer].if_feed_forward();
    return f && f->gated;
  }));
  for (const auto& [to, name] :
       {std::pair(Activation::silu, "silu"), std::pair(Activation::gelu, "gelu"), std::pair(Activation::gelu_tanh, "gelu_tanh"),
        std::pair(Activation::relu, "relu"), std::pair(Activation::relu2, "relu2")}) {
    network("FeedForward::activation", name, [to = to](FeedForward& f) { return set(f.activation, to); });
  }
  for (const auto& alpha : {&Xielu::alpha_p, &Xielu::alpha_n}) {
    network("FeedForward::xielu", alpha == &Xielu::alpha_p ? "a tenth more of alpha_p" : "a tenth more of alpha_n",
            [alpha](FeedForward& f) { return f.xielu && times((*f.xielu).*alpha, 1.1); });
  }
  add(in_layers("FeedForward::multipliers", "a tenth more of the output", [](Layer& l) {  // a norm on the branch would cancel the factor
    FeedForward* f = l.if_feed_forward();
    if (!f || l.network_norms.branch) return false;
    if (!f->multipliers) f->multipliers = Multipliers{};
    return times(f->multipliers->out, 1.1);
  }));
  add(in_layers("FeedForward::multipliers", "a fifth more of the gate", [](Layer& l) {
    FeedForward* f = l.if_feed_forward();
    if (!f || !f->gated) return false;
    if (!f->multipliers) f->multipliers = Multipliers{};
    return times(f->multipliers->in, 1.2);
  }));
  add(in_layers("Join::parallel", "the other way",
                [](Layer& l) { return has_mixer(l) && has_network(l) && set(l.join.parallel, !l.join.parallel); }));
  add(in_layers("Join::scale", "1", [](Layer& l) { return set(l.join.scale, 1.0f); }));
  add(in_layers("Join::scale", "a tenth more", [](Layer& l) {  // a norm on the branch would cancel the factor
    return !l.mixer_norms.branch && times(l.join.scale, 1.1);
  }));

  add(in_layers("Layer::tail", "without the final norm", [](Layer& l) { return l.tail && set(l.tail->final_norm, false); }));
  add(in_layers("Layer::tail", "not scaled", [](Layer& l) { return l.tail && set(l.tail->scaled, false); }));
  add(in_layers("Layer::tail", "without the layer's input", [](Layer& l) { return l.tail && set(l.tail->input, false); }));

  config("norm", "the other kind", [](Config& c) { return set(c.norm, c.norm == NormKind::rms ? NormKind::layer : NormKind::rms); });
  config("eps", "0.1", [](Config& c) { return set(c.eps, 0.1f); });
  add({"Config::norm_weight", "none",
       [](Description& d) { return each_norm(d, [](Parameter& p) { return set(p.vector, VectorId::none); }); }});
  add({"Config::norm_bias", "none", [](Description& d) { return each_norm(d, drop_bias); }});
  for (const float by : {1.0f, -1.0f}) {
    add({"Config::norm_offset", by > 0 ? "1 more" : "1 less", [by](Description& d) {
           return each_norm(d, [&](Parameter& p) {
             if (p.vector == VectorId::none) return false;
             std::vector<float> values = d.weights.vectors[static_cast<std::size_t>(p.vector)].values;
             for (float& value : values) value += by;
             p.vector = added(d, std::move(values));
             return true;
           });
         }});
  }
  for (const auto& [name, change] :
       {std::pair<const char*, bool (*)(RopeTable&)>{"pairs of the other kind",
                                                     [](RopeTable& r) { return set(r.interleaved, !r.interleaved); }},
        {"larger", [](RopeTable& r) { return times(r.magnitude, 1.1); }},
        {"not larger", [](RopeTable& r) { return set(r.magnitude, 1.0f); }},
        {"half of the pairs", [](RopeTable& r) { return r.inv_freq.size() > 1 && (r.inv_freq.resize(r.inv_freq.size() / 2), true); }},
        {"slower", [](RopeTable& r) {
           for (float& f : r.inv_freq) f /= 2;
           return true;
         }}}) {
    config("ropes", name, [change = change, factor = std::string(name) == "larger"](Config& c) {
      bool any = false;
      const Attention* first = c.first_attention();
      if (factor && first && first->has_norm_after_rope()) return false;
      for (RopeTable& rope : c.ropes) any = change(rope) || any;
      return any;
    });
  }
  add({"Config::alibi_slopes", "half", [](Description& d) {
         if (d.alibi_slopes == VectorId::none) return false;
         std::vector<float> slopes = d.config.alibi_slopes;
         for (float& slope : slopes) slope /= 2;
         d.alibi_slopes = added(d, std::move(slopes));
         return true;
       }});
  config("embedding_scale", "1", [](Config& c) { return set(c.embedding_scale, 1.0f); });
  config("embedding_scale", "a tenth more",  // a norm after the factor would cancel it
         [](Config& c) { return !c.embedding_norm && times(c.embedding_scale, 1.1); });
  config("layer_inputs", "a tenth more of the table",  // norms cancel factors of the sum and of the product
         [](Config& c) { return c.layer_inputs && times(c.layer_inputs->embedding_scale, 1.1); });
  config("embedding_norm", "the other way", [](Config& c) { return set(c.embedding_norm, !c.embedding_norm); });
  add({"Config::learned_positions", "none",
       [](Description& d) { return set(global(d, Role::position_embedding).matrix, MatrixId::none); }});
  add({"Config::position_offset", "one row on", [](Description& d) {
         MatrixId& table = global(d, Role::position_embedding).matrix;
         if (table == MatrixId::none) return false;
         const std::int64_t rows = d.matrix(table).rows;
         table = reordered(d, table, [rows](std::int64_t row) { return std::min(row + 1, rows - 1); });
         return true;
       }});
  add({"Config::head_bias", "none", [](Description& d) { return drop_bias(global(d, Role::head)); }});
  config("head_transform", "none", [](Config& c) { return set(c.head_transform, false); });
  config("logit_scale", "1", [](Config& c) { return set(c.logit_scale, 1.0f); });
  config("logit_scale", "a tenth more", [](Config& c) { return times(c.logit_scale, 1.1); });
  config("logit_softcap", "none", [](Config& c) { return set(c.logit_softcap, 0.0f); });
  config("logit_softcap", "where there is none", [](Config& c) { return c.logit_softcap == 0 && set(c.logit_softcap, 1.0f); });

  // Mutants that give a parameter to another role, or change the order of its rows.
  add(in_parameters("roles", "k and v swapped", [](Description& d, std::size_t layer) {
    std::swap(of(d, layer, Role::k), of(d, layer, Role::v));
    return d.config.layers[layer].if_attention() != nullptr;
  }));
  add(in_parameters("roles", "q and k in the order of GGUF", [](Description& d, std::size_t layer) {
    const Attention* a = d.config.layers[layer].if_attention();
    if (!a || a->rope < 0) return false;
    for (const Role role : {Role::q, Role::k}) {
      MatrixId& matrix = of(d, layer, role).matrix;
      if (matrix == MatrixId::none) continue;
      matrix = reordered(d, matrix, [dim = std::int64_t{a->head_dim}](std::int64_t row) {
        const std::int64_t in = row % dim;
        return row - in + in / 2 + in % 2 * (dim / 2);
      });
    }
    return true;
  }));
  add({"roles", "the embedding as head",
       [](Description& d) { return set(global(d, Role::head).matrix, d.global(Role::token_embedding).matrix); }});
  return all;
}

// ---------------------------------------------------------------- the fields there are
// If a struct gets another field, this file does not compile until the field is in the struct's list below. MutantsTable then demands a
// mutant of the field, or a reason in kNoMutant.
#define FIELDS(Type, ...)             \
  const auto& [__VA_ARGS__] = Type{}; \
  [](const auto&...) {}(__VA_ARGS__); \
  add_fields(#Type, #__VA_ARGS__)

std::set<std::string> fields() {
  std::set<std::string> found;
  const auto add_fields = [&](const std::string& type, const std::string& list) {
    std::istringstream names(list);
    for (std::string name; std::getline(names >> std::ws, name, ',');) found.insert(type + "::" + name);
  };
  {
    FIELDS(Norms, before, branch, sum, residual);
  }
  {
    FIELDS(Attention, heads, kv_heads, head_dim, causal, window, rope, scale, softcap, qk_norm, position_bias, sinks, qkv_bias, out_bias,
           places, values, kv_from, temperature, chunks, gate, multipliers);
  }
  {
    FIELDS(OutputGate, by_head, bias, activation);
  }
  {
    FIELDS(LatentAttention, heads, latent_dim, plain_dim, rope_dim, value_dim, q_rank, rope, scale, bias);
  }
  {
    FIELDS(Recurrent, rule, heads, key_heads, key_dim, value_dim, taps, activation, delta, in_bias, conv_bias, out_bias, norm, factors,
           multipliers);
  }
  {
    FIELDS(DeltaRule, tiled, strength);
  }
  {
    FIELDS(ScanNorm, group, per_column, before_gate, eps);
  }
  {
    FIELDS(ScanFactors, q, k, v, gate, step);
  }
  {
    FIELDS(ShortConv, taps, bias, causal);
  }
  {
    FIELDS(FeedForward, width, gated, activation, bias, xielu, multipliers);
  }
  {
    FIELDS(Router, experts, chosen, groups, kept, score, softcap, bias, choice_bias, normalised, floor, scale);
  }
  {
    FIELDS(SharedExpert, network, opened);
  }
  {
    FIELDS(Clamp, limit, shift);
  }
  {
    FIELDS(OwnNorms, expert_scales);
  }
  {
    FIELDS(Mixture, router, width, gated, activation, bias, combine, clamp, own_norms, shared);
  }
  {
    FIELDS(Join, parallel, scale);
  }
  {
    FIELDS(Layer, mixer, beside, network, mixer_norms, network_norms, join, windowed, tail);
  }
  {
    FIELDS(Config, family, gguf, hidden_size, n_ctx, layers, loops, draft, why_no_draft, backbone, ropes, alibi_slopes, position_buckets,
           norm, eps, norm_weight, norm_bias, norm_offset, embedding_scale, embedding_map, layer_inputs, embedding_norm, learned_positions,
           position_offset, token_types, final_norm, has_head, head_bias, head_columns, head_transform, classifier, mlm_head, projects_rows,
           logit_scale, logit_softcap, text_end, pooling, notes, incomplete, dense);
  }
  return found;
}

const std::map<std::string, std::string> kNoMutant = {
    {"Layer::mixer", "its fields have theirs"},
    {"Config::mlm_head", "encoders alone: their sparse vectors in tests/python/families/test_random_models.py"},
    {"Layer::beside", "its fields have theirs"},
    {"Config::loops", "it chooses tensors while a model is described; mutants are changed afterwards"},
    {"Layer::network", "its fields have theirs"},
    {"Router::experts", "the tensors' shapes hold it"},
    {"OutputGate::by_head", "the tensors' shapes hold it"},
    {"SharedExpert::network", "its fields have theirs"},
    {"Mixture::router", "its fields have theirs"},
    {"Mixture::width", "the tensors' shapes hold it"},
    {"Mixture::clamp", "its fields have theirs"},
    {"Recurrent::delta", "its fields have theirs"},
    {"LatentAttention::heads", "the tensors' shapes hold it"},
    {"LatentAttention::latent_dim", "the tensors' shapes hold it"},
    {"LatentAttention::plain_dim", "the tensors' shapes hold it"},
    {"LatentAttention::rope_dim", "the tensors' shapes hold it"},
    {"LatentAttention::value_dim", "the tensors' shapes hold it"},
    {"LatentAttention::q_rank", "the tensors' shapes hold it"},
    {"Recurrent::heads", "the tensors' shapes hold it"},
    {"Recurrent::value_dim", "the tensors' shapes hold it"},
    {"Recurrent::taps", "the tensors' shapes hold it"},
    {"Recurrent::factors", "its fields have theirs"},
    {"ScanNorm::per_column", "the tensors' shapes hold it"},
    {"ShortConv::taps", "the tensors' shapes hold it"},
    {"Layer::mixer_norms", "their fields have theirs"},
    {"Layer::network_norms", "their fields have theirs"},
    {"Layer::join", "its fields have theirs"},
    {"Layer::windowed", "says which rope a layer takes while a file is read; Attention::rope has mutants"},
    {"FeedForward::width", "the tensors' shapes hold it"},
    {"Config::family", "names of tensors; a wrong one finds none"},
    {"Config::gguf", "the kind of file"},
    {"Config::hidden_size", "the tensors' shapes hold it"},
    {"Config::n_ctx", "a limit, no arithmetic"},
    {"Config::layers", "their fields have theirs"},
    {"Config::draft", "guesses alone: tests/python/generate/test_draft_heads.py"},
    {"Config::why_no_draft", "a text"},
    {"Config::backbone", "the tensors' shapes of an assistant hold it"},
    {"Config::token_types", "encoders alone: tests/python/families/test_random_models.py, with types"},
    {"Config::head_columns", "says how the head's matrix is read; mutants are changed afterwards. bailing_moe's switches have norm_head"},
    {"Config::final_norm", "decoders have one; encoders' hidden rows show it"},
    {"Config::has_head", "what a model can do, no arithmetic"},
    {"Config::position_buckets", "encoders alone: mpnet, t5 in tests/python/families/test_random_models.py"},
    {"Attention::places", "encoders alone: deberta_v2 in tests/python/families/test_random_models.py"},
    {"Config::embedding_map", "encoders alone: albert, electra_wide, deberta_v2_narrow"},
    {"Config::classifier", "classifiers alone: their logits in tests/python/families/test_random_models.py"},
    {"Config::projects_rows", "EmbeddingGemma 2 alone: its rows in tests/python/families/test_random_models.py"},
    {"Config::text_end", "CLIP alone"},
    {"Config::pooling", "what the file says of vectors"},
    {"Config::notes", "texts"},
    {"Config::incomplete", "texts"},
    {"Config::dense", "EmbeddingGemma in GGUF alone: tests/python/loading/test_incomplete_files.py"},
};

TEST(MutantsTable, EveryFieldHasOneOrAReason) {
  std::set<std::string> covered;
  for (const Mutant& mutant : mutants()) covered.insert(mutant.field);
  for (const std::string& field : fields()) EXPECT_NE(covered.contains(field), kNoMutant.contains(field)) << field;
  for (const auto& [field, reason] : kNoMutant) EXPECT_TRUE(fields().contains(field)) << field;
  covered.erase("roles");
  for (const std::string& field : covered) EXPECT_TRUE(fields().contains(field)) << field;
}

// ---------------------------------------------------------------- every decoder
// Mutants ("variant: field: mutant") that do not change the logits of a golden, each with the reason.
const std::map<std::string, std::string> kUnnoticed = {
    {"bloom_six_heads: Norms::sum: Norms::sum of Layer::mixer_norms", "a norm follows there, and one without weights before it is nothing"},
    {"bloom_six_heads: Norms::sum: Norms::sum of Layer::network_norms", "likewise"},
    {"gemma4_26b: Router::normalised: the other way", "a norm follows the experts, so a factor of all their weights is nothing"},
    {"gemma4_26b: Router::floor: 0.2", "likewise"},
    {"gemma4_26b: Router::scale: a tenth more", "likewise"},
    {"granite_hybrid_experts_hub: Router::score: the other one", "one expert is chosen, whose weight is divided by itself"},
    {"qwen3_5_moe_types: Router::score: the other one", "likewise"},
};

class Mutants : public testing::TestWithParam<random_models::Variant> {};

std::vector<random_models::Variant> decoders() {
  auto all = random_models::variants();
  std::erase_if(all, [](const auto& v) { return v.kind != "decoder" || v.pending; });
  return all;
}

Description read(const random_models::Variant& v, const files::testing::TempFolder& folder) {
  random_models::write(v, folder);
  return describe(files::ModelFile::open(folder.path()), {});
}

TEST(MutantsTable, EachChangesSomeModel) {
  std::vector<Mutant> left = mutants();
  for (const random_models::Variant& v : decoders()) {
    const files::testing::TempFolder folder;
    const Description whole = read(v, folder);
    std::erase_if(left, [&](const Mutant& mutant) {
      Description changed = whole;
      return mutant.change(changed);
    });
  }
  for (const Mutant& mutant : left) ADD_FAILURE() << mutant.field << ": " << mutant.name << " changes none";
}

TEST_P(Mutants, AreNoticed) {
  const random_models::Variant& v = GetParam();
  const files::testing::TempFolder folder;
  const Description whole = read(v, folder);
  const std::vector<float> expected = logits(whole);
  for (const Mutant& mutant : mutants()) {
    Description changed = whole;
    if (!mutant.change(changed)) continue;
    const std::string name = v.name + ": " + mutant.field + ": " + mutant.name;
    const float off = moved(expected, logits_or_nothing(changed), whole.vocab_size, v.ids);
    EXPECT_EQ(off <= kNoticed, kUnnoticed.contains(name)) << name << " moves logits by " << off;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Mutants, testing::ValuesIn(decoders()), [](const auto& info) { return info.param.name; });

TEST(RandomModels, WeightsAreThoseOfPython) {
  const auto hex = [](const std::vector<float>& values) {
    std::ostringstream text;
    for (const char c : files::testing::floats(values)) text << std::hex << (c >> 4 & 15) << (c & 15);
    return text.str();
  };
  EXPECT_EQ(hex(random_models::weights("model.norm.weight", {2})), "3b4f8e3fea904e3f");
  EXPECT_EQ(hex(random_models::weights("model.embed_tokens.weight", {1, 2})), "7e625cbfd5dcd4bc");
}

}  // namespace
}  // namespace pumice::model::mutants_test
