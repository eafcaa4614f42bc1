#include "model/programs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/program_check.h"
#include "model/random_models.h"
#include "model/tiny.h"

namespace pumice::model {
namespace {

struct Loaded {
  explicit Loaded(const tiny::Model& m, std::optional<Format> quantize = {}) : d(describe(tiny::open(m, folder), {.quantize = quantize})) {}
  tiny::TempFolder folder;
  Description d;
};

std::string text(const Program& p) {
  std::string names;
  for (const Op& op : p.ops) names += (names.empty() ? "" : " ") + std::string(name(op));
  return names;
}
const SlotShape& slot(const Program& p, std::int32_t index) { return p.slots.at(static_cast<std::size_t>(index)); }
std::int32_t width(const Program& p, std::int32_t index) { return slot(p, index).width; }

template <class T>
std::vector<T> all(const Program& p) {
  std::vector<T> found;
  for (const Op& op : p.ops) {
    if (const T* one = std::get_if<T>(&op)) found.push_back(*one);
  }
  return found;
}

std::set<std::string> used_names(const Description& d, const Program& p) {
  std::set<std::string> names;
  const auto used = check_program(p, shapes_of(d.weights)).used;
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i]) names.insert(d.weights.matrices[i].name);
  }
  return names;
}

TEST(Programs, APartThatALayerLacksHasNoOperationsAndNoRoles) {
  const Loaded m(tiny::make("llama", 3));
  Description without_network = m.d, without_mixer = m.d;
  without_network.config.layers[1].network = {};
  without_mixer.config.layers[1].mixer = {};
  EXPECT_EQ(text(layer_program(m.d, 1)), "Norm Linear Rope Rope Attend Linear Norm GatedLinear Linear");
  EXPECT_EQ(text(layer_program(without_network, 1)), "Norm Linear Rope Rope Attend Linear");
  EXPECT_EQ(text(layer_program(without_mixer, 1)), "Norm GatedLinear Linear");
  EXPECT_EQ(body_program(without_mixer, 0, 3, Output::selected).caches.size(), 2u);
  for (const Role role : {Role::ffn_norm, Role::gate, Role::up, Role::down}) {
    EXPECT_EQ(asked(m.d, role, 1).need, Need::always);
    EXPECT_EQ(asked(without_network, role, 1).need, Need::never);
    EXPECT_EQ(asked(without_mixer, role, 1).need, Need::always);
  }
  for (const Role role : {Role::attn_norm, Role::q, Role::k, Role::v, Role::attn_out}) {
    EXPECT_EQ(asked(without_network, role, 1).need, Need::always);
    EXPECT_EQ(asked(without_mixer, role, 1).need, Need::never);
  }
  files::testing::expect_error(ErrorKind::unsupported_model, "attention", [&] { (void)without_mixer.config.layers[1].attention(); });
  files::testing::expect_error(ErrorKind::unsupported_model, "feed-forward",
                               [&] { (void)without_network.config.layers[1].feed_forward(); });
}

TEST(Programs, OperationsOfEachFamily) {
  struct Expected {
    // Names of operations. `start`: before the layers; `cached`: a layer with a cache; `uncached`: a layer without; `norm`: after the
    // layers.
    std::string start, cached, uncached, norm;
  };
  const std::string ffn = " Linear Norm GatedLinear Linear";
  const Expected llama{"Embed", "Norm Linear Rope Rope Store Attend" + ffn, "Norm Linear Rope Rope Attend" + ffn, " Norm"};
  const Expected gemma{"Embed", "Norm Linear Norm Norm Rope Rope Store Attend Linear Norm Norm GatedLinear Linear Norm",
                       "Norm Linear Norm Norm Rope Rope Attend Linear Norm Norm GatedLinear Linear Norm", " Norm"};
  const std::string encoder = "Linear Attend Linear Norm Linear Linear Norm";
  const Expected bert{"Embed Norm", encoder, encoder, ""};
  for (const std::string& name : tiny::every()) {
    SCOPED_TRACE(name);
    const Loaded m(tiny::make(name, 3));
    const Expected& e = name.starts_with("gemma3") ? gemma : name.starts_with("bert") ? bert : llama;
    const auto layers = [](const std::string& one) { return " " + one + " " + one + " " + one; };
    EXPECT_EQ(text(body_program(m.d, 0, 3, Output::hidden)), e.start + layers(e.cached));
    EXPECT_EQ(text(body_program(m.d, 0, 3, Output::selected)), e.start + layers(e.cached) + " Select");
    EXPECT_EQ(text(body_program(m.d, 0, 3, Output::tokens)), e.start + layers(e.uncached) + e.norm);
    EXPECT_EQ(text(body_program(m.d, 0, 3, Output::pooled)), e.start + layers(e.uncached) + e.norm + " Pool");
    EXPECT_EQ(text(body_program(m.d, 1, 2, Output::pooled)), e.uncached);  // only the last stage has the output's operations
    EXPECT_EQ(text(body_program(m.d, 2, 3, Output::pooled)), e.uncached + e.norm + " Pool");
    EXPECT_EQ(text(body_program(m.d, 0, 0, Output::hidden)), e.start);
    if (m.d.config.has_head) {
      EXPECT_EQ(text(head_program(m.d)), "Norm Linear");
      EXPECT_EQ(text(log_prob_program(m.d)), "Norm Linear LogProb");
      EXPECT_EQ(text(top_program(m.d)), "Norm Linear Top");
    }
  }
}

TEST(Programs, OutputsAreWhatTheCallNeeds) {
  const Loaded bert(tiny::make("bert"));
  struct Case {
    Output output;
    Rows rows;
    std::int64_t width;
    const char* ends;
  };
  for (const Case& c :
       {Case{Output::tokens, Rows::tokens, tiny::kHidden, "Norm"}, Case{Output::pooled, Rows::segments, tiny::kHidden, "Pool"},
        Case{Output::classes, Rows::segments, tiny::kLabels, "Pool Linear Linear"},
        Case{Output::selected, Rows::selected, tiny::kHidden, "Select"}}) {
    const Program p = body_program(bert.d, 0, 2, c.output);
    EXPECT_EQ(slot(p, p.output).rows, c.rows) << c.ends;
    EXPECT_EQ(width(p, p.output), c.width) << c.ends;
    EXPECT_TRUE(text(p).ends_with(c.ends)) << text(p);
    EXPECT_EQ(p.input, -1);
    EXPECT_TRUE(p.caches.empty());
  }
  const Program classes = body_program(bert.d, 0, 2, Output::classes);
  EXPECT_EQ(all<Pool>(classes)[0].kind, PoolKind::cls);
  const auto linears = all<Linear>(classes);
  EXPECT_EQ(linears[linears.size() - 2].activation, Activation::tanh);
  EXPECT_EQ(linears.back().activation, Activation::none);
  Description two = bert.d;
  two.pooling = {PoolKind::cls, PoolKind::max};
  const Program pooled = body_program(two, 0, 2, Output::pooled);
  EXPECT_EQ(width(pooled, pooled.output), 2 * tiny::kHidden);
  EXPECT_EQ(two.vector_size(), 2 * tiny::kHidden);
  const auto pools = all<Pool>(pooled);
  ASSERT_EQ(pools.size(), 2u);
  EXPECT_EQ(pools[0].kind, PoolKind::cls);
  EXPECT_EQ(pools[1].kind, PoolKind::max);
  EXPECT_EQ(pools[1].out, (View{pooled.output, tiny::kHidden, tiny::kHidden}));

  const Loaded llama(tiny::make("llama"));
  const Program head = head_program(llama.d), scores = log_prob_program(llama.d);
  EXPECT_EQ(width(head, head.input), tiny::kHidden);
  EXPECT_EQ(width(head, head.output), tiny::kVocab);
  EXPECT_TRUE(all<Linear>(head)[0].precise);
  EXPECT_EQ(width(scores, scores.output), 1);
  const Program top = top_program(llama.d);
  EXPECT_EQ(width(top, top.output), top_width(kTopLogits, top_reported(tiny::kVocab)));
  EXPECT_TRUE(all<Linear>(top)[0].precise);  // so that the logits are the same as the head's
}

TEST(Programs, AClassifierIsData) {
  Loaded bert(tiny::make("bert"));
  ClassifierHead& head = bert.d.config.classifier;
  const auto classes = [&] { return body_program(bert.d, 0, 2, Output::classes); };
  const std::string layers = text(body_program(bert.d, 0, 2, Output::tokens));
  EXPECT_EQ(text(classes()), layers + " Pool Linear Linear");
  head = {.pooling = PoolKind::last,
          .dense = DenseBefore::texts,
          .activation = Activation::gelu,
          .norm = true};  // the test checks only the norm's position; its weights are not read
  EXPECT_EQ(text(classes()), layers + " Pool Linear Norm Linear");
  EXPECT_EQ(all<Pool>(classes())[0].kind, PoolKind::last);
  EXPECT_EQ(all<Linear>(classes()).end()[-2].activation, Activation::gelu);
  head = {.what = Classifies::late, .pooling = PoolKind::mean, .dense = DenseBefore::texts};
  const Program late = classes();
  EXPECT_EQ(text(late), layers + " Linear Linear Pool");
  EXPECT_EQ(slot(late, all<Linear>(late).back().out.slot).rows, Rows::tokens);
  EXPECT_EQ(slot(late, late.output).rows, Rows::segments);
  EXPECT_EQ(width(late, late.output), tiny::kLabels);
  head = {.what = Classifies::tokens, .dense = DenseBefore::texts};
  const Program each = classes();
  EXPECT_EQ(text(each), layers + " Linear Linear");
  EXPECT_EQ(slot(each, each.output).rows, Rows::tokens);
  EXPECT_EQ(width(each, each.output), tiny::kLabels);
}

TEST(Programs, AConvertedClassifierWithoutItsDenseLayerSaysSo) {
  tiny::Model m = tiny::make("bert.gguf");
  m.tensors.push_back({"cls.output.weight", {tiny::kLabels, tiny::kHidden}});
  m.tensors.push_back({"cls.output.bias", {tiny::kLabels}});
  const Loaded bare(m);
  EXPECT_TRUE(text(body_program(bare.d, 0, 2, Output::classes)).ends_with("Norm Pool Linear"));
  ASSERT_EQ(bare.d.incomplete.size(), 1u);
  EXPECT_NE(bare.d.incomplete[0].find("the dense layer before the classifier (cls.weight)"), std::string::npos) << bare.d.incomplete[0];
}

TEST(Programs, DetailsOfTheLayers) {
  const Loaded gemma(tiny::make("gemma3", 4));
  const Program p = body_program(gemma.d, 0, 4, Output::selected);
  const auto attends = all<Attend>(p);
  const auto ropes = all<Rope>(p);  // one of q and one of k in each layer
  const auto stores = all<Store>(p);
  ASSERT_EQ(ropes.size(), 8u);
  ASSERT_EQ(stores.size(), 4u);
  ASSERT_EQ(attends.size(), 4u);
  ASSERT_EQ(p.caches.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const bool windowed = i % 2 == 0;  // sliding_window_pattern is 2
    EXPECT_EQ(attends[i].window, windowed ? 24 : 0);
    EXPECT_EQ(attends[i].cache, static_cast<CacheId>(i));
    EXPECT_EQ(stores[i].cache, attends[i].cache);
    for (const std::size_t at : {2 * i, 2 * i + 1}) EXPECT_EQ(ropes[at].table, gemma.d.config.ropes[windowed ? 1 : 0]);
    EXPECT_EQ(ropes[2 * i].x, attends[i].q);
    EXPECT_EQ(ropes[2 * i + 1].x, stores[i].k);
    EXPECT_EQ(stores[i].k.width, tiny::kKvHeads * tiny::kHeadDim);
    EXPECT_TRUE(attends[i].causal);
    EXPECT_EQ(attends[i].q.width, tiny::kHeads * tiny::kHeadDim);
    EXPECT_EQ(attends[i].kv_heads, tiny::kKvHeads);
    EXPECT_EQ(p.caches[i].heads, tiny::kKvHeads);
    EXPECT_FALSE(attends[i].k);
  }
  const auto norms = all<Norm>(p);
  EXPECT_EQ(norms[1].group, tiny::kHeadDim);  // q is normalised head by head
  EXPECT_EQ(norms[3].out, norms[3].add);      // the branch is normalised, then added to the row
  EXPECT_EQ(all<Embed>(p)[0].scale, gemma.d.config.embedding_scale);
  EXPECT_EQ(all<GatedLinear>(p)[0].activation, Activation::gelu_tanh);

  const Loaded bert(tiny::make("bert"));
  const Program encoder = body_program(bert.d, 0, 2, Output::tokens);
  EXPECT_TRUE(all<Attend>(encoder)[0].k);
  EXPECT_EQ(all<Attend>(encoder)[0].cache, CacheId::none);
  EXPECT_NE(all<Embed>(encoder)[0].positions, MatrixId::none);
  EXPECT_NE(all<Embed>(encoder)[0].types, MatrixId::none);
  const auto linears = all<Linear>(encoder);
  ASSERT_EQ(linears[0].parts.size(), 3u);
  for (const LinearPart& part : linears[0].parts) EXPECT_NE(part.bias, VectorId::none);
  EXPECT_EQ(linears[1].residual, linears[1].out);
  EXPECT_EQ(linears[2].activation, Activation::gelu);
  EXPECT_EQ(all<Norm>(encoder)[0].kind, NormKind::layer);
}

// A body may be cut before any layer. The two programs must fit together, and must have the operations, caches and matrices of the whole.
TEST(Programs, SplitsAtEveryLayer) {
  for (const std::string& name : tiny::every()) {
    SCOPED_TRACE(name);
    constexpr std::size_t layers = 4;
    const Loaded m(tiny::make(name, layers));
    const Output output = m.d.config.has_head ? Output::selected : Output::pooled;
    const Program whole = body_program(m.d, 0, layers, output);
    for (std::size_t cut = 0; cut <= layers; ++cut) {
      const Program first = body_program(m.d, 0, cut, cut == layers ? output : Output::hidden);
      EXPECT_EQ(first.input, -1);
      if (cut == layers) continue;
      EXPECT_EQ(slot(first, first.output).rows, Rows::tokens);
      if (cut == 0) continue;
      const Program second = body_program(m.d, cut, layers, output);
      ASSERT_GE(second.input, 0);
      EXPECT_EQ(width(first, first.output), width(second, second.input));
      EXPECT_EQ(slot(second, second.input).rows, Rows::tokens);
      EXPECT_EQ(text(first) + " " + text(second), text(whole));
      EXPECT_EQ(first.caches.size() + second.caches.size(), whole.caches.size());
      EXPECT_EQ(width(second, second.output), width(whole, whole.output));
      auto names = used_names(m.d, first);
      const auto others = used_names(m.d, second);
      for (const std::string& other : others) EXPECT_TRUE(names.insert(other).second) << other << " is on both sides";
      EXPECT_EQ(names, used_names(m.d, whole));
      for (const auto& attend : all<Attend>(second))
        EXPECT_LT(static_cast<std::int64_t>(attend.cache), static_cast<std::int64_t>(layers - cut));
    }
  }
}

TEST(Programs, UsedMatricesAreThoseOfTheOperations) {
  const Loaded llama(tiny::make("llama"));
  EXPECT_EQ(used_names(llama.d, head_program(llama.d)), (std::set<std::string>{"lm_head.weight"}));
  EXPECT_EQ(used_names(llama.d, log_prob_program(llama.d)), (std::set<std::string>{"lm_head.weight"}));
  EXPECT_EQ(used_names(llama.d, top_program(llama.d)), (std::set<std::string>{"lm_head.weight"}));
  std::set<std::string> layer;
  for (const char* part : {"self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down"}) {
    layer.insert(std::string("model.layers.1.") + part + "_proj.weight");
  }
  EXPECT_EQ(used_names(llama.d, body_program(llama.d, 1, 2, Output::hidden)), layer);
  EXPECT_EQ(used_names(llama.d, body_program(llama.d, 0, 0, Output::hidden)), (std::set<std::string>{"model.embed_tokens.weight"}));
  const Loaded gemma(tiny::make("gemma3"));
  EXPECT_EQ(used_names(gemma.d, head_program(gemma.d)), (std::set<std::string>{"model.embed_tokens.weight"}));

  const Loaded bert(tiny::make("bert"));
  std::set<std::string> every;
  for (const Matrix& matrix : bert.d.weights.matrices) every.insert(matrix.name);
  EXPECT_EQ(used_names(bert.d, body_program(bert.d, 0, 2, Output::classes)), every);
  every.erase("classifier.weight");
  every.erase("bert.pooler.dense.weight");
  EXPECT_EQ(used_names(bert.d, body_program(bert.d, 0, 2, Output::pooled)), every);
}

// The draft head's layer reads the cache that the body's last stage fills for it. Without the head, the body must be the same program but
// for the operations that fill this cache, which come last.
TEST(Programs, TheDraftHeadSharesTheCachesOfTheLastStage) {
  const std::vector<random_models::Variant> variants = random_models::variants();
  const files::testing::TempFolder folder;
  random_models::write(*std::ranges::find(variants, std::string("qwen3_5_hub"), &random_models::Variant::name), folder);
  const auto file = files::ModelFile::open(folder.path());
  const Description with = describe(file, {}), without = describe(file, {.draft = false});
  ASSERT_TRUE(with.config.draft && !without.config.draft);
  ASSERT_EQ(with.sides.size(), 1u);
  EXPECT_EQ(with.sides.front().name().name, "draft head");
  EXPECT_TRUE(without.sides.empty());
  EXPECT_EQ(with.layers.size(), 6u);
  EXPECT_EQ(without.layers.size(), 5u);
  for (const std::size_t first : {0u, 3u}) {
    const Program body = body_program(with, first, 5, Output::selected), plain = body_program(without, first, 5, Output::selected);
    EXPECT_EQ(text(body), text(plain) + " Norm Conv Embed Norm Norm Linear Norm Linear Norm Rope Store");
    ASSERT_EQ(body.caches.size(), plain.caches.size() + 1);
    EXPECT_EQ(body.states.back(), (StateShape{1, 1, 64}));
    for (const bool after_trunk : {true, false}) {
      const Program head = side_program(with, with.sides.front(), first, after_trunk);
      EXPECT_EQ(text(head),
                "Norm Embed Norm Norm Linear Norm Linear Norm Norm Rope Rope Store Attend Multiply Linear Norm GatedLinear Linear");
      EXPECT_EQ(head.caches, body.caches);
      EXPECT_TRUE(head.states.empty());
      EXPECT_EQ(static_cast<std::size_t>(all<Attend>(head).front().cache), body.caches.size() - 1);
      const Vector& norm = with.vector(all<Norm>(head).front().weight);
      EXPECT_EQ(norm.name, after_trunk ? "model.norm.weight" : "mtp.norm.weight");
    }
  }
  EXPECT_EQ(text(side_logits_program(with, with.sides.front())), "Norm Linear");
  for (const Output output : {Output::hidden, Output::tokens, Output::pooled})
    EXPECT_EQ(text(body_program(with, 0, 5, output)), text(body_program(without, 0, 5, output)));
}

}  // namespace
}  // namespace pumice::model
