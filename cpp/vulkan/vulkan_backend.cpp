#include "vulkan/vulkan_backend.h"

#include <algorithm>

#include "core/checked.h"
#include "vulkan/executor.h"

namespace pumice::vulkan {
namespace {

std::string version(std::uint32_t number) {
  return str(VK_API_VERSION_MAJOR(number), ".", VK_API_VERSION_MINOR(number), ".", VK_API_VERSION_PATCH(number));
}

DeviceInfo describe(const PhysicalDevice& device, std::size_t index) {
  DeviceInfo info;
  info.id = str("vulkan:", index);
  info.name = device.name;
  info.type = device.type;
  info.driver = str(device.driver, device.driver.empty() ? "" : ", ", "Vulkan ", version(device.api_version), ", loader ",
                    version(Instance::get().loader_version()));
  info.features = device.features;
  info.usable = device.usable;
  info.why_not = device.why_not;
  Instance::get().memory(device, info.memory_total, info.memory_free);
  return info;
}

class VulkanBackend final : public Backend {
 public:
  VulkanBackend(std::shared_ptr<Device> device, std::size_t index) : device_(std::move(device)), index_(index) {}

  DeviceInfo info() const override {
    DeviceInfo info = describe(device_->physical(), index_);
    info.memory_free = device_->free_memory();
    info.notes = device_->variant_tests().notes();
    if (device_->lost()) {
      info.usable = false;
      info.why_not = "it was lost: its driver gave up; load the model again";
    }
    return info;
  }

  std::shared_ptr<const DeviceWeights> pack(const Weights& weights, std::span<const Program* const> programs, const Progress& progress,
                                            const Cancel& cancel, std::uint64_t expert_bytes) override {
    require(expert_bytes == kAllExperts, "weights: a GPU keeps all experts in its memory");
    device_->check_alive();
    return std::make_shared<GpuWeights>(device_, weights, used_matrices(programs, shapes_of(weights)), progress, cancel);
  }

  std::unique_ptr<CacheStore> make_caches(const Program& program, KvFormat format) override {
    device_->check_alive();
    return std::make_unique<GpuCaches>(device_, program, format);
  }

  void foresee(const Program& program, const Weights& weights, Compute compute, const Cancel& cancel) override {
    device_->check_alive();
    const GpuWeights shapes(device_, weights);
    const GpuPlan plan = make_plan(program, shapes.shapes(), variants(program, shapes.shapes(), compute, cancel), device_->physical());
    device_->pipelines().prepare(pipelines_of(plan, shapes, device_->physical(), program.kv_format), cancel);
  }

  std::shared_ptr<const Executable> prepare(Program program, std::shared_ptr<const DeviceWeights> weights, Compute compute,
                                            const Cancel& cancel) override {
    device_->check_alive();
    auto ours = std::dynamic_pointer_cast<const GpuWeights>(std::move(weights));
    require(ours != nullptr && &ours->device() == device_.get(), "program '", program.name, "': weights of another device");
    const Variants passed = variants(program, ours->shapes(), compute, cancel);
    auto executable = std::make_shared<GpuExecutable>(device_, std::move(program), std::move(ours), passed, cancel);
    device_->pipelines().save();
    return executable;
  }

  std::unique_ptr<Workspace> make_workspace(Crew) override { return std::make_unique<GpuWorkspace>(device_); }

  Cost cost(const Program& program, const WeightShapes& weights, KvFormat format, std::int64_t rows) const override {
    require(rows >= 0 && rows <= INT32_MAX - kPageTokens, "cost of ", rows, " rows");
    const GpuPlan plan = make_plan(program, weights, offered(device_->physical(), Compute::automatic), device_->physical());
    Cost cost;
    for (std::size_t m = 0; m < weights.matrices.size(); ++m) {
      if (!plan.facts.used[m]) continue;
      const auto sum = checked_add(cost.weights, device_bytes(weights.matrices[m]));
      if (!sum) fail(ErrorKind::out_of_device_memory, "program '", program.name, "': weights of more bytes than can be addressed");
      cost.weights = *sum;
    }
    for (const std::uint64_t bytes : page_planes(program.caches, format)) cost.page += bytes;
    for (const std::uint64_t bytes : state_planes(program.states)) cost.state += bytes;
    if (rows == 0) return cost;
    const Segment text{0, static_cast<std::int32_t>(rows), 0, {}};
    std::vector<AttendTables> attends;
    for (const AttendShape& shape : plan.attends) {
      attends.push_back({shape.tile(rows), 1, 1, {}});
    }
    std::vector<std::vector<SpanBlock>> spans;
    for (const SpanShape& shape : plan.spans) spans.push_back(span_blocks(shape, {&text, 1}));
    const Counts counts{rows, 1, rows};
    cost.scratch = place(plan, counts, attends, spans, kept_pages({&text, 1}), device_->limits().range).total + table_bytes(plan, rows) +
                   padded_bytes(plan.program, plan.program.input, counts) + padded_bytes(plan.program, plan.program.output, counts);
    return cost;
  }

  std::int32_t ranks(const MatrixShape&, std::uint64_t) const override { return device_->physical().top_used ? kMostTop : 0; }
  int workers() const override { return 1; }
  std::int64_t batch_rows() const override { return device_->physical().type == DeviceType::software ? 512 : 8192; }

  void parallel(std::int64_t jobs, const std::function<void(std::int64_t index, int worker)>& job, const Cancel& cancel) override {
    for (std::int64_t i = 0; i < jobs; ++i) {
      cancel.check();
      job(i, 0);
    }
  }

 private:
  // Returns the variants that speed up this program and pass their self-test on this device.
  Variants variants(const Program& program, const WeightShapes& shapes, Compute compute, const Cancel& cancel) const {
    return device_->variant_tests().passed(make_plan(program, shapes, offered(device_->physical(), compute), device_->physical()).variants,
                                           cancel);
  }

  const std::shared_ptr<Device> device_;
  const std::size_t index_;
};

}  // namespace

std::vector<DeviceInfo> devices() {
  try {
    std::vector<DeviceInfo> infos;
    const std::vector<PhysicalDevice>& all = Instance::get().devices();
    for (std::size_t i = 0; i < all.size(); ++i) infos.push_back(describe(all[i], i));
    if (!infos.empty()) return infos;
    fail(ErrorKind::device_not_found,
         "no Vulkan: the loader finds no device. Install your GPU's driver; mesa-vulkan-drivers has those of AMD, Intel ",
         "and a software one; in a container, the host's driver files must be visible");
  } catch (const std::exception& error) {
    DeviceInfo none;
    none.id = "vulkan";
    none.name = "Vulkan";
    none.type = DeviceType::none;
    none.usable = false;
    none.why_not = error.what();
    if (const auto* ours = dynamic_cast<const Error*>(&error)) none.why_kind = ours->kind();
    return {none};
  }
}

std::shared_ptr<Backend> make_backend(std::size_t index) {
  const std::vector<PhysicalDevice>& all = Instance::get().devices();
  if (index >= all.size()) {
    fail(ErrorKind::device_not_found, "device \"vulkan:", index, "\": there ",
         all.size() == 1 ? "is 1 Vulkan device" : str("are ", all.size(), " Vulkan devices"),
         all.empty() ? "; install your GPU's driver" : str(" (vulkan:0 to vulkan:", all.size() - 1, "); pumice.devices() lists them"));
  }
  const PhysicalDevice& device = all[index];
  if (!device.usable)
    fail(ErrorKind::device_not_found, "device \"vulkan:", index, "\" (", device.name, ") cannot be used: ", device.why_not);
  return make_backend(Device::open(device), index);
}

std::shared_ptr<Backend> make_backend(std::shared_ptr<Device> device, std::size_t index) {
  return std::make_shared<VulkanBackend>(std::move(device), index);
}

}  // namespace pumice::vulkan
