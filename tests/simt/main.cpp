#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/simt/device/control.h"
#include "tests/support/tests_of_file.h"

// All suites of the double. HAYLOFT_TEST_FILE=gpu/cuda/decode_test runs those of tests/gpu/cuda/decode_test.cpp alone,
// of which --gtest_filter may leave some out ("*-Suite.Name").
namespace hayloft::simt {
namespace {

// Makes each test begin with the same order of things, and one that fails say which.
class SeedListener : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override { reset(); }
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.failed()) std::fprintf(stderr, "with HAYLOFT_SIMT_SEED=%llu\n", static_cast<unsigned long long>(seed()));
  }
};

}  // namespace
}  // namespace hayloft::simt

int main(int count, char** arguments) {
  ::testing::InitGoogleTest(&count, arguments);
  ::testing::UnitTest::GetInstance()->listeners().Append(new hayloft::simt::SeedListener);
  const char* const file = std::getenv("HAYLOFT_TEST_FILE");
  if (file && !hayloft::test::choose_file(file)) return 1;
  return RUN_ALL_TESTS();
}
