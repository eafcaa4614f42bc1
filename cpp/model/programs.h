// Writes a model's programs from its Description. The same code writes the layers of every family.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/program.h"
#include "core/program_check.h"
#include "model/description.h"

namespace pumice::model {

// Says what the last stage of a body returns.
//   hidden, selected: rows of all tokens, or of the selected tokens, before the final norm; decoders store keys and values in caches
//   tokens, pooled: one row per token, or one row per segment, after the modules
//   sparse: one row per segment; its columns are, for each token of the vocabulary, the largest MLM logit in any row of the segment
//   classes: one row of the classifier's logits per segment, or one per token if the classifier labels tokens
// With the last four, the input is whole texts and there are no caches.
enum class Output : std::uint8_t { hidden, selected, tokens, pooled, classes, sparse };
inline constexpr std::size_t kOutputs = 6;

// Returns the program of the layers from `first` to `last` - 1. The input is ids if `first` is 0, and otherwise hidden rows. The result is
// `output` if `last` is the number of the model's layers, and otherwise hidden rows.
Program body_program(const Description& d, std::size_t first, std::size_t last, Output output);
// Returns the program of one layer without caches. It computes hidden rows from hidden rows. The program of the model's last layer includes
// the final norm.
Program layer_program(const Description& d, std::size_t layer);
// Returns the part of layer_program() before attention. The columns of its output rows are the inputs of attention. Sets `attend` to the
// layer's Attend operation, with views of these columns as its inputs.
Program query_program(const Description& d, std::size_t layer, Attend& attend);
// The columns in the output rows of product_program() that hold one input of matrix products, and the matrices that multiply this input.
struct ProductInput {
  std::int32_t col = 0, width = 0;
  std::vector<MatrixId> matrices;
};
// Returns layer_program() with additional columns in its output rows. These columns hold the inputs of all Linear and GatedLinear
// operations, and of each HeadLinear whose heads all read the same columns. If several products read the same input, the rows have this
// input only once. Sets `inputs` to the columns of each input.
Program product_program(const Description& d, const WeightShapes& shapes, std::size_t layer, std::vector<ProductInput>& inputs);
Program head_program(const Description& d);  // computes logits from hidden rows
// A side part is a draft head or an assistant, which predicts the token after an id. side_program() returns the program of its layers. The
// program computes hidden rows from ids and, for each id, the hidden row of the previous position. That hidden row is the trunk's if
// `after_trunk` is true, and otherwise the one from which this program predicted the id. `first` is the first layer of the trunk's last
// stage, whose caches the program shares. side_logits_program() returns the program that computes logits from the rows of side_program().
Program side_program(const Description& d, const SidePart& side, std::size_t first, bool after_trunk);
Program side_logits_program(const Description& d, const SidePart& side);
// An end of a model is what follows the trunk's last layer for one kind of result.
struct EndOutput {
  std::string_view name;  // the end's name in the table of plan()
  Output output;          // the last stage's body_program() with this output includes the end
};
// Returns the ends that a model has: first the modules of a sentence-transformers folder (such as Dense), then the classifier, then the MLM
// head. The head for logits is not among them, because it is a program of its own.
std::vector<EndOutput> ends_of(const Description& d);
Program log_prob_program(const Description& d);  // computes log-probabilities from hidden rows and target ids

// top_program() computes the logits that sampling needs from hidden rows. They are the kTopLogits largest logits, and the logits of up to
// top_reported(vocab) ids that the caller chooses (Batch::reported). kTopLogits is greater than the usual top_k. A row of the result has
// about vocab / 8 numbers, and at most 17 KB.
inline constexpr std::int32_t kTopLogits = 64;
constexpr std::int32_t top_reported(std::int32_t vocab) { return std::clamp(vocab / 8, 16, 4096); }
Program top_program(const Description& d);

}  // namespace pumice::model
