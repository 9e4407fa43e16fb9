#include "offload/host/instruction_set.h"

#include <hwy/highway.h>
#include <hwy/targets.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "offload/error.h"

namespace hayloft::offload {

void limit_instruction_set() {
  const char* const value = std::getenv("HAYLOFT_INSTRUCTION_SET");
  const std::string_view wanted = value == nullptr ? "" : value;
  if (wanted.empty()) return;
#if HWY_ARCH_X86
  constexpr std::pair<std::string_view, std::int64_t> sets[] = {
      {"sse4", HWY_SSE4}, {"avx2", HWY_AVX2}, {"avx512", HWY_AVX3}};
  for (const auto& [name, target] : sets) {
    if (wanted != name) continue;
    if ((hwy::SupportedTargets() & target) == 0) {
      fail("HAYLOFT_INSTRUCTION_SET={}: this processor has no such instructions", wanted);
    }
    hwy::SetSupportedTargetsForTest(hwy::SupportedTargets() & ~(target - 1));  // better ones are the lower bits
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return;
  }
#endif
  fail("HAYLOFT_INSTRUCTION_SET={}: must be one of sse4, avx2, avx512", wanted);
}

}  // namespace hayloft::offload
