// Tells libFuzzer what an input reaches, where the code is compiled by g++: libFuzzer itself reads clang's counters
// only, but adds those of this section to them. `--wrap` puts the function in place of one of the run-time library's.
#include <cstddef>
#include <cstdint>

// Is nowhere but in a fuzz target.
extern "C" __attribute__((weak)) int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

constexpr std::uintptr_t kCounters = 1U << 16U;
__attribute__((section("__libfuzzer_extra_counters"))) std::uint8_t counters[kCounters];

}  // namespace

extern "C" void __wrap___sanitizer_cov_trace_pc() {
  if (LLVMFuzzerTestOneInput == nullptr) return;  // else the threads of a test would count in the same places
  const auto place = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  ++counters[(place ^ (place >> 16U)) % kCounters];
}

// libFuzzer has no use for comparisons of floating-point numbers, which clang does not report.
extern "C" void __sanitizer_cov_trace_cmpf(float, float) {}
extern "C" void __sanitizer_cov_trace_cmpd(double, double) {}
