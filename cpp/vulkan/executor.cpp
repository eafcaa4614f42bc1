#include "vulkan/executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/checked.h"

namespace pumice::vulkan {
namespace {

constexpr std::int64_t kMostRecordings = 6;  // maximum number of recordings of a program in a workspace; enough for several batch sizes

std::uint64_t next_executable_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

// Marks a workspace as busy during a run. Throws if another run uses it.
class Busy {
 public:
  explicit Busy(GpuWorkspace& space) : space_(space) { require(!space_.busy.exchange(true), "a workspace serves one run at a time"); }
  ~Busy() { space_.busy.store(false); }

 private:
  GpuWorkspace& space_;
};

}  // namespace

Counts counts_of(const Batch& batch) {
  return {batch.rows, static_cast<std::int64_t>(batch.segments.size()), static_cast<std::int64_t>(batch.selected.size())};
}

std::uint64_t padded_bytes(const Program& program, std::int32_t slot, const Counts& counts) {
  if (slot < 0) return 0;
  const SlotShape& shape = program.slots[static_cast<std::size_t>(slot)];
  return static_cast<std::uint64_t>(mul_or_fail<std::int64_t>(counts.of(shape.rows), slot_stride(shape.width) * 4, "rows of a run"));
}
// Calls copy(offset in the caller's array, offset in the buffer, number of floats) for the rows of a slot. In the caller's array rows have
// no gaps, and in the buffer they have the slot's stride.
template <class CopyRow>
void each_row(const Program& program, std::int32_t slot, const Counts& counts, CopyRow copy) {
  if (slot < 0) return;
  const SlotShape& shape = program.slots[static_cast<std::size_t>(slot)];
  const std::int64_t count = counts.of(shape.rows), stride = slot_stride(shape.width);
  if (stride == shape.width) {
    copy(0, 0, static_cast<std::size_t>(count) * static_cast<std::size_t>(shape.width));
    return;
  }
  for (std::int64_t r = 0; r < count; ++r) copy(r * shape.width, r * stride, static_cast<std::size_t>(shape.width));
}

// If `buffer` is too small, replaces it by a new buffer. The new size is rounded up by at most a quarter, so that batches of slowly growing
// size do not need a new buffer each time. If the device has not enough memory for the rounded size, tries to allocate exactly `bytes`.
const Buffer* GpuWorkspace::fit(std::shared_ptr<Buffer>& buffer, std::uint64_t bytes, Place place, const char* what) {
  if (buffer && buffer->bytes() >= bytes) return buffer.get();
  std::uint64_t step = 4096;
  while (step * 8 <= bytes) step *= 2;
  const std::uint64_t rounded = (bytes + step - 1) / step * step;
  recorded.clear();
  buffer.reset();
  ++buffers;
  try {
    buffer = device->buffer(rounded, place, what);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::out_of_device_memory || rounded == bytes) throw;
    buffer = device->buffer(bytes, place, what);
  }
  return buffer.get();
}

GpuExecutable::GpuExecutable(std::shared_ptr<Device> device, Program program, std::shared_ptr<const GpuWeights> weights,
                             const Variants& variants, const Cancel& cancel)
    : device_(std::move(device)),
      weights_(std::move(weights)),
      shapes_(weights_->shapes()),
      plan_(make_plan(std::move(program), shapes_, variants, device_->physical())),
      id_(next_executable_id()) {
  device_->pipelines().prepare(pipelines_of(plan_, *weights_, device_->physical(), plan_.program.kv_format), cancel);
}

void GpuExecutable::run(Workspace& workspace, CacheStore* caches, const Batch& batch, const Io& io, const Cancel& cancel) const {
  auto* space = dynamic_cast<GpuWorkspace*>(&workspace);
  const auto* store = dynamic_cast<GpuCaches*>(caches);
  require(space != nullptr && space->device == device_ && (caches == nullptr || store != nullptr), "program '", plan_.program.name,
          "': a workspace or caches of another device");
  run(*space, store, batch, io, cancel, nullptr);
}

std::vector<Timing> GpuExecutable::measure(Workspace& workspace, CacheStore* caches, const Batch& batch, const Io& io) const {
  std::vector<Timing> timings;
  run(dynamic_cast<GpuWorkspace&>(workspace), dynamic_cast<const GpuCaches*>(caches), batch, io, Cancel{}, &timings);
  return timings;
}

struct GpuExecutable::Kept {
  std::shared_ptr<const Slabs::All> pages = std::make_shared<const Slabs::All>(), states = pages;
  KvFormat format = KvFormat::f32;
  std::uint64_t store = 0;
};

GpuExecutable::Kept GpuExecutable::kept_for(const GpuCaches* store, const Batch& batch) const {
  Kept kept;
  if (store != nullptr)
    kept = {.pages = store->pages().all(), .states = store->states().all(), .format = store->format(), .store = store->id()};
  if (plan_.program.caches.empty() && plan_.program.states.empty()) return kept;
  require(store != nullptr, "program '", plan_.program.name, "': needs caches");
  check_pages(plan_.program, store->shapes(), kept.pages->units, batch);
  check_states(plan_.program, store->state_shapes(), kept.states->units, batch);
  return kept;
}

void GpuExecutable::build_tables(Tables& tables, const Kept& kept, const Batch& batch) const {
  const std::uint64_t range = device_->limits().range;
  std::vector<std::uint32_t> ranges;
  for (const AttendShape& shape : plan_.attends) {
    ranges.push_back(shape.cached ? static_cast<std::uint32_t>(kept.pages->slabs.size())
                                  : kept_ranges(shape, kept_pages(batch.segments), range));
  }
  TableRequest request = plan_.tables();
  request.page_ranges = ranges;
  request.range = range;
  request.software = device_->physical().type == DeviceType::software;
  tables.build(request, batch);
  if (tables.words().size_bytes() > range) {
    fail(ErrorKind::out_of_device_memory, device_->physical().name, ": the tables of ", batch.rows, " rows take ",
         tables.words().size_bytes(), " bytes, one binding holds ", range, ". Give fewer or shorter texts at once");
  }
}

RunBuffers GpuExecutable::buffers_for(GpuWorkspace& space, const Areas& areas, const Counts& counts) const {
  const Program& program = plan_.program;
  RunBuffers buffers;
  buffers.scratch = space.fit(space.scratch, areas.total, Place::device, "the scratch memory of a run");
  buffers.meta = space.fit(space.meta, space.tables.words().size_bytes(), Place::upload, "the tables of a run");
  buffers.in = space.fit(space.in, padded_bytes(program, program.input, counts), Place::upload, "the input of a run");
  buffers.out = space.fit(space.out, padded_bytes(program, program.output, counts), Place::readback, "the output of a run");
  buffers.meta_bytes = std::min(buffers.meta->bytes(), device_->limits().range);
  return buffers;
}

// Returns the recording with this key, and moves it to the beginning of space.recorded. Makes a new recording if there is none.
Recording& GpuExecutable::recorded(GpuWorkspace& space, const RecordingKey& key, const GpuRun& run, const Cancel& cancel) const {
  std::list<GpuWorkspace::Recorded>& all = space.recorded;
  const auto known = std::ranges::find(all, key, &GpuWorkspace::Recorded::key);
  if (known != all.end()) {
    all.splice(all.begin(), all, known);
  } else {
    all.push_front({key, std::make_unique<Recording>(*device_, lower(run, device_->pipelines(), cancel))});
    const auto own = [&](const GpuWorkspace::Recorded& each) { return each.key.executable == id_; };
    if (std::ranges::count_if(all, own) > kMostRecordings) all.erase(std::prev(std::find_if(all.rbegin(), all.rend(), own).base()));
  }
  return *all.front().recording;
}

void GpuExecutable::run(GpuWorkspace& space, const GpuCaches* store, const Batch& batch, const Io& io, const Cancel& cancel,
                        std::vector<Timing>* timings) const {
  cancel.check();
  device_->check_alive();
  const Busy busy(space);
  check_batch(plan_.program, plan_.facts, shapes_, batch, io);
  if (batch.rows == 0) return;
  const auto turn = device_->take_turn(cancel);
  device_->check_alive();  // the device may have been lost while this thread waited
  const Kept kept = kept_for(store, batch);
  const Tables& tables = space.tables;
  build_tables(space.tables, kept, batch);
  const Counts counts = counts_of(batch);
  const Areas areas = place(plan_, counts, tables.attends, tables.spans, tables.kept_pages, device_->limits().range);
  const RunBuffers buffers = buffers_for(space, areas, counts);
  const GpuRun run{.plan = plan_,
                   .weights = *weights_,
                   .device = device_->physical(),
                   .counts = counts,
                   .tables = tables,
                   .areas = areas,
                   .buffers = buffers,
                   .pages = *kept.pages,
                   .states = *kept.states,
                   .format = kept.format};
  const RecordingKey key{.executable = id_,
                         .buffers = space.buffers,
                         .pace_step = device_->pace_step(),
                         .store = kept.store,
                         .pages_version = kept.pages->version,
                         .states_version = kept.states->version,
                         .counts = counts,
                         .tables = tables.layout()};
  std::unique_ptr<Recording> timed;
  if (timings != nullptr) timed = std::make_unique<Recording>(*device_, lower(run, device_->pipelines(), cancel), true);
  Recording& recording = timed ? *timed : recorded(space, key, run, cancel);

  std::memcpy(space.meta->mapped(), tables.words().data(), tables.words().size_bytes());
  each_row(plan_.program, plan_.program.input, counts, [&](std::int64_t tight, std::int64_t spaced, std::size_t floats) {
    std::memcpy(reinterpret_cast<float*>(space.in->mapped()) + spaced, io.in.data() + tight, floats * sizeof(float));
  });
  try {
    recording.run(cancel);
  } catch (...) {
    if (timed == nullptr) {
      if (recording.left()) device_->leave(std::move(space.recorded.front().recording));
      space.recorded.pop_front();
    }
    throw;
  }
  each_row(plan_.program, plan_.program.output, counts, [&](std::int64_t tight, std::int64_t spaced, std::size_t floats) {
    std::memcpy(io.out.data() + tight, reinterpret_cast<const float*>(space.out->mapped()) + spaced, floats * sizeof(float));
  });
  if (timings != nullptr) *timings = recording.timings();
}

}  // namespace pumice::vulkan
