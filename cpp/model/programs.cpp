// Writes the operations that join the parts of layers: norms, sums of rows and branches, and the rows that pass from one stage to the next.
// mixers/ and networks/ write the operations of the parts, and ends.cpp writes the beginning and the end of a program.
#include "model/programs.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/program_check.h"
#include "model/ends.h"
#include "model/layer_inputs.h"
#include "model/mixers/attention.h"
#include "model/mixers/latent_attention.h"
#include "model/mixers/recurrent.h"
#include "model/mixers/short_conv.h"
#include "model/networks/feed_forward.h"
#include "model/networks/mixture.h"

namespace pumice::model {
namespace {

class Body {
 public:
  // If `from_ids` is true and `first` is 0, the program begins with the embeddings of ids. Otherwise its input is hidden rows.
  Body(const Description& d, std::string name, std::size_t first, std::size_t last, Output output, bool from_ids = true)
      : w_(d, std::move(name)),
        first_(first),
        last_(last),
        output_(last == d.config.layers.size() ? output : Output::hidden),
        from_ids_(from_ids),
        keeps_past_(d.config.keeps_past() && (output == Output::hidden || output == Output::selected)),
        kv_(w_, keeps_past_, last, keeps_past_ && (last < d.config.layers.size() || output == Output::selected)),
        states_(w_, keeps_past_),
        inputs_(w_),
        x_(Writer::part(w_.slot(Rows::tokens, embeds() ? d.config.hidden_size : row_width(first)), 0, d.config.hidden_size)),
        h_(w_.slot(Rows::tokens, d.config.hidden_size)),
        attention_(w_, kv_),
        latent_attention_(w_, kv_),
        recurrent_(w_, states_),
        short_conv_(w_, states_),
        feed_forward_(w_),
        mixture_(w_, feed_forward_) {}

  Program write() {
    if (embeds()) {
      write_embedding(w_, x_);
      inputs_.embed(x_);
    } else {
      take_row();
    }
    for (std::size_t layer = first_; layer < last_; ++layer) block(layer);
    w_.program.output = finish().slot;
    return std::move(w_.program);
  }

  // Writes a program of the draft head's layer (side_program()). `caches` are the caches of the model's last stage. The last of these
  // caches belongs to the draft head's layer.
  Program write_draft(bool after_trunk, std::vector<CacheShape> caches) {
    caches.pop_back();  // removes the cache of the draft head's layer, because block() adds it again
    w_.program.caches = std::move(caches);
    w_.program.input = w_.program.output = x_.slot;
    const View both = w_.slot(Rows::tokens, 2 * x_.width);
    const Parameter& own = w_.d.at(w_.c.draft_index(), Role::draft_norm);
    w_.norm(after_trunk || !own.present() ? w_.d.global(Role::final_norm) : own, x_, Writer::part(both, x_.width, x_.width));
    join(both, x_);
    block(w_.c.draft_index());
    return std::move(w_.program);
  }

  const std::map<std::size_t, CacheId>& caches() const { return kv_.caches(); }

  // Writes a program of an assistant (side_program()). This Body must have the assistant's description. `caches` are the caches of the
  // model's last stage, and `of` maps each layer of that stage to its cache.
  Program write_assistant(const Description& model, bool after_trunk, std::vector<CacheShape> caches, std::map<std::size_t, CacheId> of) {
    w_.program.caches = std::move(caches);
    w_.program.stored_by_others = true;
    kv_.use_caches(std::move(of));
    const std::int32_t width = model.config.hidden_size;
    const View both = w_.slot(Rows::tokens, 2 * width), embedding = Writer::part(both, 0, width), row = Writer::part(both, width, width);
    const View in = after_trunk ? w_.slot(Rows::tokens, width) : x_;
    w_.program.input = in.slot;
    w_.program.output = x_.slot;
    if (!after_trunk) {
      w_.norm(w_.d.global(Role::final_norm), x_, h_);
      w_.linear(h_, row, {w_.d.global(Role::assistant_out)});
    }
    Writer of_model(model, {});
    std::swap(of_model.program, w_.program);
    if (after_trunk) of_model.norm(model.global(Role::final_norm), in, row);
    write_embedding(of_model, embedding);
    std::swap(of_model.program, w_.program);
    w_.linear(both, x_, {w_.d.global(Role::assistant_in)});
    for (std::size_t layer = first_; layer < last_; ++layer) block(layer);
    return std::move(w_.program);
  }

 private:
  bool embeds() const { return first_ == 0 && from_ids_; }

  // Returns the width of a row that enters layer `border` from an earlier stage. The row consists of the hidden row, the keys and values of
  // earlier layers that this stage or later stages need, and LayerInputs.
  std::int32_t row_width(std::size_t border) const { return w_.c.hidden_size + kv_.width(border) + inputs_.width(border); }

  void take_row() {
    w_.program.input = x_.slot;
    const std::int32_t kv = kv_.width(first_);
    kv_.take(Writer::part(x_, x_.width, kv), first_);
    inputs_.take(Writer::part(x_, x_.width + kv, inputs_.width(first_)), first_);
  }

  View give_row() {
    const std::int32_t width = row_width(last_);
    if (width == x_.width && w_.program.slots[static_cast<std::size_t>(x_.slot)].width == width) return x_;
    View out = w_.slot(Rows::tokens, width);
    std::int32_t col = 0;
    const auto copy = [&](const View& from) {
      w_.scale(from, Writer::part(out, col, from.width), 1);
      col += from.width;
    };
    copy(x_);
    for (const View& kept : kv_.give(last_)) copy(kept);
    if (inputs_.width(last_) > 0) copy(inputs_.give(last_));
    return out;
  }

  View finish() {
    write_final_norm(w_, x_, output_);
    switch (output_) {
      case Output::hidden:
        return give_row();
      case Output::tokens: {
        const View rows = from_ids_ ? write_modules(w_, x_, true) : x_;
        return rows.slot == x_.slot ? give_row() : rows;
      }
      case Output::selected: {
        const View rows = write_selected(w_, x_);
        if (w_.c.draft) store_draft();
        return rows;
      }
      case Output::pooled:
        return write_pooled(w_, x_);
      case Output::classes:
        return write_classes(w_, x_);
      case Output::sparse:
        return write_sparse(w_, x_);
    }
    fail(ErrorKind::invalid_argument, "an output that is not known");
  }

  // Stores the keys and values of the draft head's layer for all rows of the batch, so that drafting can begin at any time, even in a text
  // whose beginning came from the prefix cache. This costs little, because no queries are computed. The layer's input at a position is
  // computed from the position's token and the hidden row of the previous position. For the first row of a segment, that hidden row is in
  // the state.
  void store_draft() {
    const View both = w_.slot(Rows::tokens, 2 * x_.width);
    w_.norm(w_.d.global(Role::final_norm), x_, h_);
    w_.add(Conv{.in = h_,
                .out = Writer::part(both, x_.width, x_.width),
                .taps = w_.d.draft_shift,
                .width = 2,
                .state = states_.add({1, 1, x_.width})});
    join(both, h_);
    const std::size_t layer = w_.c.draft_index();
    if (w_.c.draft->mixer_norms.before) w_.norm(w_.d.at(layer, Role::attn_norm), h_, h_);
    attention_.store(layer, w_.c.draft->attention(), h_);
  }

  // Computes the input row of the draft head's layer from the token's embedding and a hidden row. The hidden row must be in the second half
  // of `both`.
  void join(const View& both, const View& out) {
    const View embedding = Writer::part(both, 0, out.width), hidden = Writer::part(both, out.width, out.width);
    const std::size_t layer = w_.c.draft_index();
    write_embedding(w_, embedding);
    w_.norm(w_.d.at(layer, Role::draft_embedding_norm), embedding, embedding);
    w_.norm(w_.d.at(layer, Role::draft_hidden_norm), hidden, hidden);
    w_.linear(both, out, {w_.d.at(layer, Role::draft_join)});
  }

  // ---------------------------------------------------------------- a layer
  void block(std::size_t layer) {
    const Layer& l = w_.c.layer(layer);
    const bool mixes = !std::holds_alternative<std::monostate>(l.mixer), networks = !std::holds_alternative<std::monostate>(l.network);
    View beside;
    if (l.join.parallel && networks) beside = parallel_input(layer);
    if (mixes) {
      const View in = l.mixer_norms.before ? normed(layer, Role::attn_norm, l.mixer_norms) : x_;
      std::vector<BranchEnd> ends = {mix(layer, in)};
      if (l.beside) ends.push_back(recurrent_.write(layer, *l.beside, in));
      close(layer, ends, l.mixer_norms, Role::attn_branch_norm, Role::attn_residual_norm);
    }
    if (networks) {
      View in = l.join.parallel ? beside : x_;
      if (!l.join.parallel && l.network_norms.before) in = normed(layer, Role::ffn_norm, l.network_norms);
      close(layer, network(layer, in), l.network_norms, Role::ffn_branch_norm, Role::ffn_residual_norm);
    }
    if (l.tail && l.tail->input) inputs_.write(layer, x_, h_);
    if (l.tail && l.tail->scaled) w_.scale(x_, x_, w_.d.number(w_.d.at(layer, Role::layer_scale)));
    if (l.tail && l.tail->final_norm) w_.norm(w_.d.global(Role::final_norm), x_, x_);
  }

  BranchEnd mix(std::size_t layer, const View& in) {
    return std::visit(
        EachPart{[](const std::monostate&) -> BranchEnd { absent(); }, [&](const Attention& a) { return attention_.write(layer, a, in); },
                 [&](const LatentAttention& t) { return latent_attention_.write(layer, t, in); },
                 [&](const Recurrent& r) { return recurrent_.write(layer, r, in); },
                 [&](const ShortConv& s) { return short_conv_.write(layer, s, in); }},
        w_.c.layer(layer).mixer);
  }
  std::vector<BranchEnd> network(std::size_t layer, const View& in) {
    return std::visit(EachPart{[](const std::monostate&) -> std::vector<BranchEnd> { absent(); },
                               [&](const FeedForward& f) -> std::vector<BranchEnd> { return {feed_forward_.write(layer, f, in)}; },
                               [&](const Mixture& x) { return mixture_.write(layer, x, in, x_); }},
                      w_.c.layer(layer).network);
  }
  [[noreturn]] static void absent() { fail(ErrorKind::unsupported_model, "a layer without a part is asked for its operations"); }

  View normed(std::size_t layer, Role norm, const Norms& norms) {
    const View out = norms.residual == Residual::normalised ? x_ : h_;
    w_.norm(w_.d.at(layer, norm), x_, out);
    return out;
  }

  // Returns the view of a parallel network's input (Join::parallel). Call this before the mixer's result is added to x_, because the
  // network's own norm reads x_.
  View parallel_input(std::size_t layer) {
    if (!w_.c.layer(layer).network_norms.before) return h_;  // the network has no norm of its own and reads the result of the mixer's norm
    if (!beside_) beside_ = w_.slot(Rows::tokens, w_.c.hidden_size);
    w_.norm(w_.d.at(layer, Role::ffn_norm), x_, beside_);
    return beside_;
  }

  // Adds the result of a branch to the hidden row x. Here `product` is the branch's result, c is Join::scale, and the norms are those that
  // the layer has.
  //   x += c product                      without a norm of the branch or of the sum
  //   x += norm(product)                  with a norm of the branch
  //   x = norm(x + c product)             with a norm of the sum
  //   x = norm2(x + norm(x + c product))  with Residual::twice
  void close(std::size_t layer, const std::vector<BranchEnd>& ends, const Norms& norms, Role branch_norm, Role sum_norm) {
    if (const BranchEnd& end = ends.front(); !end.product && !end.experts) {
      if (!norms.branch || ends.size() > 1) fail(ErrorKind::unsupported_model, "a branch without a last matrix needs a norm of its own");
      return w_.norm(w_.d.at(layer, branch_norm), end.rows, x_, x_);
    }
    const bool twice = norms.residual == Residual::twice;
    View sum = norms.branch || twice ? h_ : x_;
    if (ends.back().experts && ends.back().experts->in.slot == sum.slot) {
      if (!results_) results_ = w_.slot(Rows::tokens, w_.c.hidden_size);
      sum = results_;
    }
    const float c = norms.branch ? 1 : w_.c.layer(layer).join.scale;
    View onto = norms.branch ? View{} : x_;
    for (const BranchEnd& end : ends) {
      if (end.experts) {
        Experts op = *end.experts;
        op.out = sum;
        op.residual = onto;
        op.scale *= c * end.scale;
        w_.add(op);
        if (end.addend && op.scale != 1) fail(ErrorKind::unsupported_model, "a scale of a mixture whose sum has a bias");
        if (end.addend) w_.norm(w_.d.at(layer, *end.addend), sum, sum, sum);
      } else {
        w_.linear(end.rows, sum, {w_.d.at(layer, *end.product)}, {.residual = onto, .scale = c * end.scale});
      }
      onto = sum;
    }
    if (norms.branch) {
      w_.norm(w_.d.at(layer, branch_norm), sum, x_, x_);
      return;
    }
    if (norms.sum) {
      w_.norm(w_.d.at(layer, sum_norm), sum, x_, twice ? x_ : View{});
    } else if (sum != x_) {
      w_.scale(sum, x_, 1);
    }
    if (twice) w_.norm(w_.d.at(layer, Role::attn_second_norm), x_, x_);
  }

  Writer w_;
  const std::size_t first_, last_;
  const Output output_;
  const bool from_ids_, keeps_past_;
  SharedKv kv_;
  States states_;
  LayerInputsWriter inputs_;
  View x_, h_;  // the hidden rows, and a slot for their norm
  AttentionMixer attention_;
  LatentAttentionMixer latent_attention_;
  RecurrentMixer recurrent_;
  ShortConvMixer short_conv_;
  FeedForwardNetwork feed_forward_;
  MixtureNetwork mixture_;
  View beside_;
  View results_;  // close() writes a branch's result here if it cannot use x_ or h_, because the branch's Experts operation reads that slot
};

}  // namespace

Program body_program(const Description& d, std::size_t first, std::size_t last, Output output) {
  return Body(d, str("layers ", first, " to ", last), first, last, output).write();
}

Program layer_program(const Description& d, std::size_t layer) {
  return Body(d, str("layer ", layer), layer, layer + 1, Output::tokens, false).write();
}

Program query_program(const Description& d, std::size_t layer, Attend& attend) {
  Program program = layer_program(d, layer);
  program.name = str("queries, keys and values of layer ", layer);
  const auto at = std::ranges::find_if(program.ops, [](const Op& op) { return std::holds_alternative<Attend>(op); });
  if (at == program.ops.end()) fail(ErrorKind::unsupported_model, "layer ", layer, " has no attention of queries and keys");
  attend = std::get<Attend>(*at);
  program.ops.erase(at, program.ops.end());
  // Copies the inputs of attention side by side to a new slot, which becomes the program's output. No other slot can be the output, because
  // the slot of q, k and v may be wider than what this layer writes, and the keys and values of an earlier layer are in another slot.
  const auto slot = static_cast<std::int32_t>(program.slots.size());
  SlotShape shape{Rows::tokens};
  for (View* view : {&attend.q, &attend.k, &attend.v, &attend.by_query, &attend.by_key}) {
    if (!*view) continue;
    const View from = std::exchange(*view, {slot, shape.width, view->width});
    program.ops.push_back(Multiply{.a = from, .out = *view});
    shape.width += view->width;
  }
  program.slots.push_back(shape);
  program.output = slot;
  return program;
}

// Returns the matrices of a product in which every matrix multiplies the whole input, and sets `in` to that input. Returns an empty vector
// for other operations.
static std::vector<MatrixId> product_of(const Op& op, View& in) {
  std::vector<MatrixId> matrices;
  if (const auto* linear = std::get_if<Linear>(&op)) {
    in = linear->in;
    for (const LinearPart& part : linear->parts) matrices.push_back(part.weight);
  } else if (const auto* gated = std::get_if<GatedLinear>(&op)) {
    in = gated->in;
    matrices = {gated->gate, gated->up};
  } else if (const auto* heads = std::get_if<HeadLinear>(&op); heads && heads->in_step == 0) {
    in = heads->in;
    matrices = {heads->weight};
  }
  return matrices;
}

Program product_program(const Description& d, const WeightShapes& shapes, std::size_t layer, std::vector<ProductInput>& inputs) {
  Program program = layer_program(d, layer);
  const ProgramFacts facts = check_program(program, shapes);
  program.name = str("inputs of products of layer ", layer);
  inputs.clear();
  const auto slot = static_cast<std::int32_t>(program.slots.size());
  SlotShape shape{Rows::tokens, program.slots[static_cast<std::size_t>(program.output)].width};
  std::vector<Op> ops;
  // Inputs of products that have been copied to `slot`, and that the program has not overwritten since. Each has its index in `inputs`.
  std::vector<std::pair<View, std::size_t>> current;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    View in;
    const std::vector<MatrixId> matrices = product_of(program.ops[i], in);
    if (!matrices.empty() && program.slots[static_cast<std::size_t>(in.slot)].rows == Rows::tokens) {
      auto known = std::ranges::find(current, in, &std::pair<View, std::size_t>::first);
      if (known == current.end()) {
        ops.emplace_back(Multiply{.a = in, .out = {slot, shape.width, in.width}});
        known = current.insert(current.end(), {in, inputs.size()});
        inputs.push_back({shape.width, in.width, {}});
        shape.width += in.width;
      }
      std::vector<MatrixId>& all = inputs[known->second].matrices;
      all.insert(all.end(), matrices.begin(), matrices.end());
    }
    for (const Touch& touch : facts.touches[i]) {
      if (touch.writes) std::erase_if(current, [&](const auto& input) { return overlap(input.first, touch.view); });
    }
    ops.push_back(std::move(program.ops[i]));
  }
  const std::int32_t width = program.slots[static_cast<std::size_t>(program.output)].width;
  ops.emplace_back(Multiply{.a = {program.output, 0, width}, .out = {slot, 0, width}});
  program.ops = std::move(ops);
  program.slots.push_back(shape);
  program.output = slot;
  return program;
}

Program side_program(const Description& d, const SidePart& side, std::size_t first, bool after_trunk) {
  const std::size_t layers = d.config.layers.size();
  const std::string name = str(side.name().name, after_trunk ? "" : ", further tokens");
  Body trunk(d, "layers", first, layers, Output::selected);
  std::vector<CacheShape> caches = trunk.write().caches;
  switch (side.kind) {
    case SideKind::draft_head:
      return Body(d, name, layers, layers, Output::hidden, false).write_draft(after_trunk, std::move(caches));
    case SideKind::assistant:
      return Body(*side.own, name, 0, side.own->config.layers.size(), Output::hidden, false)
          .write_assistant(d, after_trunk, std::move(caches), trunk.caches());
  }
  fail(ErrorKind::unsupported_model, "a side part of a kind that is not known");
}

Program side_logits_program(const Description& d, const SidePart& side) {
  const Description& own = side.own ? *side.own : d;
  const Parameter& norm = side.own ? own.global(Role::final_norm) : d.at(d.config.draft_index(), Role::draft_norm);
  return write_head(own, str("logits of the ", side.name().name), Give::logits, norm.present() ? norm : d.global(Role::final_norm));
}

std::vector<EndOutput> ends_of(const Description& d) {
  std::vector<EndOutput> ends;
  if (!d.modules.empty() || d.global(Role::projection).present())
    ends.push_back({d.modules.empty() ? "projection" : "modules", Output::pooled});
  if (d.labels > 0) ends.push_back({"classifier", Output::classes});
  if (d.gives_sparse()) ends.push_back({"MLM head", Output::sparse});
  return ends;
}

Program head_program(const Description& d) { return write_head(d, "head", Give::logits, d.global(Role::final_norm)); }
Program log_prob_program(const Description& d) { return write_head(d, "log-probabilities", Give::log_probs, d.global(Role::final_norm)); }
Program top_program(const Description& d) { return write_head(d, "largest logits", Give::top, d.global(Role::final_norm)); }

}  // namespace pumice::model
