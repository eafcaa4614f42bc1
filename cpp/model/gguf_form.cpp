#include "model/gguf_form.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/error.h"
#include "model/description.h"
#include "model/reader.h"
#include "model/tensor_names.h"

namespace pumice::model {
namespace {

// Returns which row of the folder's tensor becomes row `row` of the GGUF tensor, if the converter reorders the `size` rows of each head for
// a rope that rotates neighbouring columns. The order is 0, size/2, 1, size/2 + 1, ...
std::int64_t of_pairs(std::int64_t row, std::int64_t size) {
  const std::int64_t in_head = row % size;
  return row - in_head + in_head / 2 + (in_head % 2) * (size / 2);
}

// Returns which row of the folder's tensor becomes row `row` of the GGUF tensor, if the GGUF file has value heads of `size` rows in the
// order of Scan::tiled. In that order, value heads that share a key head are not neighbours.
std::int64_t of_tiles(std::int64_t row, std::int64_t size, const Recurrent& r) {
  const std::int64_t each = r.heads / r.key_heads, head = row / size;
  return (head % r.key_heads * each + head / r.key_heads) * size + row % size;
}

bool is_taps(Role role) {
  return role == Role::scan_q_taps || role == Role::scan_k_taps || role == Role::scan_v_taps || role == Role::conv_taps;
}

Config read_folder(const files::ModelFile& folder, GgufNotes* notes) {
  return read_config(folder, find_assistant(Reader(folder).text("model_type"), false) != nullptr, notes);
}

class Form {
 public:
  explicit Form(const files::ModelFile& folder) : file_(folder), d_{.config = read_folder(folder, &notes_)}, names_(folder, d_.config) {}

  std::map<std::string, std::vector<GgufPart>> parts() {
    add_roles(true);
    for (const OfFile& part : parts_) asked_for_.insert(part.tensor);
    add_roles(false);
    std::map<std::string, std::vector<GgufPart>> found;
    for (OfFile& of_file : parts_) {
      sort_rows(of_file);
      found[of_file.tensor->name].push_back(std::move(of_file.part));
    }
    return found;
  }

 private:
  struct OfFile {
    const files::TensorInfo* tensor = nullptr;  // the folder's tensor, from which `part` is made
    GgufPart part;
    // Pairs of row numbers: a row of the GGUF tensor, and the folder's row that becomes it.
    std::vector<std::pair<std::int64_t, std::int64_t>> rows;
  };

  // Returns the number of layers that predict draft tokens. In GGUF files they are the layers after the model's last layer.
  std::size_t more_layers() const {
    if (d_.config.draft) return 1;
    const Reader read(Reader(file_), d_.config.family->keys);
    return static_cast<std::size_t>(
        read.in_range(read.integer("", "num_nextn_predict_layers").value_or(0), 0, kMaxLayers, read.key("", "num_nextn_predict_layers")));
  }

  // Adds the tensors of the roles that the model needs (asked_for is true), or of all other roles (false). Other roles are added, too,
  // because some files have tensors that the model never uses (layers of Gemma 4 that share keys and values). If two roles have the same
  // tensor name, the role that the model needs decides how the tensor is converted.
  void add_roles(bool asked_for) {
    const std::size_t all = d_.config.layers_in_file() + more_layers();
    for (std::size_t i = 0; i < kRoles; ++i) {
      const auto role = static_cast<Role>(i);
      const std::size_t layers = !of_layer(role) || names_.shared(role) ? 1 : all;
      for (std::size_t layer = 0; layer < layers; ++layer) {
        if ((ask(role, layer).need != Need::never) != asked_for) continue;
        add(role, layer, names_.weight(role, layer), "weight");
        add(role, layer, names_.bias(role, layer), "bias");
      }
    }
  }
  // Returns whether and how the model needs the role's tensor in this layer. It needs none in draft layers that pumice does not run.
  Asked ask(Role role, std::size_t layer) const {
    return of_layer(role) && layer >= d_.config.all_layers() ? Asked{} : asked(d_, role, layer);
  }

  const Layer& like(std::size_t layer) const {
    return layer < d_.config.layers.size() || d_.config.draft ? d_.config.layer(layer) : d_.config.layers.back();
  }

  void add(Role role, std::size_t layer, const TensorNames::Found& found, const char* suffix) {
    if (!found.tensor || asked_for_.contains(found.tensor)) return;
    const auto name = names_.in_gguf(role, found.name);
    if (!name) return;
    const bool weight = std::string_view(suffix) == "weight";
    const bool as_is = name->bare == Bare::both;
    const std::size_t hole = name->gguf.find("{}");
    const std::string begin =
        hole == std::string_view::npos ? std::string(name->gguf) : str(name->gguf.substr(0, hole), layer, name->gguf.substr(hole + 2));
    const std::string full = as_is ? (weight ? begin : str(begin, "_", suffix)) : str(begin, ".", suffix);
    const auto [known, is_new] = index_.try_emplace(full, parts_.size());
    if (is_new) parts_.emplace_back();
    OfFile& to = parts_[known->second];
    if (to.tensor && to.tensor != found.tensor)
      fail(ErrorKind::unsupported_model, file_.path(), ": GGUF files of this family have ", to.tensor->name, " and ", found.tensor->name,
           " in one tensor, ", full, ", which is not written");
    to.tensor = found.tensor;
    GgufPart& part = to.part;
    part.name = full;
    if (weight) {
      part.transposed = found.name.transposed;
      part.taps = is_taps(role);
    }
    describe(part, role, layer, found, *name, weight);
    const std::size_t before = to.rows.size();
    place_rows(to, role, layer, found, names_.layout(*name, role, layer), weight);
    if (const auto said = notes_.factors.find(role); said != notes_.factors.end())
      multiply(to, before, weight ? said->second.weight : said->second.bias);
  }

  // Records the numbers by which the converter multiplies a role's rows. These rows are the entries of to.rows from index `first` on, or
  // all rows of the tensor if there are no such entries.
  void multiply(OfFile& to, std::size_t first, const std::vector<double>& numbers) const {
    auto& lists = to.part.factors;
    lists.resize(std::max(lists.size(), numbers.size()));
    for (std::size_t n = 0; n < numbers.size(); ++n) {
      const auto number = static_cast<float>(numbers[n]);
      if (first == to.rows.size()) lists[n].assign(1, number);
      for (std::size_t i = first; i < to.rows.size(); ++i) {
        const auto row = static_cast<std::size_t>(to.rows[i].first);
        lists[n].resize(std::max(lists[n].size(), row + 1), 1.0f);
        lists[n][row] = number;
      }
    }
  }

  // Sets the fields of `part` other than rows, columns and factors.
  void describe(GgufPart& part, Role role, std::size_t layer, const TensorNames::Found& found, const TensorName& name, bool weight) const {
    const Layer& l = like(layer);
    const Recurrent* r = of_layer(role) ? l.if_recurrent() : nullptr;
    const Use use = ask(role, layer).use;
    const bool is_vector = found.tensor->shape.size() == 1;
    part.plus_one = weight && d_.config.norm_offset && is_vector && !has(use, Use::as_is);
    part.minus_exp = role == Role::scan_rate;
    part.normalised = weight && role == Role::head && d_.config.head_columns;
    if (has(use, Use::folded) && r && r->rule == ScanRule::ssd) part.width = role == Role::scan_norm && r->norm ? r->norm->group : 1;
    if (role == Role::router_choice_bias) part.width = 0;
    if (found.name.fused == Fused::latent_up && name.fused == Fused::no) {
      part.matrices = l.if_latent_attention()->heads;
      part.turned = role == Role::latent_key;
    }
    // nomic-embed v2 stores the matrices of all experts in a tensor of two dimensions, one below the other.
    const Mixture* mixture = of_layer(role) ? l.if_mixture() : nullptr;
    const bool stack = role == Role::expert_gate || role == Role::expert_up || role == Role::expert_down;
    if (weight && stack && mixture && found.tensor->shape.size() == 2 &&
        found.name.safetensors.find("{expert}") == std::string_view::npos) {
      part.matrices = mixture->router.experts;
      part.turned = std::exchange(part.transposed, false);
    }
  }

  // Adds the role's rows to to.rows: their places in the GGUF tensor, and their places in the folder's tensor.
  void place_rows(OfFile& to, Role role, std::size_t layer, const TensorNames::Found& found, const Part& there, bool weight) const {
    const std::vector<std::int64_t>& shape = found.tensor->shape;
    const Layer& l = like(layer);
    const Attention* a = of_layer(role) ? l.if_attention() : nullptr;
    const Recurrent* r = of_layer(role) ? l.if_recurrent() : nullptr;
    const bool pairs = d_.config.family->pairs_in_gguf && a && (role == Role::q || role == Role::k);
    const bool tiles = d_.config.family->tiled_in_gguf && r && (rows_by_value(role) || by_head(role) || role == Role::scan_out);
    const Part here = found.part;
    const bool fused = (found.name.fused != Fused::no || there.whole > 0) && here.whole > 0;
    if (shape.empty() || (!fused && !pairs && !tiles && here.first == 0)) return;
    if (tiles && role == Role::scan_out) {
      require(to, shape.back(), r->value_width(), "columns");
      for (std::int64_t i = 0; i < r->value_width(); ++i) to.part.columns.push_back(of_tiles(i, r->value_dim, *r));
      return;
    }
    const std::int64_t sorted = pairs   ? (role == Role::q ? a->q_width() : a->kv_width())
                                : tiles ? (rows_by_value(role) ? r->value_width() : r->heads)
                                        : 0;
    const std::size_t axis =
        !weight ? shape.size() - 1 : (to.part.transposed && shape.size() > 1 ? 1 : 0) + (shape.size() > 2 && !to.part.taps ? 1 : 0);
    const std::int64_t all = shape[axis], needed = fused ? here.whole : sorted > 0 ? sorted : std::max(all, here.first + 1);
    require(to, all, needed, "rows");
    const std::int64_t rows = fused ? here.whole / here.stride * here.run : needed - here.first;
    const std::int64_t head = pairs ? a->head_dim : tiles && rows_by_value(role) ? r->value_dim : 1;
    to.part.pairs = pairs;
    to.part.whole = all;
    const Part from = here.of_rows(rows), into = there.of_rows(rows);
    for (std::int64_t i = 0; i < rows; ++i)
      to.rows.emplace_back(into.of(i), from.of(pairs ? of_pairs(i, head) : tiles ? of_tiles(i, head, *r) : i));
  }
  void require(const OfFile& part, std::int64_t found, std::int64_t needed, const char* what) const {
    if (found != needed) wrong_shape(file_, *part.tensor, str(needed, " ", what));
  }
  static bool rows_by_value(Role role) { return role == Role::scan_v || role == Role::scan_gate || role == Role::scan_v_taps; }
  static bool by_head(Role role) {
    return role == Role::scan_step || role == Role::scan_beta || role == Role::scan_rate || role == Role::scan_step_bias;
  }

  void sort_rows(OfFile& of_file) const {
    auto& rows = of_file.rows;
    std::ranges::sort(rows);
    for (std::vector<float>& numbers : of_file.part.factors)
      if (numbers.size() > 1) numbers.resize(rows.size(), 1.0f);
    bool same = static_cast<std::int64_t>(rows.size()) == of_file.part.whole;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].first != static_cast<std::int64_t>(i))
        fail(ErrorKind::unsupported_model, file_.path(), ": ", of_file.tensor->name, " does not have all rows of ", of_file.part.name);
      same = same && rows[i].second == rows[i].first;
    }
    if (same) return;
    for (const auto& [to, from] : rows) of_file.part.rows.push_back(from);
  }

  const files::ModelFile& file_;
  GgufNotes notes_;
  Description d_;  // has a configuration, but no weights
  TensorNames names_;
  std::vector<OfFile> parts_;
  std::map<std::string, std::size_t> index_;  // from the name of a GGUF tensor to its index in parts_
  std::set<const files::TensorInfo*> asked_for_;
};

}  // namespace

std::map<std::string, std::vector<GgufPart>> gguf_parts(const files::ModelFile& folder) { return Form(folder).parts(); }

GgufHead gguf_head(const files::ModelFile& folder) {
  GgufNotes notes;
  const Config config = read_folder(folder, &notes);
  GgufHead head{.family = std::string(config.family->name), .tensors = std::move(notes.tensors), .generates = config.has_head};
  if (!config.family->gguf_names.empty()) head.architecture = config.family->gguf_names.front();
  if (const auto said = notes.keys.extract(std::string(kArchitecture))) head.architecture = std::get<std::string>(said.mapped());
  for (auto& [key, value] : notes.keys)
    head.keys.insert_or_assign(key.starts_with("xielu.") ? key : str(head.architecture, ".", key), std::move(value));
  for (const std::string_view field : config.family->folded_in_gguf) head.folded.emplace_back(field);
  return head;
}

}  // namespace pumice::model
