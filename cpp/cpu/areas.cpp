#include "cpu/areas.h"

#include <algorithm>
#include <cstdlib>

namespace pumice::cpu {
namespace {

struct Tenant {
  Life life;
  Rows rows;
  std::int64_t row_bytes;
  std::int32_t* area;
};

}  // namespace

void give_areas(CpuPlan& plan, const PlanLives& lives, std::int32_t output, bool tail_in_blocks) {
  std::vector<Tenant> tenants;
  for (std::size_t s = 0; s < plan.slots.size(); ++s) {
    SlotPlace& slot = plan.slots[s];
    const Life& life = plan.facts.slot_lives[s];
    if (!life.used() || static_cast<std::int32_t>(s) == output) continue;
    tenants.push_back({life, slot.rows, slot.stride * static_cast<std::int64_t>(sizeof(float)), &slot.area});
  }
  for (std::size_t q = 0; q < plan.quantized.size(); ++q) {
    QuantizedPlace& place = plan.quantized[q];
    tenants.push_back({lives.quantized[q], place.rows, place.row_bytes(), &place.area});
  }
  for (std::size_t p = 0; p < plan.pairs.size(); ++p) {
    PairPlace& place = plan.pairs[p];
    const std::int64_t bytes = place.chosen * place.stride * static_cast<std::int64_t>(sizeof(float));
    tenants.push_back({lives.pairs[p], Rows::tokens, bytes, &place.area});
  }
  for (std::size_t s = 0; s < plan.sketches.size(); ++s)
    tenants.push_back({lives.sketches[s], Rows::tokens, sketch_row_bytes(plan.sketches[s].cols), &plan.sketches[s].area});
  std::stable_sort(tenants.begin(), tenants.end(), [](const Tenant& a, const Tenant& b) { return a.life.first < b.life.first; });
  std::vector<std::int64_t> last_use;  // [area]: index of the last operation that uses the area
  for (const Tenant& tenant : tenants) {
    const bool in_blocks = tail_in_blocks && tenant.life.first >= plan.facts.last_beyond_row && tenant.rows == Rows::tokens;
    std::int32_t best = -1;
    for (std::size_t a = 0; a < plan.areas.size(); ++a) {
      const Area& area = plan.areas[a];
      if (last_use[a] >= tenant.life.first || area.rows != tenant.rows || area.in_blocks != in_blocks) continue;
      const auto misfit = [&](std::size_t i) { return std::abs(plan.areas[i].row_bytes - tenant.row_bytes); };
      if (best < 0 || misfit(a) < misfit(static_cast<std::size_t>(best))) best = static_cast<std::int32_t>(a);
    }
    if (best < 0) {
      best = static_cast<std::int32_t>(plan.areas.size());
      plan.areas.push_back({tenant.rows, in_blocks, 0});
      last_use.push_back(-1);
    }
    Area& area = plan.areas[static_cast<std::size_t>(best)];
    area.row_bytes = std::max(area.row_bytes, tenant.row_bytes);
    last_use[static_cast<std::size_t>(best)] = tenant.life.last;
    *tenant.area = best;
  }
}

}  // namespace pumice::cpu
