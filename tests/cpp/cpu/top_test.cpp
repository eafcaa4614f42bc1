#include "cpu/cpu_backend.h"
#include "reference/reference_backend.h"
#include "reference/top_rows.h"

namespace pumice {
namespace {

TEST(Top, LogitsThatAreNoNumbersAreFound) {
  cases::expect_not_finite_found(*cpu::make_backend(2));
  reference::ReferenceBackend reference;
  cases::expect_not_finite_found(reference);
}

}  // namespace
}  // namespace pumice
