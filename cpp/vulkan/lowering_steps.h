// GpuLowering converts each step of a plan to dispatches. It has one operator() for each kind of step. If an operator is missing,
// std::visit does not compile. The operators are in lowering_rows.cpp, lowering_products.cpp, lowering_experts.cpp, lowering_attention.cpp
// and lowering_recurrent.cpp. Code that several of them use is in lowering.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "vulkan/numbers.h"
#include "vulkan/lowering.h"
#include "vulkan/tiles.h"

namespace pumice::vulkan {

using params::uint;
constexpr uint word(std::int64_t value) { return static_cast<uint>(value); }

// A dispatch that has the key of its pipeline in place of the pipeline. lower() looks up the pipelines, and pipelines_of() only collects
// the keys.
struct KeyedDispatch : Dispatch {
  PipelineKey key;
};
using Work = std::variant<KeyedDispatch, Copy>;

// How a product is computed: with float activations, with int8 activations, or on cooperative matrices.
enum class Form : std::uint8_t { floats, int8, cooperative };

// Settings for the products of Experts with many rows (kRowsListed). A pair is a row and one of its experts, and `rows` is the average
// number of pairs per expert. If this number is small, listed_few() returns true, and the products use the shader matvec. listed_tile()
// returns the tile of the products. All products of one operation use the same list of pairs, so their tiles have the same number of
// tokens.
constexpr bool listed_few(std::int64_t rows) { return 2 * rows <= kFewRows; }
LinearTile listed_tile(const PhysicalDevice& device, Form form, std::int64_t rows);

class GpuLowering {
 public:
  explicit GpuLowering(const GpuRun& run) : run_(run) {}
  std::vector<Work> work();  // returns the dispatches and copies of the run in their order

  void operator()(const Embed& op);
  void operator()(const Norm& op);
  void operator()(const Linear& op);
  void operator()(const GatedLinear& op);
  void operator()(const HeadLinear& op);
  void operator()(const Route& op);
  void operator()(const ExpertsStep& step);
  void operator()(const Multiply& op);
  void operator()(const RopeStore& op);
  void operator()(const AttendStep& step);
  void operator()(const ConvStep& step);
  void operator()(const ScanStep& step);
  void operator()(const Select& op);
  void operator()(const Pool& op);
  void operator()(const LogProb& op);
  void operator()(const TopStep& step);

 private:
  struct Block {  // rows [first, first + count)
    std::int64_t first, count;
  };
  struct At {  // a position in a buffer; `offset` is in bytes
    const Buffer* buffer = nullptr;
    std::uint64_t offset = 0;
  };
  // Pages [first, first + pages) of a cache. One binding can hold the keys of these pages, and another binding the values.
  struct PageRange {
    At keys, values;
    std::int64_t first = 0, pages = 0;
  };
  // States [first, first + states) of an operation. One binding can hold them. A state has `words` words.
  struct StateRange {
    At at;
    std::int64_t first = 0, states = 0;
    std::uint64_t words = 0;
  };
  // Rows [first, first + rows) of each of the matrices [matrix_first, matrix_first + matrices) of a stack. All these rows lie in `piece`,
  // one of GpuMatrix::pieces. A single matrix counts as a stack of one matrix.
  struct Strip {
    const GpuMatrix* stack = nullptr;
    const RowRange* piece = nullptr;
    std::int64_t matrix_first = 0, matrices = 0, first = 0, rows = 0;
    // Returns the offset of the strip's first row from the beginning of the piece, in words.
    std::int64_t at() const { return (matrix_first * stack->rows_each() + first - piece->first) * stack->row_words; }
  };
  // Rows of floats or of 8-bit activations in a binding. `at` is the offset of the first row in words, and `stride` is the number of words
  // from one row to the next.
  struct RowsAt {
    Binding binding;
    uint at = 0, stride = 0;
  };
  struct Product {
    const char* what = "";
    RowsAt in, out, residual, route;  // `route` is the output of Route for kRowsOfPairs, and the list of pairs for kRowsListed
    uint rows = params::kRowsAll;
    std::int64_t tokens = 0;     // number of rows of `in`, or number of pairs for kRowsOfPairs and kRowsListed
    std::int64_t tile_rows = 0;  // the tile is chosen for this number of rows; for Experts, the average number of pairs per expert
    VectorId bias = VectorId::none, bias2 = VectorId::none;
    Form form = Form::floats;
    // The caller sets activation, scale, softcap, alphas, limit, shift, in_step, out_step and chosen, and in `has` only kHasWeight or
    // kInByPair. product() sets the other members.
    params::LinearParams end{};
  };
  struct Partials {  // memory for the partial results of attention, which are only used if parts > 1 (see AttendParams)
    std::uint64_t queries = 0, states_at = 0;
    Binding binding;
  };

  // These functions belong to lowering_rows.cpp.
  void gather(const View& out, MatrixId table, uint index_at, float scale, bool add);
  // These functions belong to lowering_products.cpp.
  Form form_of(std::int64_t rows, bool int8, bool precise) const;  // returns the form of a product of `rows` rows of activations
  void quantize(const View& in);
  void quantize(const RowsAt& in, const Binding& out, std::int64_t count, std::int64_t cols);
  static std::vector<Strip> strips(const GpuMatrix& stack);
  // Cuts two stacks of equal shape into pairs of strips. The two strips of a pair have the same rows of the same matrices.
  static std::vector<std::pair<Strip, Strip>> strips(const GpuMatrix& stack, const GpuMatrix& stack2);
  RowsAt activations(const View& in, const Block& block, Form form) const;  // returns `in` as floats or as 8-bit numbers, as the form needs
  RowsAt rows_at(const View& v, const Block& block, bool written) const;
  void product(const Product& p, const Strip& w, const Strip& w2);

  // These functions belong to lowering_experts.cpp.
  void experts(const ExpertsStep& step, const Block& block);
  RowsAt sorted(const ExpertsStep& step, const Block& block, const ExpertArea& area, std::int64_t tile_rows);
  void fold(const ExpertsStep& step, const Block& block, const RowsAt& results);
  Binding scratch(std::uint64_t at, std::uint64_t bytes, bool written) const { return {run_.buffers.scratch, at, bytes, written}; }
  // These functions belong to lowering_attention.cpp.
  KvFormat format_of(Pages pages) const { return pages == Pages::cache ? run_.format : KvFormat::f32; }
  std::vector<PageRange> page_ranges(Pages pages, CacheId cache, const PageWords& words) const;
  void rope_store(const RopeStore& op, const Block& block, const PageRange& range, const PageWords& words, bool first);
  Partials partials_of(const AttendShape& shape, const AttendTables& tables, const TileBlock& tiles) const;
  void attend(const AttendStep& step, const TileBlock& tiles, const Partials& partials, const PageRange& range, uint part);
  void merge(const Attend& op, const AttendShape& shape, const AttendTables& tables, const TileBlock& tiles, const Partials& partials);
  std::int64_t most_keys(const AttendShape& shape) const;

  // These functions belong to lowering_recurrent.cpp.
  std::vector<StateRange> state_ranges(StateId state) const;
  void bind_states(Dispatch& d, const StateRange& from, const StateRange& to, const Binding& unused) const;
  void conv(const ConvStep& step, const SpanBlock& block, const StateRange& from, const StateRange& to);
  void scan_gates(const Scan& op, const SpanBlock& block, const ScanArea& area);
  void scan(const ScanStep& step, std::size_t block, const ScanArea& area, const StateRange& from, const StateRange& to);

  // These functions handle views and buffers.
  Rows rows_of(const View& v) const { return run_.plan.program.slots[static_cast<std::size_t>(v.slot)].rows; }
  uint stride(const View& v) const { return word(slot_stride(run_.plan.program.slots[static_cast<std::size_t>(v.slot)].width)); }
  uint lanes(std::int64_t wanted) const { return word(std::min(wanted, static_cast<std::int64_t>(run_.device.limits.invocations))); }
  Binding rows(const View& v, const Block& block, bool written) const;  // returns an empty binding if `v` is empty
  Binding quantized_rows(const View& in, const Block& block, bool written) const;
  Binding meta() const { return {run_.buffers.meta, 0, run_.buffers.meta_bytes}; }
  static Binding bind(const RowRange& piece) { return {piece.buffer.get(), piece.offset, piece.bytes}; }
  // Binds the range of vectors that contains all of `ids`. Returns for each id the offset of its vector in this range in words, and 0 for
  // VectorId::none.
  template <std::size_t N>
  std::array<uint, N> bind_vectors(Dispatch& d, const VectorId (&ids)[N]) const {
    const VectorRange range = run_.weights.range_of(ids);
    d.bind({range.buffer, range.offset, range.bytes});
    std::array<uint, N> at{};
    for (std::size_t i = 0; i < N; ++i)
      if (ids[i] != VectorId::none) at[i] = static_cast<uint>((run_.weights[ids[i]].at - range.at) / 4);
    return at;
  }
  static void bind_pages(Dispatch& d, const PageRange& range, const PageWords& words, bool written);

  // rows_per_binding() returns the maximum number of rows for which each of these views fits in one binding. blocks() cuts all rows of a
  // kind into blocks of at most that many rows.
  std::int64_t rows_per_binding(std::initializer_list<View> views) const;
  std::vector<Block> blocks(Rows kind, std::initializer_list<View> views, bool int8 = false) const;

  static KeyedDispatch dispatch(const char* what, PipelineKey key);
  static KeyedDispatch dispatch(const char* what, const char* shader, std::vector<uint> constants) {
    return dispatch(what, PipelineKey{shader, std::move(constants)});
  }
  void push(KeyedDispatch& d, std::int64_t groups, double flops, double bytes);
  void copy_rows(std::int32_t slot, bool to_slot, const Buffer* host);

  const GpuRun& run_;
  std::vector<Work> work_;
};

}  // namespace pumice::vulkan
