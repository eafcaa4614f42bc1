#include "model/rope_factors.h"

#include "core/error.h"
#include "model/tensor_errors.h"

namespace pumice::model {
namespace {

void divide(const files::ModelFile& file, const char* tensor, std::vector<float>& inv_freq) {
  const files::TensorInfo* factors = file.find(tensor);
  if (!factors) return;
  if (factors->shape.size() != 1 || factors->shape[0] != static_cast<std::int64_t>(inv_freq.size())) {
    wrong_shape(file, *factors, str("[", inv_freq.size(), "]"));
  }
  require_format(file, *factors);
  const std::vector<float> values = file.read_floats(*factors);
  for (std::size_t j = 0; j < inv_freq.size(); ++j) {
    if (!(values[j] >= 1e-6f)) {
      fail(ErrorKind::model_format, file.path(), ": ", tensor, "[", j, "] is ", values[j], ", which is no sound factor (1 to about 64)");
    }
    inv_freq[j] /= values[j];
  }
}

}  // namespace

void divide_by_rope_factors(const files::ModelFile& file, Config& config) {
  if (!config.gguf || config.ropes.empty()) return;
  const auto require = [&](const char* name) {
    if (!file.find(name)) missing(file, name);
  };
  RopeTable& rope = config.ropes.front();
  for (const char* name : {"rope_freqs.weight", "rope_factors_short.weight"}) divide(file, name, rope.inv_freq);
  if (rope.long_inv_freq.empty()) return;
  for (const char* name : {"rope_factors_short.weight", "rope_factors_long.weight"}) require(name);
  divide(file, "rope_factors_long.weight", rope.long_inv_freq);
}

}  // namespace pumice::model
