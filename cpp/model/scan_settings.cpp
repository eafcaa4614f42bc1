#include "model/scan_settings.h"

#include "core/program_check.h"

namespace pumice::model {
namespace {

// Reads a number that GGUF files must have, and that config.json may lack if there is a default.
std::int32_t size(const Reader& read, const char* gguf_key, const char* json_key, std::int64_t high, std::int32_t otherwise) {
  return read.size(gguf_key, json_key, high, read.gguf() || otherwise == 0 ? std::nullopt : std::optional<std::int64_t>(otherwise));
}

// Reads the width of a head of values. GGUF files have the width of all heads together.
std::int32_t value_dim(const Reader& read, const char* json_key, std::int32_t heads, std::int32_t otherwise) {
  if (!read.gguf()) return size(read, "", json_key, kMaxStateDim, otherwise);
  const std::string where = read.key("ssm.inner_size", "");
  const std::int32_t all = read.size("ssm.inner_size", "", std::int64_t{kMaxHeads} * kMaxStateDim);
  if (all % heads != 0 || all / heads > kMaxStateDim)
    read.unsupported(where, " is ", all, " and ", read.key("ssm.time_step_rank", ""), " is ", heads, ": whole heads of at most ",
                     kMaxStateDim, " columns are needed");
  return all / heads;
}

void check_heads(const Reader& read, const Recurrent& r, const char* heads_key, const char* key_heads_key) {
  if (r.heads % r.key_heads == 0) return;
  read.unsupported(read.key("ssm.time_step_rank", heads_key), " is ", r.heads, " and ", read.key("ssm.group_count", key_heads_key), " is ",
                   r.key_heads, ": heads must share heads of keys evenly");
}

}  // namespace

Recurrent read_delta(const Reader& read, const Config& c, const ScanDefaults& defaults) {
  constexpr const char *kHeads = "linear_num_value_heads", *kKeyHeads = "linear_num_key_heads";
  Recurrent r{.rule = ScanRule::delta};
  r.heads = size(read, "ssm.time_step_rank", kHeads, kMaxHeads, defaults.heads);
  r.key_heads = size(read, "ssm.group_count", kKeyHeads, kMaxHeads, defaults.key_heads);
  r.key_dim = size(read, "ssm.state_size", "linear_key_head_dim", kMaxStateDim, defaults.key_dim);
  r.value_dim = value_dim(read, "linear_value_head_dim", r.heads, defaults.value_dim);
  r.taps = size(read, "ssm.conv_kernel", "linear_conv_kernel_dim", kMaxTaps, defaults.taps);
  check_heads(read, r, kHeads, kKeyHeads);
  r.norm = {.group = r.value_dim, .before_gate = true, .eps = c.eps};
  return r;
}

}  // namespace pumice::model
