#include "model/scan_settings.h"

#include <algorithm>

#include "core/program_check.h"

namespace pumice::model {
namespace {

// Reads the number of columns of a value head. GGUF files have the number of columns of all value heads together.
std::int32_t value_dim(const Reader& read, const char* json_key, std::int32_t heads, std::int32_t otherwise) {
  if (!read.gguf()) return read.size_in_gguf("", json_key, kMaxStateDim, otherwise);
  const std::string where = read.key("ssm.inner_size", "");
  const std::int32_t all = read.size("ssm.inner_size", "", std::int64_t{kMaxHeads} * kMaxStateDim);
  if (all % heads != 0 || all / heads > kMaxStateDim)
    read.unsupported(where, " is ", all, " and ", read.key("ssm.time_step_rank", ""), " is ", heads, ": whole heads of at most ",
                     kMaxStateDim, " columns are needed");
  return all / heads;
}

// Reads the number of columns of a value head of Mamba-2.
std::int32_t ssd_value_dim(const Reader& read, std::int32_t heads, const ScanDefaults& defaults) {
  constexpr const char* kKey = "mamba_d_head";
  if (read.gguf() || defaults.inner == 0) return value_dim(read, kKey, heads, defaults.value_dim);
  const files::Value* said = read.file().value(read.key("", kKey));
  const bool automatic =
      said == nullptr ? !read.has("", kKey) : std::holds_alternative<std::monostate>(*said) || *said == files::Value("auto");
  if (!automatic) return value_dim(read, kKey, heads, 0);
  if (defaults.inner % heads != 0 || defaults.inner / heads > kMaxStateDim)
    read.unsupported(read.key("", "mamba_n_heads"), " is ", heads, " for ", defaults.inner, " columns: whole heads of at most ",
                     kMaxStateDim, " columns are needed");
  return defaults.inner / heads;
}

// Returns one bound of time_step_limit, the lower bound for `end` 0 and the upper bound for `end` 1, or `otherwise` if there is none.
// transformers writes infinity, which means no bound, as an object with the key __float__.
double step_limit(const Reader& read, std::size_t end, double otherwise) {
  const std::string where = read.key("", "time_step_limit");
  const std::string item = str(where, ".", end);
  if (read.file().string(item + ".__float__").value_or("") == "Infinity") return otherwise;
  const files::Value* held = read.file().value(where);
  if (held && std::holds_alternative<files::Nested>(*held)) return read.file().number(item).value_or(otherwise);
  const auto both = read.file().number_list(where);
  if (!both) return otherwise;
  if (both->size() != 2) read.unsupported(where, " has ", both->size(), " values; two are needed");
  return (*both)[end];
}

void refuse_step_limit(const Reader& read) {
  if (read.gguf()) return;  // GGUF files have no key for this limit
  constexpr double kNone = 1e30;
  const double low = step_limit(read, 0, 0), high = step_limit(read, 1, kNone);
  if (low > 0 || high < kNone)
    read.unsupported(read.key("", "time_step_limit"), " [", low, ", ", high, "] (limits of the steps of a state space model) is not run; ",
                     "[0, Infinity] is");
}

// Returns true if all convolutions must have a bias. GGUF files have no key for this. In a GGUF file, all layers must have the bias if one
// layer has it.
bool conv_biases(const Reader& read) {
  if (!read.gguf()) return read.flag("", "mamba_conv_bias", true);
  return std::ranges::any_of(read.file().tensors(),
                             [](const files::TensorInfo& tensor) { return tensor.name.ends_with(".ssm_conv1d.bias"); });
}

void check_heads(const Reader& read, const Recurrent& r, const char* heads_key, const char* key_heads_key) {
  if (r.heads % r.key_heads == 0) return;
  read.unsupported(read.key("ssm.time_step_rank", heads_key), " is ", r.heads, " and ", read.key("ssm.group_count", key_heads_key), " is ",
                   r.key_heads, ": heads must share heads of keys evenly");
}

}  // namespace

Recurrent read_delta(const Reader& read, const Config& c, const ScanDefaults& defaults) {
  constexpr const char *kHeads = "linear_num_value_heads", *kKeyHeads = "linear_num_key_heads";
  Recurrent r{.rule = ScanRule::delta, .delta = DeltaRule{}};
  r.heads = read.size_in_gguf("ssm.time_step_rank", kHeads, kMaxHeads, defaults.heads);
  r.key_heads = read.size_in_gguf("ssm.group_count", kKeyHeads, kMaxHeads, defaults.key_heads);
  r.key_dim = read.size_in_gguf("ssm.state_size", "linear_key_head_dim", kMaxStateDim, defaults.key_dim);
  r.value_dim = value_dim(read, "linear_value_head_dim", r.heads, defaults.value_dim);
  r.taps = read.size_in_gguf("ssm.conv_kernel", "linear_conv_kernel_dim", kMaxTaps, defaults.taps);
  read.gguf_says("ssm.inner_size", std::int64_t{r.value_width()});
  check_heads(read, r, kHeads, kKeyHeads);
  r.norm = {.group = r.value_dim, .before_gate = true, .eps = c.eps};
  return r;
}

Recurrent read_ssd(const Reader& read, const Config& c, const ScanDefaults& defaults) {
  constexpr const char *kHeads = "mamba_n_heads", *kGroups = "mamba_n_groups";
  Recurrent r{.rule = ScanRule::ssd, .activation = read_activation(read, Activation::silu)};
  r.heads = read.size_in_gguf("ssm.time_step_rank", kHeads, kMaxHeads, defaults.heads);
  r.key_heads = read.size_in_gguf("ssm.group_count", kGroups, kMaxHeads, defaults.key_heads);
  r.key_dim = read.size_in_gguf("ssm.state_size", "mamba_d_state", kMaxStateDim, defaults.key_dim);
  r.value_dim = ssd_value_dim(read, r.heads, defaults);
  r.taps = read.size_in_gguf("ssm.conv_kernel", "mamba_d_conv", kMaxTaps, defaults.taps);
  read.gguf_says("ssm.inner_size", std::int64_t{r.value_width()});
  check_heads(read, r, kHeads, kGroups);
  refuse_step_limit(read);
  r.in_bias = r.out_bias = read.flag("", "mamba_proj_bias", false);
  r.conv_bias = conv_biases(read);
  r.norm = {.group = r.value_width() / r.key_heads, .per_column = true, .eps = c.eps};
  return r;
}

}  // namespace pumice::model
