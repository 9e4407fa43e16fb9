#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdio>

#include "bench/common.h"
#include "offload/error.h"
#include "offload/host/instruction_set.h"
#include "offload/host/topology.h"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  try {
    hayloft::offload::limit_instruction_set();
    benchmark::AddCustomContext("machine", hayloft::offload::Topology().describe());
    benchmark::AddCustomContext("threads", fmt::format("{}", hayloft::bench::threads().count()));
    benchmark::AddCustomContext("peak_GFMA_per_s", fmt::format("{:.1f}", hayloft::bench::multiply_add_peak() / 1e9));
    benchmark::AddCustomContext("read_ceiling_GBps", fmt::format("{:.1f}", hayloft::bench::read_ceiling() / 1e9));
    benchmark::RunSpecifiedBenchmarks();
  } catch (const hayloft::Error& error) {
    fmt::print(stderr, "hayloft_bench: {}\n", error.what());
    return 1;
  }
  benchmark::Shutdown();
  return 0;
}
