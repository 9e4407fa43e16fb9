#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <cstdint>
#include <functional>
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

// Runs the body once for every instruction set that this processor has and the kernels were compiled for.
inline void for_each_target(const std::function<void()>& body) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    choose_target(target);
    body();
  }
  choose_target(0);
}

inline auto each_target() {
  return ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets());
}

inline std::string target_name(const ::testing::TestParamInfo<std::int64_t>& target) {
  return hwy::TargetName(target.param);
}

}  // namespace hayloft::test
