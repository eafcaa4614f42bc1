#include "model/model_programs.h"

#include <utility>

namespace pumice::model {

ModelProgram model_program(Program program, const WeightShapes& shapes) {
  ModelProgram made{.program = std::move(program), .matrices = {}};
  made.matrices = check_program(made.program, shapes).used;
  const auto width = [&](std::int32_t slot) { return slot < 0 ? 0 : made.program.slots[static_cast<std::size_t>(slot)].width; };
  made.input_width = width(made.program.input);
  made.output_width = width(made.program.output);
  return made;
}

ModelPrograms::ModelPrograms(const Description& description, KvFormat kv_format)
    : d_(description), kv_format_(kv_format), shapes_(shapes_of(description.weights)) {}

const ModelProgram& ModelPrograms::get(const Key& key, const std::function<Program(ModelProgram&)>& write) const {
  const std::lock_guard lock(mutex_);
  if (const auto known = known_.find(key); known != known_.end()) return known->second;
  ModelProgram written;
  Program program = write(written);
  program.kv_format = kv_format_;
  ModelProgram made = model_program(std::move(program), shapes_);
  made.attend = written.attend;
  made.inputs = std::move(written.inputs);
  return known_.emplace(key, std::move(made)).first->second;
}

const ModelProgram& ModelPrograms::body(std::size_t first, std::size_t last, Output output) const {
  // Stages before the last one always return hidden rows. For these stages, `output` only decides whether they have caches.
  if (last < d_.config.layers.size()) output = output == Output::hidden || output == Output::selected ? Output::hidden : Output::tokens;
  return get({Kind::body, first, last, output}, [&](ModelProgram&) { return body_program(d_, first, last, output); });
}

const ModelProgram& ModelPrograms::layer(std::size_t layer) const {
  return get({Kind::layer, layer, layer + 1, Output::tokens}, [&](ModelProgram&) { return layer_program(d_, layer); });
}

const ModelProgram& ModelPrograms::queries(std::size_t layer) const {
  return get({Kind::queries, layer, layer + 1, Output::tokens}, [&](ModelProgram& made) { return query_program(d_, layer, made.attend); });
}

const ModelProgram& ModelPrograms::products(std::size_t layer) const {
  return get({Kind::products, layer, layer + 1, Output::tokens},
             [&](ModelProgram& made) { return product_program(d_, shapes_, layer, made.inputs); });
}

const ModelProgram& ModelPrograms::side(std::size_t side, std::size_t first, bool after_trunk) const {
  return get({after_trunk ? Kind::side_first : Kind::side_next, side, first, Output::hidden},
             [&](ModelProgram&) { return side_program(d_, d_.sides[side], first, after_trunk); });
}

const ModelProgram& ModelPrograms::side_logits(std::size_t side) const {
  return get({Kind::side_logits, side, 0, Output::hidden}, [&](ModelProgram&) { return side_logits_program(d_, d_.sides[side]); });
}

const ModelProgram& ModelPrograms::head() const {
  return get({Kind::head, 0, 0, Output::hidden}, [&](ModelProgram&) { return head_program(d_); });
}

const ModelProgram& ModelPrograms::log_probs() const {
  return get({Kind::log_probs, 0, 0, Output::hidden}, [&](ModelProgram&) { return log_prob_program(d_); });
}

const ModelProgram& ModelPrograms::top() const {
  return get({Kind::top, 0, 0, Output::hidden}, [&](ModelProgram&) { return top_program(d_); });
}

}  // namespace pumice::model
