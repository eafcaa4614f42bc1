#include "model/rope.h"

#include <algorithm>
#include <cmath>

namespace pumice::model {
namespace {

constexpr double kTwoPi = 2 * 3.14159265358979323846;

struct RopeScaling {
  // `type` is the kind of scaling. `where` is the key that has it, for error messages.
  std::string type = "default", where;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4, beta_fast = 32, beta_slow = 1;
  double original_context = 0;
  double context = 0;    // number of positions of the model according to the file; dynamic scaling increases it
  double magnitude = 1;  // number that multiplies the rotated columns, for YaRN and longrope
  // Factors of longrope: short_factors for texts of at most original_context tokens, long_factors for longer texts.
  std::vector<double> short_factors, long_factors;
  bool truncate = true;  // true: YaRN's ramp begins and ends at whole dimensions
};

// Returns the frequencies, each divided by its own factor, for longrope (Ding et al. 2024, who find the factors by a search).
std::vector<float> divided(const Reader& read, double theta, std::int32_t dims, const std::vector<double>& factors, const char* name) {
  std::vector<float> inv_freq(static_cast<std::size_t>(dims / 2));
  if (factors.size() != inv_freq.size()) {
    read.unsupported("rope scaling longrope has ", factors.size(), " ", name, " values for ", inv_freq.size(), " frequencies");
  }
  for (std::size_t j = 0; j < inv_freq.size(); ++j) {
    if (!(factors[j] > 0)) read.unsupported("rope scaling longrope: ", name, "[", j, "] is ", factors[j]);
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(dims);
    inv_freq[j] = 1.0f / (static_cast<float>(factors[j]) * static_cast<float>(std::pow(theta, static_cast<double>(exponent))));
  }
  return inv_freq;
}

// Computes inv_freq[j] = theta^(-2j/dims), and then applies the scaling `s`. Rounds to float32 at the same steps as transformers.
RopeTable scaled_rope(const Reader& read, double theta, std::int32_t dims, const RopeScaling& s, bool interleaved) {
  RopeTable rope{.inv_freq = std::vector<float>(static_cast<std::size_t>(dims / 2)), .interleaved = interleaved};
  for (std::int32_t j = 0; j < dims / 2; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(dims);
    rope.inv_freq[static_cast<std::size_t>(j)] = 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
  }
  if (s.type == "default" || s.type == "none") return rope;
  if (s.type == "dynamic") {
    if (s.factor <= 1) return rope;  // the context is not extended
    rope.original = static_cast<std::int64_t>(s.context);
    rope.base = static_cast<float>(theta);
    rope.growth = static_cast<float>(s.factor);
    return rope;
  }
  if (s.type == "linear") {  // position interpolation (Chen et al. 2023)
    for (float& f : rope.inv_freq) f = static_cast<float>(f / s.factor);
    return rope;
  }
  if (s.type == "llama3") {  // Llama 3.1: long wavelengths are interpolated, short wavelengths are kept, and a ramp joins them
    const double longest = s.original_context / s.low_freq_factor, shortest = s.original_context / s.high_freq_factor;
    for (float& f : rope.inv_freq) {
      const double wavelength = kTwoPi / f;
      if (wavelength < shortest) continue;
      const double smooth = (s.original_context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
      f = static_cast<float>(wavelength > longest ? f / s.factor : (1 - smooth) * f / s.factor + smooth * f);
    }
    return rope;
  }
  // The frequencies of "ntk", unlike those of "dynamic", do not depend on the length of the text (kexue.fm/archives/9706, formula 6; gte
  // "new").
  if (s.type == "ntk") {
    const double first = std::pow(s.factor, -2.0 / dims), step = std::pow(theta * s.factor, -2.0 / dims);
    for (std::int32_t j = 0; j < dims / 2; ++j) rope.inv_freq[static_cast<std::size_t>(j)] = static_cast<float>(first * std::pow(step, j));
    return rope;
  }
  if (s.type == "yarn") {  // YaRN (Peng et al. 2023)
    const auto turns_at = [&](double turns) { return dims * std::log(s.original_context / (turns * kTwoPi)) / (2 * std::log(theta)); };
    const double first = turns_at(s.beta_fast), last = turns_at(s.beta_slow);
    const double low = std::max(s.truncate ? std::floor(first) : first, 0.0);
    const double end = std::min(s.truncate ? std::ceil(last) : last, dims - 1.0);
    // If both ends of the ramp are equal, or are in the wrong order, llama.cpp makes the ramp 0.001 long. transformers does so only if they
    // are equal.
    const double high = end == low || (read.gguf() && end < low) ? low + 0.001 : end;
    for (std::int32_t j = 0; j < dims / 2; ++j) {
      const double ramp = std::min(std::max((j - low) / (high - low), 0.0), 1.0);
      float& f = rope.inv_freq[static_cast<std::size_t>(j)];
      f = static_cast<float>(f / s.factor * ramp + f * (1 - ramp));
    }
    rope.magnitude = static_cast<float>(s.magnitude);
    return rope;
  }
  if (s.type == "longrope") {
    rope.magnitude = static_cast<float>(s.magnitude);
    const bool goes_beyond = s.original_context < s.context;
    if (goes_beyond) rope.original = std::max<std::int64_t>(1, static_cast<std::int64_t>(s.original_context));
    if (read.gguf()) {  // in GGUF the factors are tensors; divide_by_rope_factors() applies them
      if (goes_beyond) rope.long_inv_freq = rope.inv_freq;
      return rope;
    }
    rope.inv_freq = divided(read, theta, dims, s.short_factors, "short_factor");
    if (goes_beyond) rope.long_inv_freq = divided(read, theta, dims, s.long_factors, "long_factor");
    return rope;
  }
  read.unsupported(s.where, ": rope scaling \"", s.type,
                   "\" is not known; this version has linear, dynamic, llama3, ntk, yarn, longrope and proportional");
}

// Returns a rope, after checking that its frequencies are finite. A frequency can be infinite or NaN even if each number in the file is in
// range.
RopeTable make_rope(const Reader& read, double theta, std::int32_t dims, const RopeScaling& s, bool interleaved) {
  RopeTable rope = scaled_rope(read, theta, dims, s, interleaved);
  const auto sound = [](float f) { return f >= 0 && f <= 1e30f; };
  if (!std::ranges::all_of(rope.inv_freq, sound) || !std::ranges::all_of(rope.long_inv_freq, sound) || !sound(rope.magnitude)) {
    throw Error(ErrorKind::model_format, str(read.file().path(), ": rotary base ", theta, " with scaling \"", s.type, "\" by ", s.factor,
                                             " gives frequencies that are not finite"))
        .in_file(read.file().path())
        .at_field("rope_theta");
  }
  return rope;
}

// Reads the scaling of a rope. `at` is the name of the config.json object that has it: "rope_parameters" or
// "rope_parameters.sliding_attention" (transformers 5), or "rope_scaling" (transformers 4).
RopeScaling scaling_at(const Reader& noting, const std::string& at, double n_ctx) {
  const Reader read = noting.quiet();  // say_scaling() writes the notes for GGUF files
  RopeScaling s;
  const bool gguf = read.gguf();
  auto type = read.string("rope.scaling.type", at + ".rope_type");
  s.where = read.key("rope.scaling.type", at + ".rope_type");
  if (!type && !gguf) {
    type = read.string("", at + ".type");
    s.where = read.key("", at + ".type");
  }
  if (!type && !gguf && read.has("", at + ".rope_type") && read.has("", at + ".factor")) read.missing(read.key("", at + ".rope_type"));
  s.type = type.value_or(gguf ? "linear" : "default");  // llama.cpp takes a factor without a type as linear
  s.context = n_ctx;
  const auto factors = [&](const char* key) {
    return (gguf ? std::nullopt : read.file().number_list(read.key("", at + key))).value_or(std::vector<double>{});
  };
  s.short_factors = factors(".short_factor");
  s.long_factors = factors(".long_factor");
  // "su" is an older name of longrope (Phi-3). GGUF files do not have the name longrope, but they have the tensors of its factors.
  const bool tensors = gguf && (read.file().find("rope_factors_short.weight") || read.file().find("rope_factors_long.weight"));
  if (s.type == "su" || !s.short_factors.empty() || tensors) s.type = "longrope";
  // For tokens of text, mrope is a plain rope, because the positions of all its sections are equal (Qwen2-VL).
  if (s.type == "mrope") s.type = "default";
  // With Hunyuan's key alpha, the type "dynamic" means that the base is multiplied by the same number for texts of all lengths
  // (RopeDefaults::stretch).
  if (s.type == "dynamic" && read.number("", at + ".alpha")) s.type = "default";
  const double stated = read.positive("", "original_max_position_embeddings", n_ctx);  // Phi-3 has this key outside of `at`
  s.original_context = read.positive("rope.scaling.original_context_length", at + ".original_max_position_embeddings", stated);
  const bool must_say = !gguf && (s.type == "linear" || s.type == "llama3");
  // rope.scale_linear is the older name of rope.scaling.factor, from before GGUF had types of scaling.
  const double otherwise = gguf ? read.positive("rope.scale_linear", "", 1) : s.type == "yarn" ? n_ctx / s.original_context : 1;
  s.factor = read.positive("rope.scaling.factor", at + ".factor", must_say ? std::nullopt : std::optional(otherwise));
  for (const char* key : {".low_freq_factor", ".high_freq_factor"})
    if (s.type == "llama3" && !gguf && !read.number("", at + key)) read.missing(read.key("", at + key));
  s.low_freq_factor = read.positive("", at + ".low_freq_factor", 1);
  s.high_freq_factor = read.positive("", at + ".high_freq_factor", 4);
  s.beta_fast = read.positive("rope.scaling.yarn_beta_fast", at + ".beta_fast", 32);
  s.beta_slow = read.positive("rope.scaling.yarn_beta_slow", at + ".beta_slow", 1);
  s.truncate = gguf || read.flag("", at + ".truncate", true);
  // The magnitude is that of Peng et al. 2023, section 3.4, unless the file has other numbers. A file can have the magnitude itself
  // (transformers) or a factor of the paper's magnitude (llama.cpp). It can also have mscale and mscale_all_dim (DeepSeek). The magnitude
  // is then paper(mscale) / paper(mscale_all_dim).
  const auto paper = [&](double scale) { return s.factor > 1 ? 0.1 * scale * std::log(s.factor) + 1 : 1; };
  const auto part_at = [&](const std::string& key) {  // 0 means the same as a missing key, as in transformers (Hunyuan's mscale_all_dim)
    const double part = read.number("", at + key).value_or(0);
    if (!(part >= 0 && part < 1e30)) read.bad_number(read.key("", at + key), part, "0 (none) or a positive number below 1e30");
    return part;
  };
  const double part = part_at(".mscale"), all = part_at(".mscale_all_dim");
  s.magnitude = part > 0 && all > 0 ? paper(part) / paper(all) : paper(1);
  // yarn_log_multiplier has the value of mscale_all_dim in GGUF files of Ministral 3. In those of DeepSeek it has a tenth of this value,
  // and read_ropes() replaces the magnitude computed here.
  if (gguf && read.has("rope.scaling.yarn_log_multiplier", "")) {
    s.magnitude = paper(1) / paper(read.positive("rope.scaling.yarn_log_multiplier", ""));
  }
  if (s.type == "longrope") {
    const double scale = read.number("", at + ".factor").value_or(n_ctx / s.original_context);
    s.magnitude = scale > 1 ? std::sqrt(1 + std::log(scale) / std::log(s.original_context)) : 1;
    if (gguf) s.magnitude = 1;  // in GGUF the key attn_factor has the whole magnitude
  }
  if (const auto stated = read.number("rope.scaling.attn_factor", at + ".attention_factor")) {
    if (!(*stated >= 0 && *stated < 1e30))
      read.bad_number(read.key("rope.scaling.attn_factor", at + ".attention_factor"), *stated, "0 or a positive number below 1e30");
    s.magnitude = gguf ? s.magnitude * *stated : *stated;
  }
  if (s.type == "llama3" && !(s.high_freq_factor > s.low_freq_factor)) {
    read.unsupported("rope scaling llama3 needs high_freq_factor (", s.high_freq_factor, ") > low_freq_factor (", s.low_freq_factor, ")");
  }
  return s;
}

std::int32_t columns_of(const RopeTable& rope) { return static_cast<std::int32_t>(2 * rope.inv_freq.size()); }

// Notes the GGUF file's keys and tensors for a scaling. The tensors have one divisor per frequency. `dims` is the number of rotated
// columns.
void say_scaling(const Reader& read, const std::string& at, const RopeScaling& s, const RopeDefaults& defaults, double theta,
                 std::int32_t dims) {
  if (s.type == "linear" || s.type == "yarn" || s.type == "longrope") read.gguf_says("rope.scaling.type", s.type);
  if (s.type == "linear" || s.type == "yarn") read.gguf_says("rope.scaling.factor", s.factor);
  const bool says_original = read.has("", at + ".original_max_position_embeddings") || read.has("", "original_max_position_embeddings");
  if ((s.type == "yarn" && says_original) || s.type == "longrope")
    read.gguf_says("rope.scaling.original_context_length", static_cast<std::int64_t>(std::min(s.original_context, 1e15)));
  if (s.type == "yarn" && defaults.gguf_ramp) {
    read.gguf_says("rope.scaling.yarn_beta_fast", s.beta_fast);
    read.gguf_says("rope.scaling.yarn_beta_slow", s.beta_slow);
  }
  const auto all = read.number("", at + ".mscale_all_dim");
  if (defaults.magnitude_in_scores && all) read.gguf_says("rope.scaling.yarn_log_multiplier", 0.1 * *all);
  const auto divisors = [](const std::vector<double>& factors) { return std::vector<float>(factors.begin(), factors.end()); };
  if (s.type == "longrope" && defaults.gguf_longrope) {
    if (read.notes() && s.long_factors.empty()) read.missing(read.key("", at + ".long_factor"));
    if (read.notes() && s.short_factors.empty()) read.missing(read.key("", at + ".short_factor"));
    read.gguf_says("rope.scaling.attn_factor", s.magnitude);
    read.gguf_has("rope_factors_long.weight", divisors(s.long_factors));
    read.gguf_has("rope_factors_short.weight", divisors(s.short_factors));
  }
  if (s.type != "llama3") return;
  std::vector<double> ramp;
  for (std::int32_t j = 0; j < dims; j += 2) {
    const double wavelength = kTwoPi * std::pow(theta, static_cast<double>(j) / dims);
    const double turns = s.original_context / wavelength;
    const double smooth = std::clamp((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0, 1.0);
    ramp.push_back(1 / ((1 - smooth) / s.factor + smooth));
  }
  read.gguf_has("rope_freqs.weight", divisors(ramp));
}

// Returns how many columns of a head are rotated. `otherwise` is the default for the fraction of rotated columns. If `otherwise` is 0, all
// columns are rotated, even if config.json has partial_rotary_factor, because transformers ignores this key in such families (Llama).
std::int32_t rotary_dims(const Reader& read, const char* gguf_key, const std::string& at, std::int32_t head_dim, double otherwise) {
  const auto said = [&](const std::string& key, double or_else) { return read.number("", key).value_or(or_else); };
  const double partial = otherwise > 0 ? said(at + ".partial_rotary_factor", said("partial_rotary_factor", otherwise)) : 1;
  if (!(partial > 0 && partial <= 1)) {
    const std::string inner = at + ".partial_rotary_factor";
    read.unsupported(read.key("", read.has("", inner) ? inner : "partial_rotary_factor"), " is ", partial, "; it must lie between 0 and 1");
  }
  // If a GGUF file lacks `gguf_key`, all columns of a head are rotated, whatever the default of the family's configuration class is.
  const std::int64_t turned = read.gguf() ? head_dim : static_cast<std::int64_t>(head_dim * partial) / 2 * 2;
  if (turned == 0) read.unsupported("partial_rotary_factor ", partial, " of head_dim ", head_dim, " leaves nothing to rotate");
  const std::int32_t dims = read.size(gguf_key, "", head_dim, turned);
  if (dims % 2 != 0) read.unsupported("an odd number of rotary dimensions (", dims, ")");
  return dims;
}

// Returns `whole`, the rope of a whole head, with only the first `dims` / 2 frequencies. The others are set to 0, so that the other pairs
// of columns are not rotated (Gemma 4).
RopeTable proportional(RopeTable whole, std::int32_t dims) {
  std::fill(whole.inv_freq.begin() + dims / 2, whole.inv_freq.end(), 0.0f);
  return whole;
}

struct RopePlace {
  const char* gguf_key;  // GGUF key for the number of rotated columns
  std::string at;        // config.json's object with the settings of the rope
  std::int32_t head_dim;
};

RopeTable rope_at(const Reader& read, const RopePlace& place, double theta, const RopeScaling& s, const RopeDefaults& defaults) {
  const double partial = s.type == "proportional" && defaults.partial == 0 ? 1 : defaults.partial;
  const std::int32_t dims = rotary_dims(read, place.gguf_key, place.at, place.head_dim, partial);
  read.gguf_says(place.gguf_key, std::int64_t{dims});
  if (s.type != "proportional") return make_rope(read, theta, dims, s, defaults.interleaved);
  RopeScaling linear{.where = s.where};
  if (s.factor != 1) linear.type = "linear", linear.factor = s.factor;
  return proportional(make_rope(read, theta, place.head_dim, linear, defaults.interleaved), dims);
}

// Returns the head_dim of the layers with a window (windowed = true) or without one (windowed = false). If the model has no such layer,
// returns the head_dim of the first layer that has attention. For latent attention, returns rope_dim.
std::int32_t head_dim_of(const Config& c, bool windowed) {
  for (const Layer& layer : c.layers) {
    const Attention* a = layer.if_attention();
    if (a && (a->window > 0 || layer.windowed) == windowed) return a->head_dim;
  }
  if (c.first_attention()) return c.first_attention()->head_dim;
  const auto latent = std::ranges::find_if(c.layers, [](const Layer& layer) { return layer.if_latent_attention() != nullptr; });
  return latent->if_latent_attention()->rope_dim;
}

// Returns the value of a GGUF file's key yarn_log_multiplier, in which llama.cpp's converter stores mscale_all_dim. Returns nothing for a
// folder, or if the file lacks the key.
std::optional<double> log_multiplier(const Reader& read) {
  return read.gguf() ? read.number("rope.scaling.yarn_log_multiplier", "") : std::nullopt;
}

RopeDefaults in_kind_of_file(const Config& c, RopeDefaults defaults) {
  defaults.interleaved = defaults.interleaved || (c.gguf && c.family->pairs_in_gguf);
  return defaults;
}

// Returns the name of the config.json object with the rope settings of all layers. If layers with a window have settings of their own,
// returns the name of the object for the other layers.
std::string rope_object(const Reader& read) {
  const auto object = [&](const char* name) { return !read.gguf() && read.object(read.key("", name)); };
  if (!object("rope_parameters")) return "rope_scaling";
  return object("rope_parameters.full_attention") ? "rope_parameters.full_attention" : "rope_parameters";
}

}  // namespace

std::int64_t stretched_context(const Reader& read, std::int64_t n_ctx) {
  const RopeScaling s = scaling_at(read, rope_object(read), static_cast<double>(n_ctx));
  if (s.type != "dynamic" || s.factor <= 1) return n_ctx;
  return static_cast<std::int64_t>(std::min(static_cast<double>(n_ctx) * s.factor, static_cast<double>(kMaxContext)));
}

void say_sections(const Reader& read, const std::vector<std::int64_t>& otherwise) {
  if (!read.notes()) return;
  auto sections = read.file().integer_list(read.key("", rope_object(read) + ".mrope_section")).value_or(otherwise);
  if (sections.empty()) return;
  sections.push_back(0);
  read.gguf_says("rope.dimension_sections", std::move(sections));
}

double score_magnitude(const Reader& read, const Config& c) {
  const std::string at = rope_object(read);
  const RopeScaling s = scaling_at(read, at, static_cast<double>(c.n_ctx));
  if (s.type == "default" || s.factor <= 1) return 1;
  const double all = c.gguf ? 10 * log_multiplier(read).value_or(0) : read.number("", at + ".mscale_all_dim").value_or(0);
  return 0.1 * all * std::log(s.factor) + 1;
}

void read_ropes(const Reader& read, Config& c, const RopeDefaults& of_family) {
  const RopeDefaults defaults = in_kind_of_file(c, of_family);
  const auto object = [&](const char* name) { return !c.gguf && read.object(read.key("", name)); };
  if (std::ranges::all_of(c.layers, [](const Layer& layer) { return layer.attention_heads() == 0; })) return;
  const std::string full = rope_object(read);
  const bool per_type = full == "rope_parameters.full_attention", scaled = object("rope_scaling");
  // Throws if the key exists and its value is not an object.
  object("rope_parameters.sliding_attention");
  // Returns the rope base for layers whose rope object in config.json has no rope_theta.
  const auto otherwise = [&](const char* key, double value) { return defaults.by_kind ? value : read.positive("", key, value); };
  const double theta = read.positive("rope.freq_base", full + ".rope_theta", otherwise("rope_theta", defaults.theta));
  const std::int32_t head_dim = head_dim_of(c, false), of_windowed = head_dim_of(c, true);
  const auto said = static_cast<double>(c.n_ctx);
  RopeScaling scaling = scaling_at(read, full, said);
  if (c.gguf) scaling.truncate = defaults.gguf_truncates;
  if (defaults.magnitude_in_scores && log_multiplier(read)) scaling.magnitude = read.number("rope.scaling.attn_factor", "").value_or(1);
  RopeDefaults of_full = defaults;
  if (defaults.proportional > 0 && !c.gguf && !object("rope_parameters") && !scaled) {
    scaling.type = "proportional";
    of_full.partial = defaults.proportional;
  }
  const double stretched = theta * defaults.stretch;
  c.ropes = {rope_at(read, {"rope.dimension_count", full, head_dim}, stretched, scaling, of_full)};
  read.gguf_says("rope.freq_base", stretched);
  say_scaling(read, full, scaling, defaults, stretched, columns_of(c.ropes.front()));
  for (Layer& layer : c.layers) {
    if (Attention* a = layer.if_attention()) a->rope = 0;
    if (LatentAttention* t = layer.if_latent_attention()) t->rope = 0;
  }
  c.n_ctx = stretched_context(read, c.n_ctx);
  if (defaults.window_theta == 0) return;
  // Layers with a window have a base of their own. Their rope is scaled only if their own object in config.json has a scaling.
  const std::string local = "rope_parameters.sliding_attention";
  const double base = read.positive("rope.freq_base_swa", local + ".rope_theta", otherwise("rope_local_base_freq", defaults.window_theta));
  const bool own = of_windowed != head_dim || read.has("rope.dimension_count_swa", "");
  const char* const columns = own ? "rope.dimension_count_swa" : "rope.dimension_count";
  RopeDefaults of_window = defaults;
  if (defaults.window_partial > 0) of_window.partial = defaults.window_partial;
  c.ropes.push_back(
      rope_at(read.quiet(), {columns, local, of_windowed}, base, per_type ? scaling_at(read, local, said) : RopeScaling{}, of_window));
  for (Layer& layer : c.layers) {
    if (Attention* a = layer.if_attention()) a->rope = a->window > 0 || layer.windowed ? 1 : 0;
  }
}

void read_layer_ropes(const Reader& read, Config& c, const RopeDefaults& of_family, const std::vector<double>& thetas) {
  const RopeDefaults defaults = in_kind_of_file(c, of_family);
  const std::string full = rope_object(read);
  const RopeScaling scaling = scaling_at(read, full, static_cast<double>(c.n_ctx));
  const RopePlace place{"rope.dimension_count", full, c.layers.front().attention().head_dim};
  std::vector<double> bases;  // bases[i] is the base of c.ropes[i]
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    if (thetas[i] == 0) continue;
    const auto known = std::ranges::find(bases, thetas[i]);
    c.layers[i].attention().rope = static_cast<std::int32_t>(known - bases.begin());
    if (known != bases.end()) continue;
    bases.push_back(thetas[i]);
    c.ropes.push_back(rope_at(read, place, thetas[i], scaling, defaults));
  }
  if (!bases.empty()) say_scaling(read, full, scaling, defaults, bases.front(), columns_of(c.ropes.front()));
  c.n_ctx = stretched_context(read, c.n_ctx);
}

}  // namespace pumice::model
