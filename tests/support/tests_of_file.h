#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace hayloft::test {

// Leaves the tests of one file, named from below tests/ and without its ending, and those of them that --gtest_filter
// names: "*", or "*-Suite.Name" to leave some out. Returns false, and says why, when there are none or the filter is
// another.
inline bool choose_file(std::string_view file) {
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
  const std::string given = GTEST_FLAG_GET(filter);
  if (names.empty()) {
    std::fprintf(stderr, "no tests in %s\n", ending.c_str());
    return false;
  }
  if (!given.starts_with('*') || (given.size() > 1 && given[1] != '-')) {
    std::fprintf(stderr, "for the tests of one file a filter begins with '*' and leaves tests out\n");
    return false;
  }
  GTEST_FLAG_SET(filter, names + given.substr(1));
  return true;
}

}  // namespace hayloft::test
