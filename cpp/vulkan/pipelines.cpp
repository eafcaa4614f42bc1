#include "vulkan/pipelines.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>

#include "core/error.h"
#include "files/file.h"
#include "files/new_file.h"
#include "os/limits.h"
#include "vulkan/shaders.h"

namespace pumice::vulkan {

std::uint32_t binding_count(std::span<const std::uint32_t> spirv) {
  constexpr std::uint32_t kHeader = 5, kOpDecorate = 71, kBinding = 33;  // SPIR-V 1.5, sections 2.3, 3.32.3 and 3.20
  std::uint32_t count = 0;
  for (std::size_t at = kHeader; at < spirv.size();) {
    const std::uint32_t words = spirv[at] >> 16, op = spirv[at] & 0xffff;
    if (words == 0) break;
    if (op == kOpDecorate && words >= 4 && at + 3 < spirv.size() && spirv[at + 2] == kBinding) count = std::max(count, spirv[at + 3] + 1);
    at += words;
  }
  return count;
}

// ---------------------------------------------------------------- one pipeline
ComputePipeline::ComputePipeline(const Device& device, const PipelineKey& key, VkPipelineCache cache) : device_(device) {
  const DeviceApi& api = device.api();
  const std::span<const std::uint32_t> spirv = shader(key.shader);
  bindings_ = binding_count(spirv);
  require(bindings_ >= 1 && bindings_ <= 8, "shader '", key.shader, "' has ", bindings_, " buffers, not 1 to 8");
  VkShaderModule module = VK_NULL_HANDLE;
  try {
    VkDescriptorSetLayoutBinding buffers[8];
    for (std::uint32_t b = 0; b < bindings_; ++b) {
      buffers[b] = {.binding = b,
                    .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                    .descriptorCount = 1,
                    .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT};
    }
    const VkDescriptorSetLayoutCreateInfo set{
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, .bindingCount = bindings_, .pBindings = buffers};
    device.check(api.vkCreateDescriptorSetLayout(device.handle(), &set, nullptr, &set_layout_), "vkCreateDescriptorSetLayout");
    const VkPushConstantRange push{.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .offset = 0, .size = kPushBytes};
    const VkPipelineLayoutCreateInfo layout{.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                            .setLayoutCount = 1,
                                            .pSetLayouts = &set_layout_,
                                            .pushConstantRangeCount = 1,
                                            .pPushConstantRanges = &push};
    device.check(api.vkCreatePipelineLayout(device.handle(), &layout, nullptr, &layout_), "vkCreatePipelineLayout");
    const VkShaderModuleCreateInfo code{
        .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = spirv.size_bytes(), .pCode = spirv.data()};
    device.check(api.vkCreateShaderModule(device.handle(), &code, nullptr, &module), "vkCreateShaderModule");
    std::vector<VkSpecializationMapEntry> entries;
    for (std::uint32_t c = 0; c < key.constants.size(); ++c) entries.push_back({.constantID = c, .offset = 4 * c, .size = 4});
    const VkSpecializationInfo constants{.mapEntryCount = static_cast<std::uint32_t>(entries.size()),
                                         .pMapEntries = entries.data(),
                                         .dataSize = 4 * key.constants.size(),
                                         .pData = key.constants.data()};
    VkPipelineShaderStageRequiredSubgroupSizeCreateInfo subgroup{
        .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO, .requiredSubgroupSize = key.subgroup};
    const bool sized = key.subgroup > 0;
    const VkComputePipelineCreateInfo info{
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .pNext = sized ? &subgroup : nullptr,
                  .flags = sized ? VkPipelineShaderStageCreateFlags{VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT} : 0,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = module,
                  .pName = "main",
                  .pSpecializationInfo = &constants},
        .layout = layout_};
    const VkResult made = api.vkCreateComputePipelines(device.handle(), cache, 1, &info, nullptr, &pipeline_);
    if (made != VK_SUCCESS) device.fail_call(made, str("compiling shader '", key.shader, "' on ", device.physical().name));
    api.vkDestroyShaderModule(device.handle(), module, nullptr);
  } catch (...) {
    if (module != VK_NULL_HANDLE) api.vkDestroyShaderModule(device.handle(), module, nullptr);
    release();
    throw;
  }
}

void ComputePipeline::release() noexcept {
  const DeviceApi& api = device_.api();
  if (pipeline_ != VK_NULL_HANDLE) api.vkDestroyPipeline(device_.handle(), pipeline_, nullptr);
  if (layout_ != VK_NULL_HANDLE) api.vkDestroyPipelineLayout(device_.handle(), layout_, nullptr);
  if (set_layout_ != VK_NULL_HANDLE) api.vkDestroyDescriptorSetLayout(device_.handle(), set_layout_, nullptr);
}

// ---------------------------------------------------------------- the cache on disk
namespace {

constexpr std::uint64_t kMagic = 0x31656863616370ull;  // "pcache1"
constexpr std::uintmax_t kMostBytes = 256 << 20;

struct FileHeader {
  std::uint64_t magic, bytes, hash;
};

std::uint64_t fnv1a(std::span<const char> data) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : data) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

// Reads the cache file, which contains pipelines that a driver compiled in an earlier process. Returns its data for vkCreatePipelineCache.
// Returns no data if the file is damaged, or if another device or driver made the data. Not every driver checks this itself. The header of
// the data is described in section 10.6 of Vulkan 1.2.
std::vector<char> read_cache(const std::string& path, const PhysicalDevice& device) try {
  if (path.empty()) return {};
  const auto file = files::File::open(path);
  FileHeader header{};
  if (file.size() < sizeof header || file.size() > kMostBytes) return {};
  file.read(0, sizeof header, &header);
  if (header.magic != kMagic || header.bytes != file.size() - sizeof header) return {};
  std::vector<char> data(header.bytes);
  file.read(sizeof header, data.size(), data.data());
  if (fnv1a(data) != header.hash) return {};
  VkPipelineCacheHeaderVersionOne inner{};
  if (data.size() < sizeof inner) return {};
  std::memcpy(&inner, data.data(), sizeof inner);
  const bool same = inner.headerVersion == VK_PIPELINE_CACHE_HEADER_VERSION_ONE && inner.vendorID == device.vendor &&
                    inner.deviceID == device.device && std::memcmp(inner.pipelineCacheUUID, device.uuid, sizeof device.uuid) == 0;
  return same ? data : std::vector<char>{};
} catch (const std::exception&) {  // there is no file yet, or the file cannot be read
  return {};
}

}  // namespace

// Returns the path of the cache file. The folder is $PUMICE_CACHE_DIR, $XDG_CACHE_HOME/pumice or $HOME/.cache/pumice, the first whose
// variable is set. Returns "" if none is set. Then no file is read or written.
std::string Pipelines::file() const {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  std::string folder = variable("PUMICE_CACHE_DIR");
  if (folder.empty() && !variable("XDG_CACHE_HOME").empty()) folder = variable("XDG_CACHE_HOME") + "/pumice";
  if (folder.empty() && !variable("HOME").empty()) folder = variable("HOME") + "/.cache/pumice";
  if (folder.empty()) return {};
  const PhysicalDevice& d = device_.physical();
  std::string uuid;
  for (const std::uint8_t byte : d.uuid) uuid += in_base(byte, 16, 2);
  return str(folder, "/vulkan-", in_base(d.vendor, 16), '-', in_base(d.device, 16), '-', in_base(d.driver_version, 16), '-', uuid, ".bin");
}

VkPipelineCache Pipelines::cache() {
  const std::lock_guard lock(mutex_);
  if (cache_ != VK_NULL_HANDLE) return cache_;
  const std::vector<char> known = read_cache(file(), device_.physical());
  VkPipelineCacheCreateInfo info{
      .sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO, .initialDataSize = known.size(), .pInitialData = known.data()};
  VkResult result = device_.api().vkCreatePipelineCache(device_.handle(), &info, nullptr, &cache_);
  if (result < 0 && result != VK_ERROR_DEVICE_LOST && !known.empty()) {  // try again without the file's data
    info.initialDataSize = 0;
    result = device_.api().vkCreatePipelineCache(device_.handle(), &info, nullptr, &cache_);
  }
  device_.check(result, "vkCreatePipelineCache");
  taken_ = info.initialDataSize;
  return cache_;
}

void Pipelines::save() noexcept {
  try {
    const std::string path = file();
    std::vector<char> data;
    {
      const std::lock_guard lock(mutex_);
      if (path.empty() || cache_ == VK_NULL_HANDLE || made_.size() <= saved_) return;
      saved_ = made_.size();
      std::size_t size = 0;
      device_.check(device_.api().vkGetPipelineCacheData(device_.handle(), cache_, &size, nullptr), "vkGetPipelineCacheData");
      data.resize(size);
      device_.check(device_.api().vkGetPipelineCacheData(device_.handle(), cache_, &size, data.data()), "vkGetPipelineCacheData");
      data.resize(size);
    }
    if (data.size() > kMostBytes) return;
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
    // NewFile follows symbolic links. A broken link would make every write fail, so such a link is removed.
    if (std::filesystem::is_symlink(path, error) && !std::filesystem::exists(path, error)) std::filesystem::remove(path, error);
    const FileHeader header{kMagic, data.size(), fnv1a(data)};
    const auto bytes_of = [](const auto* values, std::size_t size) {
      return std::span(reinterpret_cast<const std::uint8_t*>(values), size);
    };
    files::NewFile file(path, sizeof header + data.size());
    file.write(0, bytes_of(&header, sizeof header));
    file.write(sizeof header, bytes_of(data.data(), data.size()));
    file.finish(false);  // not synced to disk, because read_cache() rejects a file that a power failure has damaged
  } catch (...) {        // errors are ignored, because without the file the next process only takes longer to compile
  }
}

Pipelines::~Pipelines() {
  {
    const std::lock_guard lock(mutex_);
    waiting_.clear();
  }
  threads_.clear();
  save();
  made_.clear();
  if (cache_ != VK_NULL_HANDLE) device_.api().vkDestroyPipelineCache(device_.handle(), cache_, nullptr);
}

// ---------------------------------------------------------------- all pipelines of a device
std::size_t Pipelines::taken_from_disk() const {
  const std::lock_guard lock(mutex_);
  return taken_;
}

bool Pipelines::works() const {
  const std::lock_guard lock(mutex_);
  return running_ > 0;
}

std::size_t Pipelines::size() const {
  const std::lock_guard lock(mutex_);
  return made_.size();
}

// ---------------------------------------------------------------- making pipelines
const ComputePipeline& Pipelines::get(const PipelineKey& key, const Cancel& cancel) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = made_.find(key); known != made_.end()) return *known->second;
  }
  prepare({&key, 1}, cancel);
  const std::lock_guard lock(mutex_);
  return *made_.at(key);
}

void Pipelines::prepare(std::span<const PipelineKey> keys, const Cancel& cancel) {
  std::unique_lock lock(mutex_);
  std::vector<const PipelineKey*> mine;
  mine.reserve(keys.size());
  try {
    for (const PipelineKey& key : keys) {
      if (made_.contains(key)) continue;
      const auto [job, is_new] = jobs_.try_emplace(key);
      ++job->second.callers;
      mine.push_back(&job->first);
      if (is_new) waiting_.push_back(key);
    }
    start_threads();
    for (const PipelineKey* key : mine) {
      const Job& job = jobs_.at(*key);
      while (job.state != Job::State::done) {
        cancel.check();
        if (running_ == 0 && !waiting_.empty()) {
          work(lock);  // no thread could be started, so this one makes the pipelines
        } else {
          one_is_done_.wait_for(lock, std::chrono::milliseconds(20));
        }
      }
      if (job.error) std::rethrow_exception(job.error);
    }
  } catch (...) {
    leave(mine);
    throw;
  }
  leave(mine);
}

void Pipelines::leave(std::span<const PipelineKey* const> keys) noexcept {
  for (const PipelineKey* key : keys) {
    const auto job = jobs_.find(*key);
    if (--job->second.callers == 0 && job->second.state != Job::State::begun) jobs_.erase(job);
  }
}

void Pipelines::start_threads() {
  const std::size_t most = std::min<std::size_t>({waiting_.size(), 16, static_cast<std::size_t>(std::max(1, os::usable_cpus()))});
  if (running_ == 0) threads_.clear();  // joins threads that have ended
  try {
    for (; running_ < most; ++running_) {
      threads_.emplace_back([this] {
        os::name_this_thread("pumice-compile");
        std::unique_lock lock(mutex_);
        work(lock);
        --running_;
        one_is_done_.notify_all();
      });
    }
  } catch (const std::system_error&) {  // no more threads can be started, so the running ones make all pipelines
  }
}

void Pipelines::work(std::unique_lock<std::mutex>& lock) {
  while (!waiting_.empty()) {
    const PipelineKey key = std::move(waiting_.front());
    waiting_.pop_front();
    const auto job = jobs_.find(key);
    if (job == jobs_.end() || job->second.state != Job::State::waiting) continue;
    job->second.state = Job::State::begun;
    lock.unlock();
    std::unique_ptr<ComputePipeline> made;
    std::exception_ptr error;
    try {
      made = std::make_unique<ComputePipeline>(device_, key, cache());
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    try {
      if (made) made_.try_emplace(key, std::move(made));
    } catch (...) {
      error = std::current_exception();
    }
    job->second.state = Job::State::done;
    job->second.error = error;
    if (job->second.callers == 0) jobs_.erase(job);
    one_is_done_.notify_all();
  }
}

}  // namespace pumice::vulkan
