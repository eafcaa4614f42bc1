// Translates a description to programs. The same code writes the layers of every family.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/program.h"
#include "core/program_check.h"
#include "model/description.h"

namespace pumice::model {

// The result of a body's last stage.
//   hidden, selected: rows of all tokens, or of the selected tokens, before the final norm; decoders store keys and values in caches
//   tokens, pooled: one row per token, or one per segment, after the modules; the input is whole texts, and there are no caches
//   sparse: one row per segment, which has for each token of the vocabulary the largest logit of the MLM head in any row of the segment;
//   the
//     input is whole texts, and there are no caches
//   classes: one row of the classifier's logits per segment, or per token if the classifier labels tokens; the input is whole texts, and
//     there are no caches
enum class Output : std::uint8_t { hidden, selected, tokens, pooled, classes, sparse };
inline constexpr std::size_t kOutputs = 6;

// Returns the program of layers [first, last). The input is ids for the first stage and hidden rows for every other stage. The result is
// `output` for the stage that ends with the model's last layer, and hidden rows for every other stage.
Program body_program(const Description& d, std::size_t first, std::size_t last, Output output);
// Returns the program of one layer, from hidden rows to hidden rows, without caches. For the model's last layer it includes the final norm.
Program layer_program(const Description& d, std::size_t layer);
// Returns the part of layer_program() before attention. Its output rows hold the inputs of Attend. Sets `attend` to the Attend operation
// with views of these rows.
Program query_program(const Description& d, std::size_t layer, Attend& attend);
// What matrices of a layer are multiplied by: columns of the output rows of product_program().
struct ProductInput {
  std::int32_t col = 0, width = 0;
  std::vector<MatrixId> matrices;
};
// Returns layer_program() with further columns behind those of its output rows: the inputs of all Linear and GatedLinear, and of HeadLinear
// whose heads read the same columns, each once. Sets `inputs` to where they are.
Program product_program(const Description& d, const WeightShapes& shapes, std::size_t layer, std::vector<ProductInput>& inputs);
Program head_program(const Description& d);  // from hidden rows to logits
// A side part guesses the token that follows a token. side_program() returns the program of its layers, from ids and hidden rows to hidden
// rows. Each id comes with the hidden row of the position before the id. This is the trunk's row if `after_trunk` is true, and otherwise
// the row of this program after which the id was guessed. `first` is the first layer of the trunk's last stage, whose caches the program
// shares. side_logits_program() returns the program from the side part's rows to logits.
Program side_program(const Description& d, const SidePart& side, std::size_t first, bool after_trunk);
Program side_logits_program(const Description& d, const SidePart& side);
// An end of a model: what follows the trunk's last layer for one kind of result.
struct EndOutput {
  std::string_view name;  // as in the rows of plan()
  Output output;          // the body of the last stage with this output includes the end
};
// Returns the ends of a model beside the head, which is a program of its own: modules, classifier and MLM head, in this order.
std::vector<EndOutput> ends_of(const Description& d);
Program log_prob_program(const Description& d);  // from hidden rows and target ids to log-probabilities

// top_program() computes from hidden rows what sampling needs: the kTopLogits largest logits, and the logits of up to top_reported(vocab)
// reported ids. 64 is more than the usual top_k. The result is about an eighth of all logits, and at most 17 KB per row.
inline constexpr std::int32_t kTopLogits = 64;
constexpr std::int32_t top_reported(std::int32_t vocab) { return std::clamp(vocab / 8, 16, 4096); }
Program top_program(const Description& d);

}  // namespace pumice::model
