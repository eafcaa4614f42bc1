#include "cpu/norms_before.h"

#include <variant>

namespace pumice::cpu {
namespace {

class NormSearch {
 public:
  explicit NormSearch(std::vector<NormBefore>& found) : found_(found) {}

  // A norm is recorded only if it normalizes whole rows, has a weight, and nothing is added to its output. Other norms are not folded.
  void operator()(const Norm& op) {
    written(op.out);
    if (op.group == 0 && !op.add && op.weight != VectorId::none) made_.push_back({op.out, {op.weight, op.bias}});
  }
  void operator()(const Linear& op) {
    for (const LinearPart& part : op.parts) multiplied(part.weight, op.in);
    written(op.out);
  }
  void operator()(const GatedLinear& op) {
    for (const MatrixId id : {op.gate, op.up}) multiplied(id, op.in);
    written(op.out);
  }
  // The input of Experts is not recorded, because no norm is folded into the matrices of experts (packing_of() refuses to round matrices of
  // experts to 8-bit codes).
  void operator()(const Rope& op) { written(op.x); }
  void operator()(const Store&) {}
  void operator()(const auto& op) { written(op.out); }

 private:
  void multiplied(MatrixId id, const View& in) {
    for (const Made& made : made_) {
      if (made.view == in) found_[static_cast<std::size_t>(id)] = made.norm;
    }
  }
  void written(const View& view) {
    std::erase_if(made_, [&](const Made& made) { return overlap(made.view, view); });
  }

  struct Made {
    View view;
    NormBefore norm;
  };
  std::vector<NormBefore>& found_;
  std::vector<Made> made_;  // norm outputs that no later operation has overwritten
};

}  // namespace

std::vector<NormBefore> norms_before(std::span<const Program* const> programs, std::size_t matrices) {
  std::vector<NormBefore> found(matrices);
  for (const Program* program : programs) {
    NormSearch search(found);
    for (const Op& op : program->ops) std::visit(search, op);
  }
  return found;
}

}  // namespace pumice::cpu
