#include "calibration.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "engine/calibration.h"
#include "engine/devices.h"
#include "gil.h"
#include "interruptible.h"

namespace py = pybind11;
using namespace py::literals;

namespace pumice::bindings {
namespace {

using engine::Calibration;

Format packed_format(const std::string& name) {
  const std::optional<Format> format = format_from_name(name);
  require(format.has_value(), "format \"", name, "\" is not known");
  return *format;
}

std::vector<std::vector<std::int32_t>> texts_of(const std::vector<py::array>& arrays) {
  std::vector<std::vector<std::int32_t>> texts;
  for (const py::array& array : arrays) {
    const auto ids = ids_of(array);
    texts.emplace_back(ids.begin(), ids.end());
  }
  return texts;
}

std::unique_ptr<Calibration> make(const std::shared_ptr<files::ModelFile>& file, const std::vector<py::array>& seen,
                                  const std::vector<py::array>& held, const std::vector<std::pair<std::string, std::string>>& wanted,
                                  std::optional<int> threads) {
  engine::CalibrationTexts texts{.seen = texts_of(seen), .held = texts_of(held)};
  std::vector<Calibration::Wanted> tensors;
  for (const auto& [tensor, format] : wanted) tensors.push_back({tensor, packed_format(format)});
  engine::LoadOptions options;
  options.device = "cpu";
  options.threads = threads.value_or(0);
  std::unique_ptr<Calibration> made;
  interruptible(
      [&](const Cancel&) { made = std::make_unique<Calibration>(engine::open_devices(options).cpu, file, std::move(texts), tensors); });
  return made;
}

// Calls work(). If `cancel` is given, work() runs on this thread and ends when `cancel` is requested. Otherwise Ctrl-C ends work() (see
// interruptible()).
void cancellable(const std::shared_ptr<Cancel>& cancel, const std::function<void(const Cancel&)>& work) {
  if (!cancel) return interruptible(work);
  const WithoutGil released;
  work(*cancel);
}

py::tuple pack(Calibration& calibration, const std::string& tensor, const std::string& format, const std::shared_ptr<Cancel>& cancel) {
  const Format to = packed_format(format);
  Calibration::Packed packed;
  cancellable(cancel, [&](const Cancel& c) { packed = calibration.pack(tensor, to, c); });
  return py::make_tuple(py::bytes(reinterpret_cast<const char*>(packed.rows.data()), packed.rows.size()), packed.losses.searched,
                        packed.losses.fed_back);
}

py::list products(Calibration& calibration, const std::string& tensor, const std::shared_ptr<Cancel>& cancel) {
  const quantize::Input* input = nullptr;
  cancellable(cancel, [&](const Cancel& c) { input = &calibration.input(tensor, c); });
  py::list out;
  for (std::size_t b = 0; b < input->seen.blocks().size(); ++b) {
    const auto &seen = input->seen.blocks()[b], &held = input->held.blocks()[b];
    out.append(py::make_tuple(seen.first, to_array(seen.sums, seen.cols), to_array(held.sums, held.cols)));
  }
  return out;
}

}  // namespace

void bind_calibration(py::module_& module) {
  py::class_<Calibration>(module, "Calibration")
      .def(py::init(&make), "file"_a, "seen"_a, "held"_a, "wanted"_a, "threads"_a = py::none())
      .def_property_readonly("places", &Calibration::places)
      .def_property_readonly("memory", &Calibration::bytes)
      .def("pack", &pack, "tensor"_a, "format"_a, "cancel"_a = py::none())
      .def("products", &products, "tensor"_a, "cancel"_a = py::none());
}

}  // namespace pumice::bindings
