// Encodes any number of texts in ragged micro-batches, without padding.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <vector>

#include "core/cancel.h"
#include "engine/runtime.h"

namespace pumice::engine {

// Several texts. Text i is ids[offsets[i] .. offsets[i + 1]). `types` holds a type id for each token, or is empty.
struct Texts {
  std::span<const std::int32_t> ids;
  std::span<const std::int64_t> offsets;  // ascending indices into ids; one more than there are texts
  std::span<const std::int32_t> types;
  std::int32_t prompt = 0;  // number of tokens at the beginning of each text that pooling leaves out
  // For each text, the number of tokens at its end that no token attends to (Segment::unseen). Empty if this number is 0 for all texts.
  std::span<const std::int32_t> unseen = {};
};

using TextsDone = std::function<void(std::int64_t)>;  // called with the number of finished texts, on the thread that called encode()

// Runs the texts, longest first, in micro-batches of at most token_budget tokens (0: the size is chosen automatically). A text longer than
// token_budget runs alone. So memory use depends on the budget and not on the number of texts. If a micro-batch does not fit into a GPU's
// memory, smaller micro-batches are used.
//
// The runtime's pipeline must compute one row per text: a pooled vector or a classifier's logits. Row i of `out`, which has n rows of `d`
// values for n texts, gets the first `d` values of the row of text i. `normalize` scales each row of `out` to length 1, except that a row
// of zeros stays as it is.
void encode(Runtime& runtime, const Texts& texts, std::span<float> out, std::int32_t d, bool normalize, std::int64_t token_budget,
            const TextsDone& progress, const Cancel& cancel);

// One of several encode() calls whose texts run together. If its results contain a NaN, only this call fails, and `error` is set.
struct EncodeCall {
  Texts texts;
  std::span<float> out;
  std::int32_t d = 0;
  bool normalize = false;
  std::exception_ptr error = {};
};
void check_call(const Runtime& runtime, const EncodeCall& call);  // throws if encode() would reject the arguments of the call
// Runs the texts of several calls together. check_call() must have accepted each call. Either all calls have type ids or none has, and
// Texts::prompt is the same in all calls. `turn` counts the calls as waiting until the first run begins. Throws only errors that end all
// calls, such as the loss of a device.
void encode_together(Runtime& runtime, std::span<EncodeCall* const> calls, EncodeCounts::Turn& turn, const Cancel& cancel);

// Sparse vectors of texts in compressed rows (CSR). For each k with offsets[i] <= k < offsets[i + 1], the vector of text i has the value
// values[k] in column indices[k]. Columns are token ids, and they ascend within a text. All values are above 0.
struct SparseRows {
  std::vector<std::int64_t> offsets;  // ascending, beginning with 0; one more than there are texts
  std::vector<std::int32_t> indices;
  std::vector<float> values;
};

// How a text's row of logits (model::Output::sparse) becomes its sparse vector. The row has, for each id of the vocabulary, the largest
// logit over all tokens of the text. A value of the vector is f(max(logit, 0)) with f(x) = log(1 + x) (SPLADE; Formal et al. 2021), or
// f(f(max(logit, 0))) if `logs` is 2. f is computed with log1p() of doubles, so that all instruction sets give the same bits. f(x) grows
// with x, so f may be applied after the maximum over the tokens.
struct SparseCut {
  std::int32_t most = 0;  // number of values that are kept, largest first; of equal values, smaller ids first; 0 keeps all values
  int logs = 1;           // how often f is applied, 1 or 2
};

// Computes the sparse vectors of texts. The runtime must be that of Task::sparse (Model::runtime). A micro-batch has at most kMostPooled
// logits, so that memory use depends on the micro-batches and on the result, and not on the number of texts times the vocabulary.
SparseRows encode_sparse(Runtime& runtime, const Texts& texts, const SparseCut& cut, std::int64_t token_budget, const TextsDone& progress,
                         const Cancel& cancel);

// Computes one row per token and stores the rows in `out` (tokens x width of the pipeline's rows) in the order of the ids. The runtime's
// pipeline must compute one row per token, which is a hidden row or the logits of a token classifier.
void encode_tokens(Runtime& runtime, const Texts& texts, std::span<float> out, const TextsDone& progress, const Cancel& cancel);

}  // namespace pumice::engine
