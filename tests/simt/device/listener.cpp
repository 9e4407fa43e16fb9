#include <gtest/gtest.h>

#include <cstdio>

#include "tests/simt/device/control.h"

// Linked into every test program: each test begins with the same order of things, and one that fails says which.
namespace hayloft::simt {
namespace {

class SeedListener : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override { reset(); }
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.failed()) std::fprintf(stderr, "with HAYLOFT_SIMT_SEED=%llu\n", static_cast<unsigned long long>(seed()));
  }
};

const bool listening = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new SeedListener);
  return true;
}();

}  // namespace
}  // namespace hayloft::simt
