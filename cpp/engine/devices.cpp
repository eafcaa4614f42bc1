#include "engine/devices.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>

#include "core/fork_lock.h"
#include "cpu/cpu_backend.h"
#include "os/limits.h"
#if PUMICE_VULKAN
#include "vulkan/vulkan_backend.h"
#endif

namespace pumice::engine {
namespace {

// Keeps open backends, so that all callers with the same key get the same backend. A backend is freed when no model uses it any more. If
// the GPU of a backend was lost, get() opens that GPU again. An object of this class is never destroyed.
template <class Key>
class Shared {
 public:
  template <class Make>
  std::shared_ptr<Backend> get(Key key, Make&& make) {
    // If the process forked while another thread held the lock, the child's copy of the map may be half changed. So the child makes a new
    // map, and never uses or frees the old one.
    if (!opening_.lock()) open_ = nullptr;
    const std::unique_lock lock(opening_, std::adopt_lock);
    if (!open_) open_ = new Open;
    std::weak_ptr<Backend>& known = (*open_)[key];
    if (auto backend = known.lock(); backend && backend->info().usable) return backend;
    std::shared_ptr<Backend> backend = make();
    known = backend;
    return backend;
  }

 private:
  using Open = std::map<Key, std::weak_ptr<Backend>>;
  ForkLock opening_;
  Open* open_ = nullptr;
};

std::shared_ptr<Backend> cpu(int threads) {
  static auto& open = *new Shared<int>;  // never destroyed, because models may outlive static objects
  return open.get(threads, [&] { return cpu::make_backend(threads); });
}

bool is_software(const DeviceInfo& device) { return device.type == DeviceType::software || device.type == DeviceType::cpu; }

std::string reasons(const std::vector<DeviceInfo>& list, const GpuRoom& gpus) {
  std::string text;
  for (const DeviceInfo& device : list) {
    const std::string why = !device.usable ? device.why_not : is_software(device) ? "it is software, which is taken only when named" : "";
    if (!why.empty())
      text +=
          str(text.empty() ? "" : "; ", device.id, device.name.empty() ? "" : " (", device.name, device.name.empty() ? "" : ")", ": ", why);
  }
  return !text.empty() ? text : !gpus.absent.empty() ? gpus.absent : "no Vulkan device was found";
}

ErrorKind why_kind(const std::vector<DeviceInfo>& list) { return list.size() == 1 ? list[0].why_kind : ErrorKind::device_not_found; }

std::string ids(const std::vector<DeviceInfo>& list) {
  std::string text = "\"cpu\"";
  for (const DeviceInfo& device : list) text += str(", \"", device.id, "\"");
  return text;
}

bool is_vulkan(std::string_view id) {
  constexpr std::string_view kName = "vulkan", kDigits = "0123456789";
  if (!id.starts_with(kName)) return false;
  id.remove_prefix(kName.size());
  return id.empty() || (id.size() > 1 && id[0] == ':' && id.find_first_not_of(kDigits, 1) == std::string_view::npos);
}

// Splits a text at each "+".
std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == '+') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// Returns the number in a device id without leading zeros: "7" for "vulkan:07".
std::string_view number_of(std::string_view id) {
  id.remove_prefix(std::min(id.size(), std::string_view("vulkan:").size()));
  while (id.size() > 1 && id[0] == '0') id.remove_prefix(1);
  return id;
}

// Returns the index of the best usable device. Discrete GPUs come first, then other hardware, then devices emulated in software if
// `software` allows them.
std::optional<std::size_t> best(const std::vector<DeviceInfo>& list, bool software) {
  std::optional<std::size_t> found;
  const auto rank = [](const DeviceInfo& d) { return d.type == DeviceType::discrete ? 0 : is_software(d) ? 2 : 1; };
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].usable || (is_software(list[i]) && !software)) continue;
    if (!found || rank(list[i]) < rank(list[*found])) found = i;
  }
  return found;
}

// Opens the named device. If it cannot be opened, throws an error whose message says why.
std::shared_ptr<Backend> open_named(const std::string& id, const GpuRoom& gpus) {
  const std::vector<DeviceInfo> list = gpus.list();
  if (id == "vulkan") {
    const auto index = best(list, true);
    if (!index) fail(why_kind(list), "device \"vulkan\": ", reasons(list, gpus));
    return gpus.open(*index);
  }
  const auto device = std::find_if(list.begin(), list.end(), [&](const DeviceInfo& d) { return d.id == id; });
  if (device == list.end()) {
    const bool any = std::any_of(list.begin(), list.end(), [](const DeviceInfo& d) { return d.usable; });
    fail(any ? ErrorKind::device_not_found : why_kind(list), "device \"", id,
         "\": ", any ? str("there are ", ids(list)) : reasons(list, gpus));
  }
  if (!device->usable) fail(device->why_kind, "device \"", id, "\": ", device->why_not);
  return gpus.open(static_cast<std::size_t>(device - list.begin()));
}

}  // namespace

const GpuRoom& gpu_room() {
#if PUMICE_VULKAN
  static auto& open = *new Shared<std::size_t>;
  static const auto& room =
      *new GpuRoom{.list = [] { return vulkan::devices(); },
                   .open = [](std::size_t index) { return open.get(index, [&] { return vulkan::make_backend(index); }); },
                   .absent = {}};
#else
  static const auto& room = *new GpuRoom{
      .list = [] { return std::vector<DeviceInfo>(); },
      .open = {},
      .absent = "this build of pumice has no Vulkan backend (PUMICE_VULKAN=OFF); install it with Vulkan, or use device=\"cpu\""};
#endif
  return room;
}

std::vector<DeviceInfo> devices(const GpuRoom& gpus) {
  std::vector<DeviceInfo> all = {cpu(0)->info()};
  for (DeviceInfo& device : gpus.list()) all.push_back(std::move(device));
  return all;
}

std::optional<std::int64_t> LoadOptions::asked_layers() const {
  if (gpu_layers_each.empty()) return gpu_layers;
  std::int64_t sum = 0;
  for (const std::int64_t each : gpu_layers_each) sum += std::clamp<std::int64_t>(each, 0, INT32_MAX);
  return sum;
}

std::string LoadOptions::layers_text() const {
  if (gpu_layers_each.empty()) return gpu_layers == kAllLayers ? "\"all\"" : str(gpu_layers.value_or(0));
  std::string text;
  for (const std::int64_t each : gpu_layers_each) text += str(text.empty() ? "[" : ", ", each);
  return text + "]";
}

Devices open_devices(const LoadOptions& options, const GpuRoom& gpus) {
  const std::string& id = options.device;
  const bool wants_gpu = options.asked_layers().value_or(0) != 0;
  const std::string asked = options.layers_text();
  require(options.gpu_layers.value_or(0) >= kAllLayers, "gpu_layers=", asked, ": it must be \"auto\", \"all\" or a number from 0 on");
  require(std::ranges::all_of(options.gpu_layers_each, [](std::int64_t n) { return n >= 0 && n <= INT32_MAX; }), "gpu_layers=", asked,
          ": each number must be from 0 on");
  Devices devices{.cpu = cpu(options.threads)};
  if (id == "cpu") {
    require(!wants_gpu, "gpu_layers=", asked, " with device=\"cpu\": leave one of them out");
    return devices;
  }
  const std::vector<std::string> named = parts_of(id);
  if (std::ranges::all_of(named, is_vulkan)) {
    for (const std::string& each : named) {
      require(named.size() == 1 || each != "vulkan", "device \"", id, "\": in a list each GPU needs its number, as in \"vulkan:0\"");
      require(std::ranges::count_if(named, [&](const std::string& other) { return number_of(other) == number_of(each); }) == 1, "device \"",
              id, "\": \"", each, "\" is named twice");
    }
    for (const std::string& each : named) devices.gpus.push_back(open_named(each, gpus));
    devices.gpu_named = true;
    return devices;
  }
  if (named.size() > 1) {
    require(std::ranges::find(named, "cpu") == named.end(), "device \"", id,
            "\": name the GPUs alone; the CPU runs the layers for which they have no room, or gpu_layers= says how many they get");
    for (const std::string& each : named)
      require(is_vulkan(each), "device \"", id, "\": \"", each, "\" is no GPU; GPUs are joined by \"+\", as in \"vulkan:0+vulkan:1\"");
  }
  if (id != "auto")
    fail(ErrorKind::device_not_found, "device \"", id, "\" is not known; there are \"auto\", \"vulkan\", ", ids(gpus.list()));
  if (options.asked_layers() == 0) return devices;

  const std::vector<DeviceInfo> list = gpus.list();
  const auto index = best(list, false);
  if (!index) {
    if (wants_gpu) {
      fail(why_kind(list), "gpu_layers=", asked, " asks for a GPU: ", reasons(list, gpus), ". Leave gpu_layers out to use the CPU");
    }
    for (const DeviceInfo& other : list) {  // adds a note for each GPU that cannot be used
      if (!other.usable &&
          (other.type == DeviceType::discrete || other.type == DeviceType::integrated || other.why_kind == ErrorKind::forked_device))
        devices.notes.push_back(str(other.id, " is not used: ", other.why_not));
    }
    return devices;
  }
  try {
    devices.gpus = {gpus.open(*index)};
  } catch (const Error& error) {
    if (wants_gpu) throw;
    devices.fallback = str(list[*index].id, " is not used, the model runs on the CPU: ", error.what());
  }
  return devices;
}

int processors() { return os::usable_cpus(); }

}  // namespace pumice::engine
