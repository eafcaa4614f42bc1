#include "model/family.h"

#include <algorithm>
#include <array>

#include "model/reader.h"

namespace pumice::model {

namespace {
#define PUMICE_FAMILY(file, name) &families_in_files::file::name,
#define PUMICE_ASSISTANT(file, name)
constexpr const Family* kFamilies[] = {
#include "model/families.def"
};
#undef PUMICE_FAMILY
#undef PUMICE_ASSISTANT
#define PUMICE_FAMILY(file, name)
#define PUMICE_ASSISTANT(file, name) &families_in_files::file::name,
constexpr const Family* kAssistants[] = {
#include "model/families.def"
};
#undef PUMICE_FAMILY
#undef PUMICE_ASSISTANT
}  // namespace

std::span<const Family* const> families() { return kFamilies; }

const Family* find_family(std::string_view name_in_file, const Reader& read) {
  const Family* found = nullptr;
  for (const Family* family : kFamilies) {
    const auto names = read.gguf() ? family->gguf_names : family->model_types;
    if (std::ranges::find(names, name_in_file) == names.end()) continue;
    if (family->claims && family->claims(read)) return family;
    if (!family->claims && !found) found = family;
  }
  return found;
}

const Family* find_assistant(std::string_view name_in_file, bool gguf) {
  const auto found = std::ranges::find_if(kAssistants, [&](const Family* family) {
    const auto names = gguf ? family->gguf_names : family->model_types;
    return std::ranges::find(names, name_in_file) != names.end();
  });
  return found == std::end(kAssistants) ? nullptr : *found;
}

std::string known_assistants() {
  std::string list;
  for (const Family* family : kAssistants) list += (list.empty() ? "" : ", ") + std::string(family->name);
  return list;
}

std::string known_families() {
  std::string list;
  for (const Family* family : kFamilies) list += (list.empty() ? "" : ", ") + std::string(family->name);
  return list;
}

}  // namespace pumice::model
