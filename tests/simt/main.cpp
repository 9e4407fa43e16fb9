#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tests/simt/device/control.h"

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

// Returns the names of the tests in that file below tests/, as a filter takes them.
std::string tests_of(std::string_view file) {
  const std::string ending = "tests/" + std::string(file) + ".cpp";
  std::string names;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(t);
      if (!std::string_view(test.file()).ends_with(ending)) continue;
      if (!names.empty()) names += ':';
      names += std::string(suite.name()) + '.' + test.name();
    }
  }
  return names;
}

}  // namespace
}  // namespace hayloft::simt

int main(int count, char** arguments) {
  ::testing::InitGoogleTest(&count, arguments);
  ::testing::UnitTest::GetInstance()->listeners().Append(new hayloft::simt::SeedListener);
  if (const char* file = std::getenv("HAYLOFT_TEST_FILE")) {
    const std::string names = hayloft::simt::tests_of(file), given = GTEST_FLAG_GET(filter);
    if (names.empty()) {
      std::fprintf(stderr, "HAYLOFT_TEST_FILE: no tests in tests/%s.cpp\n", file);
      return 1;
    }
    if (!given.starts_with('*') || (given.size() > 1 && given[1] != '-')) {
      std::fprintf(stderr, "with HAYLOFT_TEST_FILE a filter begins with '*' and leaves tests out\n");
      return 1;
    }
    GTEST_FLAG_SET(filter, names + given.substr(1));
  }
  return RUN_ALL_TESTS();
}
