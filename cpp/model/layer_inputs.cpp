#include "model/layer_inputs.h"

namespace pumice::model {

void LayerInputsWriter::embed(const View& x) {
  if (!w_.c.layer_inputs) return;
  const LayerInputs& inputs = *w_.c.layer_inputs;
  inputs_ = w_.slot(Rows::tokens, width(0));
  const View projected = w_.slot(Rows::tokens, inputs_.width);
  if (inputs.table) w_.add(Embed{.out = inputs_, .tokens = w_.d.global(Role::inputs_embedding).matrix, .scale = inputs.embedding_scale});
  w_.linear(x, projected, {w_.d.global(Role::inputs_projection)}, {.scale = inputs.projection_scale});
  w_.norm(w_.d.global(Role::inputs_norm), projected, inputs_, inputs.table ? inputs_ : View{}, inputs.width);
}

std::int32_t LayerInputsWriter::width(std::size_t border) const {
  return w_.c.layer_inputs ? w_.c.layer_inputs->width * static_cast<std::int32_t>(w_.c.layers.size() - border) : 0;
}

void LayerInputsWriter::take(const View& columns, std::size_t border) {
  inputs_ = columns;
  first_ = border;
}

View LayerInputsWriter::give(std::size_t border) const {
  return Writer::part(inputs_, inputs_.col + inputs_.width - width(border), width(border));
}

void LayerInputsWriter::write(std::size_t layer, const View& x, const View& h) {
  const LayerInputs& inputs = *w_.c.layer_inputs;
  if (!gate_) gate_ = w_.slot(Rows::tokens, inputs.width);
  const View input = Writer::part(inputs_, inputs_.col + static_cast<std::int32_t>(layer - first_) * inputs.width, inputs.width);
  w_.linear(x, gate_, {w_.d.at(layer, Role::input_gate)});
  w_.add(Multiply{.a = input, .b = gate_, .out = input, .activation = inputs.activation, .scale = inputs.scale});
  w_.linear(input, h, {w_.d.at(layer, Role::input_out)});
  w_.norm(w_.d.at(layer, Role::input_norm), h, x, x);
}

}  // namespace pumice::model
