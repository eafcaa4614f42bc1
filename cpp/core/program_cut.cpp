#include "core/program_cut.h"

#include <algorithm>
#include <string>
#include <variant>

#include "core/error.h"

namespace pumice {
namespace {

// Element [slot][column] is true if a later operation reads the value that the column holds.
using Columns = std::vector<std::vector<bool>>;

void mark(Columns& columns, const View& view, bool read) {
  std::fill_n(columns[static_cast<std::size_t>(view.slot)].begin() + view.col, view.width, read);
}

// Returns one entry for each operation i, and one for the end. Entry i has the columns whose values operation i or a later operation reads.
// The last entry has the columns of the program's output.
std::vector<Columns> read_later(const Program& program, const ProgramFacts& facts) {
  Columns now;
  for (const SlotShape& slot : program.slots) now.emplace_back(static_cast<std::size_t>(slot.width), false);
  if (program.output >= 0) now[static_cast<std::size_t>(program.output)].assign(now[static_cast<std::size_t>(program.output)].size(), true);
  std::vector<Columns> at(program.ops.size() + 1);
  at.back() = now;
  for (std::size_t op = program.ops.size(); op-- > 0;) {
    for (const Touch& touch : facts.touches[op])
      if (touch.writes) mark(now, touch.view, false);
    for (const Touch& touch : facts.touches[op])
      if (!touch.writes) mark(now, touch.view, true);
    at[op] = now;
  }
  return at;
}

// Returns views that cover the marked columns.
std::vector<View> views_of(const Columns& columns) {
  std::vector<View> views;
  for (std::size_t slot = 0; slot < columns.size(); ++slot) {
    const std::vector<bool>& marked = columns[slot];
    for (auto first = std::ranges::find(marked, true); first != marked.end();) {
      const auto end = std::find(first, marked.end(), false);
      views.push_back(
          {static_cast<std::int32_t>(slot), static_cast<std::int32_t>(first - marked.begin()), static_cast<std::int32_t>(end - first)});
      first = std::find(end, marked.end(), true);
    }
  }
  return views;
}

std::int32_t width_of(const std::vector<View>& views) {
  std::int64_t width = 0;
  for (const View& view : views) width += view.width;
  require(width <= INT32_MAX, "a program is cut where rows have ", width, " columns");
  return static_cast<std::int32_t>(width);
}

// Gives the caches (or the states) of one part of the program new numbers from 0 on, and collects their shapes.
template <class Id, class Shape>
class Renumber {
 public:
  Renumber(const std::vector<Shape>& all, std::vector<std::int32_t>& owner, std::int32_t part, const char* what)
      : all_(all), owner_(owner), part_(part), what_(what) {}

  void operator()(Id& id) {
    if (id == Id::none) return;
    const auto old = static_cast<std::size_t>(id);
    if (owner_[old] >= 0 && owner_[old] != part_)
      fail(ErrorKind::unsupported_model, "the layers cannot be cut: two parts would need the same ", what_);
    owner_[old] = part_;
    const auto known = std::ranges::find(olds_, old);
    if (known == olds_.end()) {
      id = static_cast<Id>(olds_.size());
      olds_.push_back(old);
      kept.push_back(all_[old]);
    } else {
      id = static_cast<Id>(known - olds_.begin());
    }
  }

  std::vector<Shape> kept;

 private:
  const std::vector<Shape>& all_;
  std::vector<std::int32_t>& owner_;  // [number in the whole program]: the part that uses the cache or state; -1 if none does yet
  const std::int32_t part_;
  const char* what_;
  std::vector<std::size_t> olds_;
};

class Cutter {
 public:
  Cutter(const Program& program, const WeightShapes& weights)
      : program_(program),
        later_(read_later(program, check_program(program, weights))),
        cache_owner_(program.caches.size(), -1),
        state_owner_(program.states.size(), -1) {}

  // Makes the part with operations [first, end). `number` is the index of the part.
  Program part(std::size_t first, std::size_t end, std::int32_t number) {
    Program p{.name = str(program_.name, ", part ", number),
              .slots = program_.slots,
              .input = program_.input,
              .output = program_.output,
              .kv_format = program_.kv_format};
    if (first > 0) {
      const std::vector<View> crossing = border(first);
      p.input = add_slot(p, crossing);
      copy(p, crossing, p.input, true);
    }
    p.ops.insert(p.ops.end(), program_.ops.begin() + static_cast<std::ptrdiff_t>(first),
                 program_.ops.begin() + static_cast<std::ptrdiff_t>(end));
    if (end < program_.ops.size()) {
      const std::vector<View> crossing = border(end);
      p.output = add_slot(p, crossing);
      copy(p, crossing, p.output, false);
    }
    Renumber<CacheId, CacheShape> caches(program_.caches, cache_owner_, number, "cache");
    Renumber<StateId, StateShape> states(program_.states, state_owner_, number, "state");
    for (Op& op : p.ops) {
      if (auto* store = std::get_if<Store>(&op)) caches(store->cache);
      if (auto* attend = std::get_if<Attend>(&op)) caches(attend->cache);
      if (auto* conv = std::get_if<Conv>(&op)) states(conv->state);
      if (auto* scan = std::get_if<Scan>(&op)) states(scan->state);
    }
    p.caches = std::move(caches.kept);
    p.states = std::move(states.kept);
    return p;
  }

 private:
  std::vector<View> border(std::size_t op) const {
    std::vector<View> views = views_of(later_[op]);
    for (const View& view : views) {
      if (program_.slots[static_cast<std::size_t>(view.slot)].rows != Rows::tokens)
        fail(ErrorKind::unsupported_model, "program '", program_.name, "' cannot be cut behind its layers");
    }
    return views;
  }

  static std::int32_t add_slot(Program& p, const std::vector<View>& views) {
    p.slots.push_back({Rows::tokens, width_of(views)});
    return static_cast<std::int32_t>(p.slots.size() - 1);
  }

  static void copy(Program& p, const std::vector<View>& views, std::int32_t slot, bool to_views) {
    std::int32_t col = 0;
    for (const View& view : views) {
      const View side{slot, col, view.width};
      p.ops.push_back(to_views ? Multiply{.a = side, .out = view} : Multiply{.a = view, .out = side});
      col += view.width;
    }
  }

  const Program& program_;
  const std::vector<Columns> later_;
  std::vector<std::int32_t> cache_owner_, state_owner_;
};

}  // namespace

std::vector<ProgramPart> cut_program(const Program& program, const WeightShapes& weights, const std::function<bool(const Op&)>& apart) {
  std::vector<ProgramPart> parts;
  if (std::ranges::none_of(program.ops, apart)) return {{program, false}};
  Cutter cutter(program, weights);
  for (std::size_t first = 0; first < program.ops.size();) {
    const bool alone = apart(program.ops[first]);
    std::size_t end = first + 1;
    while (end < program.ops.size() && apart(program.ops[end]) == alone) ++end;
    parts.push_back({cutter.part(first, end, static_cast<std::int32_t>(parts.size())), alone});
    first = end;
  }
  return parts;
}

}  // namespace pumice
