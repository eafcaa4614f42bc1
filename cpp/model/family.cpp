#include "model/family.h"

#include <algorithm>
#include <array>

namespace pumice::model {

namespace {
#define PUMICE_FAMILY(name) &families_in_files::name,
constexpr const Family* kFamilies[] = {
#include "model/families.def"
};
#undef PUMICE_FAMILY
}  // namespace

std::span<const Family* const> families() { return kFamilies; }

const Family* find_family(std::string_view name_in_file, bool gguf) {
  for (const Family* family : kFamilies) {
    const auto names = gguf ? family->gguf_names : family->model_types;
    if (std::ranges::find(names, name_in_file) != names.end()) return family;
  }
  return nullptr;
}

std::string known_families() {
  std::string list;
  for (const Family* family : kFamilies) list += (list.empty() ? "" : ", ") + std::string(family->name);
  return list;
}

}  // namespace pumice::model
