// Tests of ModelPrograms: each program of a model must be built only once, and the facts recorded with it must be those of the program.
#include "model/model_programs.h"

#include <gtest/gtest.h>

#include <array>

#include <vector>

#include "core/program_check.h"
#include "cpu/norms_before.h"
#include "model/tiny.h"
#include "os/threads.h"

namespace pumice::model {
namespace {

Description described(const std::string& name, std::size_t layers) {
  const tiny::TempFolder folder;
  return describe(tiny::open(tiny::make(name, layers), folder), {});
}

TEST(ModelPrograms, EachIsWrittenOnce) {
  const Description d = described("llama", 3);
  const ModelPrograms programs(d);
  EXPECT_EQ(&programs.body(0, 3, Output::selected), &programs.body(0, 3, Output::selected));
  EXPECT_NE(&programs.body(0, 3, Output::selected), &programs.body(0, 3, Output::hidden));
  EXPECT_NE(&programs.body(0, 3, Output::selected), &programs.body(0, 3, Output::pooled));
  EXPECT_NE(&programs.body(0, 1, Output::hidden), &programs.layer(0));
  // Only the last stage of a body gives the requested output. Earlier stages differ only in whether they keep a past, so bodies with
  // different outputs share them.
  EXPECT_EQ(&programs.body(0, 1, Output::selected), &programs.body(0, 1, Output::hidden));
  EXPECT_EQ(&programs.body(0, 1, Output::pooled), &programs.body(0, 1, Output::tokens));
  EXPECT_NE(&programs.body(0, 1, Output::pooled), &programs.body(0, 1, Output::hidden));
  EXPECT_EQ(programs.body(0, 1, Output::selected).program.caches.size(), 1u);
  EXPECT_TRUE(programs.body(0, 1, Output::pooled).program.caches.empty());
}

TEST(ModelPrograms, MatricesAndWidthsAreThoseOfTheProgram) {
  const Description d = described("llama", 2);
  const ModelPrograms programs(d);
  const auto width = [&](const Program& p, std::int32_t slot) { return slot < 0 ? 0 : p.slots.at(static_cast<std::size_t>(slot)).width; };
  for (const ModelProgram* p : {&programs.body(0, 0, Output::hidden), &programs.body(0, 2, Output::selected), &programs.layer(1),
                                &programs.queries(1), &programs.head(), &programs.log_probs(), &programs.top()}) {
    EXPECT_EQ(p->matrices, check_program(p->program, shapes_of(d.weights)).used) << p->program.name;
    EXPECT_EQ(p->input_width, width(p->program, p->program.input)) << p->program.name;
    EXPECT_EQ(p->output_width, width(p->program, p->program.output)) << p->program.name;
  }
  EXPECT_EQ(programs.body(0, 2, Output::selected).input_width, 0);
  EXPECT_EQ(programs.head().output_width, d.vocab_size);
  EXPECT_EQ(programs.queries(1).attend.key_dim, d.config.layers[1].attention().head_dim);
}

// A backend that folds norms into matrices must find, from the programs alone, which norm comes before each matrix.
TEST(ModelPrograms, ShowWhichNormIsBeforeAMatrix) {
  for (const char* name : {"bert", "llama"}) {
    const Description d = described(name, 3);
    const ModelPrograms programs(d);
    const std::array list = {&programs.body(0, 3, Output::pooled).program};
    const auto norms = cpu::norms_before(list, d.weights.matrices.size());
    const auto before = [&](std::size_t layer, Role role) { return norms.at(static_cast<std::size_t>(d.at(layer, role).matrix)); };
    const auto of = [](const Parameter& norm) { return cpu::NormBefore{norm.vector, norm.bias}; };
    for (std::size_t layer = 0; layer < 3; ++layer) {
      const Layer& l = d.config.layers[layer];
      const Parameter& last = layer == 0 ? d.global(Role::embedding_norm) : d.at(layer - 1, Role::ffn_residual_norm);
      const Parameter& first = l.mixer_norms.before ? d.at(layer, Role::attn_norm) : last;
      for (const Role role : {Role::q, Role::k, Role::v}) EXPECT_EQ(before(layer, role), of(first)) << name << ", layer " << layer;
      EXPECT_EQ(before(layer, Role::up), of(d.at(layer, l.network_norms.before ? Role::ffn_norm : Role::attn_residual_norm))) << name;
      for (const Role role : {Role::attn_out, Role::down}) EXPECT_EQ(before(layer, role), cpu::NormBefore{}) << name;
    }
  }
}

TEST(ModelPrograms, QueriesAndKeysOfALayerLieInOneRow) {
  const Description d = described("gemma4", 4);  // its last layers attend to keys of earlier layers
  const ModelPrograms programs(d);
  int shared = 0;
  for (std::size_t layer = 0; layer < d.layers.size(); ++layer) {
    const ModelProgram& p = programs.queries(layer);
    shared += d.config.layers[layer].attention().kv_from ? 1 : 0;
    EXPECT_EQ(p.attend.q.slot, p.program.output) << layer;
    EXPECT_EQ(p.attend.k.slot, p.program.output) << layer;
    EXPECT_LE(p.attend.q.col + p.attend.q.width, p.output_width) << layer;
    EXPECT_LE(p.attend.k.col + p.attend.k.width, p.output_width) << layer;
  }
  EXPECT_GT(shared, 0);
}

TEST(ModelPrograms, ThreadsGetTheSame) {
  const Description d = described("llama", 3);
  const ModelPrograms programs(d);
  std::vector<const ModelProgram*> found(8);
  {
    std::vector<os::Thread> threads;
    for (auto& each : found) threads.emplace_back([&] { each = &programs.body(0, 3, Output::selected); });
  }
  for (const ModelProgram* each : found) EXPECT_EQ(each, found.front());
}

}  // namespace
}  // namespace pumice::model
