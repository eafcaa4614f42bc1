#include "core/version.h"

namespace pumice {

std::string_view version() { return PUMICE_VERSION; }

}  // namespace pumice
