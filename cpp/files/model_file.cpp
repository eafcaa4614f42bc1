#include "files/model_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "core/checked.h"
#include "core/error.h"
#include "files/gguf.h"
#include "files/gguf_formats.h"
#include "files/json.h"
#include "files/limits.h"
#include "files/made_tensor.h"
#include "files/safetensors.h"
#include "files/schemes/schemes.h"
#include "files/text.h"

namespace pumice::files {
namespace {

constexpr std::string_view kGguf = ".gguf", kSafetensors = ".safetensors";
constexpr char kConfig[] = "config.json", kModel[] = "model.safetensors", kIndex[] = "model.safetensors.index.json",
               kQuantConfig[] = "hf_quant_config.json";
constexpr const char* kConvert =
    "which is never opened, because reading it can run code; convert it to safetensors: save_pretrained() of transformers writes that";

// The first bytes of a file that is not a model, and what such a file is. The user sees `meaning` in the error message.
struct Beginning {
  std::string_view bytes, meaning;
};
constexpr Beginning kOtherFiles[] = {
    {"PK\x03\x04",
     "a zip archive; if this is a PyTorch checkpoint (.bin, .pt), it holds a pickle, which is never opened, because reading it can "
     "run code; convert it to safetensors"},
    {"\x80\x02", "a pickle (.bin, .pt), which is never opened, because reading it can run code; convert it to safetensors"},
    {"version https://git-lfs", "the placeholder of a file in Git LFS, not the file; fetch it with git lfs pull"},
    {"<", "a web page or XML; the download of the model has failed or asked for a login"},
    {"{", "JSON text; give the folder of the model instead"},
    {"lmgg", "a GGML file from before GGUF; convert the original model to GGUF"},
    {"fmgg", "a GGML file from before GGUF; convert the original model to GGUF"},
    {"tjgg", "a GGML file from before GGUF; convert the original model to GGUF"},
    {"FUGG", "a GGUF file of reversed byte order"},
    {"\x89HDF", "a Keras or TensorFlow checkpoint; convert it to safetensors"},
};

std::string beginning(const File& file) {
  std::string bytes(std::min<std::uint64_t>(file.size(), 24), '\0');
  file.read(0, bytes.size(), bytes.data());
  return bytes;
}

const Beginning* known_other(std::string_view bytes) {
  // A safetensors file begins with 8 bytes that have the length of its header, and then has the header's `{`. By chance the 8 bytes may
  // equal the beginning of another kind of file, so the `{` decides.
  if (bytes.size() > 8 && bytes[8] == '{') return nullptr;
  const auto found = std::ranges::find_if(kOtherFiles, [&](const Beginning& other) { return bytes.starts_with(other.bytes); });
  return found == std::end(kOtherFiles) ? nullptr : found;
}

// The fields of a part's file name. In "model-00002-of-00003.gguf" the stem is "model", the number 2 and the count 3.
struct PartName {
  std::string stem;
  std::int64_t number = 0, count = 0;
};
std::optional<PartName> part_name(std::string_view name, std::string_view suffix) {
  constexpr std::size_t kTail = 1 + 5 + 4 + 5;  // length of "-00002-of-00003"
  if (!name.ends_with(suffix)) return std::nullopt;
  name.remove_suffix(suffix.size());
  if (name.size() < kTail) return std::nullopt;
  const std::string_view tail = name.substr(name.size() - kTail);
  const auto number = [](std::string_view digits) -> std::int64_t {
    if (!std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; })) return -1;
    std::int64_t value = -1;
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return value;
  };
  PartName part{std::string(name.substr(0, name.size() - kTail)), number(tail.substr(1, 5)), number(tail.substr(10, 5))};
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || part.number < 1 || part.count < part.number) return std::nullopt;
  return part;
}

// Lists the names that end with `suffix`, for messages: " (a.gguf, b.gguf)". Returns an empty string if there are none.
std::string listed(const std::vector<std::string>& names, std::string_view suffix) {
  std::string list;
  int shown = 0;
  for (const std::string& name : names) {
    if (!name.ends_with(suffix) || ++shown > 5) continue;
    list += (list.empty() ? " (" : ", ") + printable(name, 80);
  }
  return list.empty() ? list : list + (shown > 5 ? ", ...)" : ")");
}

template <class... Parts>
[[noreturn]] void fail_model(const std::string& path, const Parts&... parts) {
  fail_at(ErrorKind::model_format, path, "", std::nullopt, parts...);
}

[[noreturn]] void fail_no_model(const Folder& folder, const char* missing) {
  const auto names = folder.names();
  if (const auto list = listed(names, kGguf); !list.empty()) fail_model(folder.path(), "holds GGUF files", list, "; give the path of one");
  if (folder.has("adapter_config.json")) {
    fail_model(folder.path(), "is not a model: it holds an adapter (LoRA); load the model that it was trained on, with lora= this folder");
  }
  if (!folder.has(kConfig)) {
    fail_model(folder.path(), "is not a model: it has no config.json", listed(names, kSafetensors),
               "; a folder needs config.json and model.safetensors");
  }
  for (const std::string_view pickle : {".bin", ".pt", ".pth", ".ckpt"}) {
    if (const auto list = listed(names, pickle); !list.empty())
      fail_model(folder.path(), "has its weights only as a pickle", list, ", ", kConvert);
  }
  if (const auto list = listed(names, kSafetensors); !list.empty())
    fail_model(folder.path(), "has no ", missing, ", but", list, "; give the path of one");
  fail_model(folder.path(), "has no weights: no ", missing);
}

}  // namespace

std::shared_ptr<const ModelFile> ModelFile::open(const std::string& path) {
  const auto opened = [&]() -> Contents {
    if (is_folder(path)) return open_safetensors(path, Folder(path), "");
    File file = File::open(path);
    const std::string bytes = beginning(file);
    if (bytes.starts_with("GGUF")) return open_gguf(path, std::move(file));
    const auto refuse = [&](const auto&... why) { fail_at(ErrorKind::model_format, path, "", 0, "is not a model: it ", why...); };
    if (bytes.empty()) refuse("is empty");
    if (const auto* other = known_other(bytes)) refuse("begins with ", quote(bytes.substr(0, 8)), ": ", other->meaning);
    if (!path.ends_with(kSafetensors)) {
      refuse("begins with ", quote(bytes.substr(0, 8)),
             "; a GGUF file begins with 'GGUF', and a safetensors file has the name "
             ".safetensors. If this is a pickle (.bin, .pt), convert it to safetensors");
    }
    const auto [folder, name] = folder_and_name(path);
    // If the file is one of several shards, the whole folder is opened.
    const bool shard = part_name(name, kSafetensors) && Folder(folder).has(kIndex);
    return open_safetensors(path, Folder(folder), shard ? "" : name);
  };
  return finish(opened(), path);
}

std::shared_ptr<const ModelFile> ModelFile::open_weights(const std::string& path) {
  Contents model;
  model.kind = Kind::safetensors;
  model.tensors = add_safetensors(model, File::open_in_folder(path));
  return finish(std::move(model), path);
}

std::shared_ptr<const ModelFile> ModelFile::finish(Contents opened, const std::string& path) {
  opened.path = path;
  index_names(opened);
  if (opened.kind == Kind::safetensors)
    opened.scheme = schemes::add_schemes(opened.metadata, opened.hf_quant_config, opened.files, opened.tensors);
  else
    apply_factors(opened.files, opened.tensors);
  index_names(opened);
  if (opened.tensors.empty()) {
    const bool gguf = opened.kind == Kind::gguf, adapter = gguf && opened.metadata.string("general.type") == "adapter";
    fail_at(ErrorKind::unsupported_model, path, "", std::nullopt, "holds no tensors",
            adapter ? ": an adapter has two of each matrix"
            : gguf  ? "; a vocabulary alone cannot be run"
                    : "");
  }
  std::shared_ptr<ModelFile> model(new ModelFile);
  model->contents_ = std::make_shared<const Contents>(std::move(opened));
  return model;
}

std::shared_ptr<const ModelFile> ModelFile::summed() const {
  std::shared_ptr<ModelFile> view(new ModelFile);
  view->contents_ = contents_;
  view->sums_ = std::make_unique<ReadSums>(contents_->tensors.size());
  return view;
}

void ModelFile::require_unchanged() const {
  for (const File& file : contents_->files) file.require_unchanged();
}

namespace {

// Throws if a later part of a split model belongs to another model. The first part has all metadata. Later parts have the keys that
// describe the split (split.no and others), and may repeat the first part's other keys (gguf-split does not repeat them). If a later part
// repeats a key with another value, it belongs to another model.
void require_same(const Metadata& part, const Metadata& first) {
  for (const auto& [key, value] : part.entries()) {
    const Value* expected = first.value(key);
    if (key == "split.no" || !expected || *expected == value) continue;
    fail_at(ErrorKind::model_format, part.file(), key, std::nullopt, "differs from the value in the first part, ", quote(first.file()),
            ". The parts do not belong together");
  }
}

}  // namespace

ModelFile::Contents ModelFile::open_gguf(const std::string& path, File file) {
  Contents model;
  model.kind = Kind::gguf;
  GgufHeader header = read_gguf_header(file, 0);
  Metadata metadata(path, std::move(header.entries));
  const std::int64_t parts = metadata.integer("split.count").value_or(1);
  if (parts <= 1) {
    const auto announced = metadata.integer("split.tensors.count");
    if (announced && *announced != static_cast<std::int64_t>(header.tensors.size())) {
      fail_at(ErrorKind::model_format, path, "split.tensors.count", std::nullopt, "is ", *announced, ", but this file holds ",
              header.tensors.size(), " tensors and names no other parts");
    }
    model.gguf_version = header.version;
    model.files.push_back(std::move(file));
    model.tensors = std::move(header.tensors);
    model.metadata = std::move(metadata);
    return model;
  }

  const auto [folder_path, name] = folder_and_name(path);
  const auto named = part_name(name, kGguf);
  if (!named || named->count != parts || static_cast<std::uint64_t>(parts) > kMaxShards) {
    fail_at(ErrorKind::model_format, path, "split.count", std::nullopt, "is ", parts,
            ", and the parts of a split model are found by names as in "
            "model-00001-of-00003.gguf; this file is called ",
            quote(name), ". At most ", kMaxShards, " parts are read");
  }
  const Folder folder(folder_path);
  std::int64_t announced = 0;
  for (std::int64_t part = 1; part <= parts; ++part) {
    const auto digits = [](std::int64_t n) { return in_base(static_cast<std::uint64_t>(n), 10, 5); };
    File part_file = part == named->number ? std::move(file)  // NOLINT(bugprone-use-after-move): one part has this number
                                           : folder.open(str(named->stem, "-", digits(part), "-of-", digits(parts), kGguf));
    GgufHeader part_header = read_gguf_header(part_file, static_cast<std::uint32_t>(part - 1));
    Metadata part_metadata(part_file.path(), std::move(part_header.entries));
    const auto expect = [&](const char* key, std::int64_t needed) {
      const auto found = part_metadata.integer(key);
      if (found == needed) return;
      fail_at(ErrorKind::model_format, part_file.path(), key, std::nullopt, found ? str("is ", *found) : "is missing", "; ", needed,
              " is needed for part ", part, " of ", parts, ". The parts do not belong together");
    };
    if (part == 1) announced = part_metadata.integer("split.tensors.count").value_or(-1);
    expect("split.no", part - 1);
    expect("split.count", parts);
    if (announced >= 0) expect("split.tensors.count", announced);
    if (model.tensors.size() + part_header.tensors.size() > kMaxTensors) {
      fail_at(ErrorKind::model_format, part_file.path(), "", std::nullopt, "the parts have more than ", kMaxTensors, " tensors");
    }
    std::ranges::move(part_header.tensors, std::back_inserter(model.tensors));
    model.files.push_back(std::move(part_file));
    if (part == 1) {
      model.gguf_version = part_header.version;
      model.metadata = std::move(part_metadata);
    } else {
      require_same(part_metadata, model.metadata);
    }
  }
  if (static_cast<std::int64_t>(model.tensors.size()) != announced) {
    fail_at(ErrorKind::model_format, path, "split.tensors.count", std::nullopt,
            announced < 0 ? std::string("is missing") : str("is ", announced), ", but the ", parts, " parts hold ", model.tensors.size(),
            " tensors");
  }
  return model;
}

ModelFile::Contents ModelFile::open_safetensors(const std::string& path, const Folder& folder, const std::string& only_file) {
  Contents model;
  model.kind = Kind::safetensors;
  if (!folder.has(kConfig)) fail_no_model(folder, kModel);
  const File config = folder.open(kConfig);
  model.json_text = config.read_all(kMaxConfigBytes);
  model.metadata = Metadata(config.path(), parse_config(config.path(), model.json_text));
  if (folder.has(kQuantConfig)) {
    const File quant = folder.open(kQuantConfig);
    model.hf_quant_config = Metadata(quant.path(), parse_config(quant.path(), quant.read_all(kMaxConfigBytes)));
  }

  if (!only_file.empty()) {
    model.tensors = add_safetensors(model, File::open(path));
    return model;
  }
  if (folder.has(kModel)) {
    model.tensors = add_safetensors(model, folder.open(kModel));
    return model;
  }
  if (!folder.has(kIndex)) fail_no_model(folder, "model.safetensors or model.safetensors.index.json");

  const File index = folder.open(kIndex);
  const auto shard_of = read_safetensors_index(index);
  std::map<std::string_view, std::uint64_t> tensors_in;  // number of tensors that the index announces for each shard
  for (const auto& [tensor, shard] : shard_of) ++tensors_in[shard];
  if (tensors_in.size() > kMaxShards) {
    fail_at(ErrorKind::model_format, index.path(), "weight_map", std::nullopt, "names ", tensors_in.size(), " files; at most ", kMaxShards,
            " are read");
  }
  for (const auto& [shard, announced] : tensors_in) {
    std::uint64_t found = 0;
    for (TensorInfo& tensor : add_safetensors(model, folder.open(std::string(shard)))) {
      const auto entry = shard_of.find(tensor.name);
      if (entry == shard_of.end() || entry->second != shard) continue;  // only tensors in the index belong to the model
      model.tensors.push_back(std::move(tensor));
      ++found;
    }
    if (found == announced) continue;
    std::set<std::string_view> present;
    for (const TensorInfo& tensor : model.tensors) present.insert(tensor.name);
    for (const auto& [tensor, in] : shard_of) {
      if (in != shard || present.contains(tensor)) continue;
      fail_at(ErrorKind::model_format, index.path(), "weight_map." + tensor, std::nullopt, "is said to be in ", quote(shard),
              ", which has no such tensor");
    }
  }
  return model;
}

std::vector<TensorInfo> ModelFile::add_safetensors(Contents& contents, File file) {
  if (const auto* other = known_other(beginning(file))) {
    fail_at(ErrorKind::model_format, file.path(), "", 0, "is not a safetensors file but ", other->meaning);
  }
  auto tensors = read_safetensors_header(file, static_cast<std::uint32_t>(contents.files.size()));
  contents.files.push_back(std::move(file));
  return tensors;
}

void ModelFile::index_names(Contents& contents) {
  const std::vector<TensorInfo>& tensors = contents.tensors;
  std::vector<std::uint32_t>& by_name = contents.by_name;
  by_name.resize(tensors.size());
  std::iota(by_name.begin(), by_name.end(), 0u);
  const auto name = [&](std::uint32_t i) -> std::string_view { return tensors[i].name; };
  std::ranges::sort(by_name, {}, name);
  if (const auto twice = std::ranges::adjacent_find(by_name, {}, name); twice != by_name.end()) {
    const TensorInfo& tensor = tensors[*twice];
    fail_at(ErrorKind::model_format, contents.files[tensor.file].path(), "tensor " + tensor.name, std::nullopt, "comes twice");
  }
}

std::uint64_t ModelFile::size_bytes() const {
  return std::accumulate(contents_->files.begin(), contents_->files.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const File& file) { return sum + file.size(); });
}

const TensorInfo* ModelFile::find(std::string_view name) const {
  const std::vector<TensorInfo>& tensors = contents_->tensors;
  const auto name_of = [&](std::uint32_t i) -> std::string_view { return tensors[i].name; };
  const auto found = std::ranges::lower_bound(contents_->by_name, name, {}, name_of);
  return found != contents_->by_name.end() && name_of(*found) == name ? &tensors[*found] : nullptr;
}

std::size_t ModelFile::index_of(const TensorInfo& tensor) const {
  const TensorInfo* own = find(tensor.name);  // found by name, because `tensor` may be a copy
  require(own && own->file == tensor.file && own->offset == tensor.offset && own->bytes == tensor.bytes, "tensor ", tensor.name,
          " is of another model");
  return static_cast<std::size_t>(own - contents_->tensors.data());
}

// Reads some bytes of a made tensor. Only whole rows can be made. If the bytes begin or end inside a row, the whole rows are made in a
// buffer, and the bytes are copied from there.
void ModelFile::read_made(const TensorInfo& tensor, std::uint64_t offset, std::uint64_t count, std::uint8_t* out) const {
  if (count == 0) return;
  const auto row = static_cast<std::uint64_t>(row_bytes(*tensor.format, tensor.shape.back()));
  const std::uint64_t first = offset / row, end = (offset + count - 1) / row + 1;
  const auto make = [&](std::uint8_t* to) {
    tensor.made->read(contents_->files, static_cast<std::int64_t>(first), static_cast<std::int64_t>(end - first), to);
  };
  if (first * row == offset && (end - first) * row == count) return make(out);
  std::vector<std::uint8_t> rows(static_cast<std::size_t>((end - first) * row));
  make(rows.data());
  std::copy_n(rows.data() + (offset - first * row), count, out);
}

void ModelFile::read(const TensorInfo& tensor, std::uint64_t offset, std::uint64_t count, std::uint8_t* out) const {
  const std::size_t index = index_of(tensor);
  require(offset <= tensor.bytes && count <= tensor.bytes - offset, "tensor ", tensor.name, " has ", tensor.bytes, " bytes; ", count,
          " from ", offset, " on were asked for");
  const TensorInfo& own = contents_->tensors[index];
  if (own.made) {
    read_made(own, offset, count, out);
  } else {
    contents_->files[tensor.file].read(tensor.offset + offset, static_cast<std::size_t>(count), out);
  }
  if (sums_) sums_->add(index, offset, {out, static_cast<std::size_t>(count)});
}

Format ModelFile::format(const TensorInfo& tensor) const {
  if (tensor.format) return *tensor.format;
  std::string known;
  for (const FormatInfo& format : kFormats) known += str(known.empty() ? "" : ", ", format.name);
  fail_at(ErrorKind::unsupported_model, contents_->files[tensor.file].path(), "tensor " + tensor.name, std::nullopt, "has the format ",
          tensor.format_name, ", which this version does not compute with; it computes with ", known);
}

std::vector<float> ModelFile::read_floats(const TensorInfo& tensor) const {
  constexpr std::uint64_t kAtOnce = 1u << 20;
  const FormatInfo& kind = info(format(tensor));
  const auto block_bytes = static_cast<std::uint64_t>(kind.block_bytes), block = static_cast<std::uint64_t>(kind.block);
  std::vector<float> values(tensor.bytes / block_bytes * block);
  std::vector<std::uint8_t> packed(std::min(tensor.bytes, kAtOnce / block_bytes * block_bytes));
  for (std::uint64_t done = 0; done < tensor.bytes;) {
    const std::uint64_t now = std::min<std::uint64_t>(packed.size(), tensor.bytes - done);
    read(tensor, done, now, packed.data());
    unpack(kind.format, packed.data(), static_cast<std::int64_t>(now / block_bytes * block), &values[done / block_bytes * block]);
    done += now;
  }
  const auto bad = std::ranges::find_if_not(values, [](float value) { return std::isfinite(value); });
  if (bad != values.end()) {
    fail_at(ErrorKind::numeric, contents_->files[tensor.file].path(), "tensor " + tensor.name, std::nullopt, "value ", bad - values.begin(),
            " is ", *bad);
  }
  return values;
}

}  // namespace pumice::files
