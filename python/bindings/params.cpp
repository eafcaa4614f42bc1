#include "params.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.h"
#include "engine/settings.h"
#include "gil.h"

namespace py = pybind11;

namespace pumice::bindings {
namespace {

using Bound = py::class_<GenerateParams>;

// Returns the type and the repr of a value for an error message, for example "str 'hot'".
std::string shown(const py::handle& value) {
  constexpr std::size_t kMost = 200;
  std::string text = std::string(Py_TYPE(value.ptr())->tp_name);
  try {
    const std::string digits = repr_of(value);
    text += " " + digits.substr(0, kMost) + (digits.size() > kMost ? "..." : "");
  } catch (const py::error_already_set& error) {
    // repr() has failed, for example for an int of more than 4300 digits, so the result is only the type.
    if (!error.matches(PyExc_Exception)) throw;
  }
  return text;
}

double real(std::string_view name, const py::handle& value) {
  const double number = PyBool_Check(value.ptr()) ? -1.0 : ends_with_python([&] { return PyFloat_AsDouble(value.ptr()); });
  const bool failed = PyErr_Occurred() != nullptr;
  if (failed && PyErr_ExceptionMatches(PyExc_OverflowError)) {
    PyErr_Clear();
    fail(ErrorKind::invalid_argument, name, " is out of range: it is a whole number beyond 1e308");
  }
  if (failed || PyBool_Check(value.ptr())) {
    if (failed) drop_error();
    fail(ErrorKind::wrong_type, name, " must be a number, not ", shown(value));
  }
  return number;
}

py::object whole(std::string_view name, const py::handle& value) {
  PyObject* number = PyBool_Check(value.ptr()) ? nullptr : ends_with_python([&] { return PyNumber_Index(value.ptr()); });
  if (!number) {
    if (PyErr_Occurred()) drop_error();
    fail(ErrorKind::wrong_type, name, " must be an integer, not ", shown(value));
  }
  return py::reinterpret_steal<py::object>(number);
}

// Returns an int as a double. If its magnitude is too large for a double, returns infinity, even for a negative int.
double as_double(const py::object& whole) {
  const double number = PyLong_AsDouble(whole.ptr());
  if (!PyErr_Occurred()) return number;
  PyErr_Clear();
  return std::numeric_limits<double>::infinity();
}

// Returns the digits of an int for an error message. Returns "" if the int has more than 4300 digits, which Python refuses to write.
std::string digits_of(const py::object& whole) {
  constexpr std::size_t kMost = 40;
  try {
    const std::string digits = repr_of(whole);
    return digits.substr(0, kMost) + (digits.size() > kMost ? "..." : "");
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
    return "";
  }
}

template <class Number>
Number in_range(std::string_view name, const py::handle& value, const engine::Range& range) {
  if constexpr (std::is_same_v<Number, float>) {
    const double number = real(name, value);
    engine::check_range(name, number, range);
    // If the number is above range.low, but the nearest float is range.low, the next larger float is taken. Otherwise a later check could
    // refuse the number with a message about range.low. Or range.low could have a special meaning, such as max_seconds=0, which means no
    // limit of time.
    const auto held = static_cast<float>(number), low = static_cast<float>(range.low);
    return number > range.low && held <= low ? std::nextafter(low, std::numeric_limits<float>::infinity()) : held;
  } else {
    const py::object number = whole(name, value);
    int overflow = 0;
    const long long found = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
    const double about = overflow == 0 ? static_cast<double>(found) : as_double(number);
    engine::check_range(name, about, range, engine::within(about, range) ? "" : digits_of(number));
    return static_cast<Number>(found);
  }
}

// Defines a property of GenerateParams for each of `settings`. part(params) returns the struct that has these settings as members.
template <class Params, class Part>
void bind_numbers(Bound& bound, std::span<const engine::Setting<Params>> settings, Part part) {
  for (const engine::Setting<Params>& setting : settings) {
    std::visit(
        [&]<class Number>(Number Params::* member) {
          bound.def_property(
              setting.name,
              [=](GenerateParams& params) {
                if constexpr (std::is_same_v<Number, float>) {
                  return engine::shortest(part(params).*member);
                } else {
                  return part(params).*member;
                }
              },
              [=](GenerateParams& params, const py::object& value) {
                part(params).*member = in_range<Number>(setting.name, value, setting.range);
              });
        },
        setting.member);
  }
}

std::map<std::int32_t, double> logit_bias(const GenerateParams& params) {
  std::map<std::int32_t, double> result;
  for (const auto& [id, bias] : params.engine.sampling.logit_bias) result[id] = engine::shortest(bias);
  return result;
}

void set_logit_bias(GenerateParams& params, const py::dict& given) {
  std::map<std::int32_t, float> found;
  for (const auto& [id, value] : given) {
    const auto token = id.cast<std::int32_t>();
    const double bias = real("logit_bias[" + std::to_string(token) + "]", value);
    engine::check_bias(token, bias);
    found[token] = static_cast<float>(bias);
  }
  params.engine.sampling.logit_bias.assign(found.begin(), found.end());
}

void set_seed(GenerateParams& params, const py::object& value) {
  std::optional<std::uint64_t>& seed = params.engine.sampling.seed;
  seed.reset();
  if (value.is_none()) return;
  const py::object number = whole("seed", value);
  seed = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred()) {
    PyErr_Clear();
    seed.reset();
    const std::string digits = digits_of(number);
    fail(ErrorKind::invalid_argument, "seed", digits.empty() ? "" : "=", digits,
         " is out of range: it must be at least 0 and at most 18446744073709551615");
  }
}

std::optional<std::int32_t> logprobs(const GenerateParams& params) {
  const std::int32_t count = params.engine.sampling.logprobs;
  return count < 0 ? std::nullopt : std::optional(count);
}

void set_logprobs(GenerateParams& params, const py::object& value) {
  params.engine.sampling.logprobs = value.is_none() ? -1 : in_range<std::int32_t>("logprobs", value, {0, 2147483647});
}

std::optional<std::int64_t> max_reasoning_tokens(const GenerateParams& params) {
  const std::int64_t most = params.engine.max_reasoning_tokens;
  return most < 0 ? std::nullopt : std::optional(most);
}

void set_max_reasoning_tokens(GenerateParams& params, const py::object& value) {
  params.engine.max_reasoning_tokens = value.is_none() ? -1 : in_range<std::int64_t>("max_reasoning_tokens", value, {0, 2147483647});
}

constexpr std::array<std::string_view, 3> kOwnGuesses = {"off", "auto", "on"};  // names of the values of engine::OwnGuesses, in their order

std::string own_guesses(const GenerateParams& params) {
  return std::string(kOwnGuesses.at(static_cast<std::size_t>(params.engine.speculation.own)));
}
void set_own_guesses(GenerateParams& params, const std::string& name) {
  const auto known = std::ranges::find(kOwnGuesses, name);
  if (known == kOwnGuesses.end())
    fail(ErrorKind::invalid_argument, "mtp=\"", name, "\" is not known; there are \"off\", \"auto\" and \"on\"");
  params.engine.speculation.own = static_cast<engine::OwnGuesses>(known - kOwnGuesses.begin());
}

void set_dry_breakers(GenerateParams& params, std::vector<std::int32_t> ids) {
  std::ranges::sort(ids);
  params.engine.sampling.dry_breakers = std::move(ids);
}

// Defines a property of GenerateParams that gets and sets a member of part(params) without conversion.
template <class Part, class Value>
void bind_value(Bound& bound, const char* name, Part part, Value member) {
  bound.def_property(
      name, [=](GenerateParams& params) { return part(params).*member; },
      [=](GenerateParams& params, std::remove_cvref_t<decltype(part(std::declval<GenerateParams&>()).*member)> value) {
        part(params).*member = std::move(value);
      });
}

}  // namespace

void bind_params(py::module_& module) {
  const auto generate = [](GenerateParams& params) -> engine::GenerateParams& { return params.engine; };
  const auto sampling = [](GenerateParams& params) -> engine::SamplingParams& { return params.engine.sampling; };
  const auto speculation = [](GenerateParams& params) -> engine::Speculation& { return params.engine.speculation; };
  Bound bound(module, "GenerateParams");
  bound.def(py::init<>());
  bind_numbers(bound, engine::generate_settings(), generate);
  bind_numbers(bound, engine::sampling_settings(), sampling);
  bind_numbers(bound, engine::speculation_settings(), speculation);
  bind_value(bound, "eos_ids", generate, &engine::GenerateParams::eos_ids);
  bind_value(bound, "stop_ids", generate, &engine::GenerateParams::stop_ids);
  bind_value(bound, "bad_words", generate, &engine::GenerateParams::bad_words);
  bind_value(bound, "reasoning_opened", generate, &engine::GenerateParams::reasoning_opened);
  bind_value(bound, "foreseen", speculation, &engine::Speculation::foreseen);
  bind_value(bound, "always", speculation, &engine::Speculation::always);
  bind_value(bound, "replay", speculation, &engine::Speculation::replay);
  bound.def_property("logit_bias", &logit_bias, &set_logit_bias)
      .def_property("mtp", &own_guesses, &set_own_guesses)
      .def_property(
          "seed", [](const GenerateParams& params) { return params.engine.sampling.seed; }, &set_seed)
      .def_property("logprobs", &logprobs, &set_logprobs)
      .def_property("max_reasoning_tokens", &max_reasoning_tokens, &set_max_reasoning_tokens)
      .def_property(
          "dry_breakers", [](const GenerateParams& params) { return params.engine.sampling.dry_breakers; }, &set_dry_breakers)
      .def_readwrite("grammar", &GenerateParams::grammar)
      .def_readwrite("reasoning", &GenerateParams::reasoning)
      .def_readwrite("draft", &GenerateParams::draft)
      .def_readwrite("logits_processor", &GenerateParams::logits_processor)
      .def(
          "check", [](const GenerateParams& params, std::int32_t vocab_size) { engine::check(params.engine, vocab_size); },
          py::arg("vocab_size"));
}

}  // namespace pumice::bindings
