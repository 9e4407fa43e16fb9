#include "offload/host/instruction_set.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "offload/error.h"
#include "tests/support/each_target.h"

namespace hayloft {
namespace {

class InstructionSet : public testing::Test {
 protected:
  ~InstructionSet() override {
    ::unsetenv("HAYLOFT_INSTRUCTION_SET");
    test::choose_target(0);
  }
  static void ask_for(const char* name) {
    ::setenv("HAYLOFT_INSTRUCTION_SET", name, 1);
    offload::limit_instruction_set();
  }
};

TEST_F(InstructionSet, IsTheBestUnlessAnotherIsNamed) {
  const std::int64_t all = hwy::SupportedTargets();
  offload::limit_instruction_set();
  EXPECT_EQ(hwy::SupportedTargets(), all);
  ask_for("");
  EXPECT_EQ(hwy::SupportedTargets(), all);
}

TEST_F(InstructionSet, ThatIsNamedIsTheBestThatKernelsTake) {
  const std::pair<const char*, std::int64_t> sets[] = {{"avx512", HWY_AVX3}, {"avx2", HWY_AVX2}, {"sse4", HWY_SSE4}};
  for (const auto& [name, target] : sets) {
    test::choose_target(0);
    if ((hwy::SupportedTargets() & target) == 0) {
      EXPECT_THROW(ask_for(name), Error);
      continue;
    }
    ask_for(name);
    const std::int64_t left = hwy::SupportedTargets();
    EXPECT_EQ(left & -left, target) << name << ": better ones are lower bits";
  }
}

TEST_F(InstructionSet, OfAnotherNameIsRefused) {
  for (const char* name : {"AVX2", "avx", "avx2 ", "neon"}) {
    try {
      ask_for(name);
      ADD_FAILURE() << "taken: " << name;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("must be one of sse4, avx2, avx512"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace hayloft
