#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <cstdint>
#include <string>

namespace hayloft::test {

// From now on kernels run by this instruction set; 0: the best there is again.
inline void choose_target(std::int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Runs the kernels of one instruction set after the other, and leaves the best chosen.
class EachTarget : public ::testing::TestWithParam<std::int64_t> {
 protected:
  EachTarget() { choose_target(GetParam()); }
  ~EachTarget() override { choose_target(0); }
};

inline auto each_target() {
  return ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets());
}

inline std::string target_name(const ::testing::TestParamInfo<std::int64_t>& target) {
  return hwy::TargetName(target.param);
}

}  // namespace hayloft::test
