#include "engine/llguidance_api.h"

#include <dlfcn.h>

#include <string_view>

#include "core/error.h"

namespace pumice::engine::llguidance {

std::shared_ptr<const Library> Library::open(const std::string& path) {
  void* image = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (!image) {
    const char* why = ::dlerror();
    fail(ErrorKind::io, path, " is not the library that Python has loaded", why ? ": " : "", why ? why : "");
  }
  auto library = std::make_shared<Library>();
  const auto look_up = [&]<class Function>(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(image, name));
    if (!function) library->missing.emplace_back(name);
  };
#define PUMICE_LOOK_UP(name, ...) look_up(library->name, "llg_" #name);
  PUMICE_LLGUIDANCE_FUNCTIONS(PUMICE_LOOK_UP)
#undef PUMICE_LOOK_UP
  return library;  // dlclose() is never called, because threads that compile grammars may outlive all objects
}

std::string Library::version() const {
  const char* told = get_version ? get_version() : nullptr;
  std::string_view text = told ? told : "";  // for example "llguidance@1.9.1 derivre@0.3.12"
  const auto at = text.find('@');
  if (at == std::string_view::npos) return "";
  text.remove_prefix(at + 1);
  return std::string(text.substr(0, text.find(' ')));
}

}  // namespace pumice::engine::llguidance
