#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tests/support/tests_of_file.h"

// Runs all suites on a device; under the name decode_test_cuda those of tests/gpu/cuda/decode_test.cpp alone.
int main(int count, char** arguments) {
  ::testing::InitGoogleTest(&count, arguments);
  std::string_view name = arguments[0];
  name.remove_prefix(name.rfind('/') + 1);
  constexpr std::string_view ending = "_cuda";
  if (name.ends_with(ending)) {
    name.remove_suffix(ending.size());
    if (!hayloft::test::choose_file("gpu/cuda/" + std::string(name))) return 1;
  }
  return RUN_ALL_TESTS();
}
