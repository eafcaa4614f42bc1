// Has a function activate_NAME(x, alphas) for each activation of cpp/core/activations.def. Only xielu uses `alphas`. The build makes
// activate(), a switch over these functions (cmake/generate_formats.py). If a function is missing here, the shaders do not compile.
// exp() is not called for an x for which it would overflow, because Vulkan promises nothing about infinities. The comparisons are such that
// exp() is called if x is NaN, so that the result is NaN, too.
float tanh_of(float x) { return abs(x) > 15.0 ? sign(x) : 1.0 - 2.0 / (exp(2.0 * x) + 1.0); }

// Returns c tanh(x / c), or x itself if c is 0.
float soft_capped(float x, float c) { return c > 0 ? c * tanh_of(x / c) : x; }

// Approximates erf(x) with an absolute error below 1.5e-7 (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26).
float erf_of(float x) {
  const float t = 1.0 / (1.0 + 0.3275911 * abs(x));
  const float series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return abs(x) > 6.0 ? sign(x) : sign(x) * (1.0 - series * exp(-x * x));
}

// Returns exp(x) - 1 - x for x <= 0. Near 0 the subtraction would lose all digits, so a series is summed instead. The first term that the
// series leaves out is less than 4e-8 of the result.
float exp_beyond_linear(float x) {
  if (x < -0.5) return exp(x) - 1.0 - x;
  const float series = 1.0 / 720 + x * (1.0 / 5040 + x * (1.0 / 40320));
  return x * x * (0.5 + x * (1.0 / 6 + x * (1.0 / 24 + x * (1.0 / 120 + x * series))));
}

// Returns log(1 + exp(x)) as max(x, 0) + log(1 + y) with y = exp(-|x|). It computes log(1 + y) as 2 atanh(s) with s = y / (2 + y) <= 1/3,
// because 1 + y would lose the digits of a small y. The first term that the series of atanh leaves out is less than 2e-8 of the result.
float softplus_of(float x) {
  const float y = exp(-abs(x)), s = y / (2.0 + y), t = s * s;
  const float series = 1.0 + t * (1.0 / 3 + t * (1.0 / 5 + t * (1.0 / 7 + t * (1.0 / 9 + t * (1.0 / 11 + t * (1.0 / 13))))));
  return (x > 0.0 ? x : 0.0) + 2.0 * s * series;
}

float activate_none(float x, vec2 alphas) { return x; }
float activate_gelu(float x, vec2 alphas) { return 0.5 * x * (1.0 + erf_of(0.70710678 * x)); }
float activate_gelu_tanh(float x, vec2 alphas) { return 0.5 * x * (1.0 + tanh_of(0.79788456 * (x + 0.044715 * x * x * x))); }
float activate_silu(float x, vec2 alphas) { return x < -80.0 ? 0.0 : x / (1.0 + exp(-x)); }
float activate_relu(float x, vec2 alphas) { return x < 0.0 ? 0.0 : x; }
float activate_tanh(float x, vec2 alphas) { return tanh_of(x); }
float activate_relu2(float x, vec2 alphas) { return x < 0.0 ? 0.0 : x * x; }
float activate_sigmoid(float x, vec2 alphas) { return x < -80.0 ? 0.0 : 1.0 / (1.0 + exp(-x)); }
float activate_quick_gelu(float x, vec2 alphas) { return 1.702 * x < -80.0 ? 0.0 : x / (1.0 + exp(-1.702 * x)); }
// alphas.x is used for x > 0, and alphas.y for all other x.
float activate_xielu(float x, vec2 alphas) {
  const float below = x < -1e-6 ? x : -1e-6;
  const float curve = x > 0.0 ? alphas.x * x * x : alphas.y * (exp_beyond_linear(below) + (below - x));
  return curve + 0.5 * x;
}
float activate_softplus(float x, vec2 alphas) { return softplus_of(x); }

#include "activate.glsl"
