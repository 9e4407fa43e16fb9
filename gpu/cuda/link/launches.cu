#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/link/kernels.cuh"
#include "gpu/cuda/link/run.h"

// Measures what a kernel costs that does nothing.
namespace hayloft::gpu::cuda {
namespace {

constexpr int kLaunches = 256;  // fewer than drivers let wait in a stream

}  // namespace

void measure_launches(LinkRun& run) {
  const auto launch_some = [&](int count) {
    return [&run, count](int) {
      for (int i = 0; i < count; ++i) launch("link_nothing", link_nothing, {dim3(1), dim3(32)}, run.stream());
    };
  };
  const auto add = [&](const char* test, double seconds) { run.add(test, "sm", seconds * 1e9, "ns"); };
  add("launch_queued", run.seconds(launch_some(kLaunches)) / kLaunches);
  add("launch_live", run.live_seconds(launch_some(kLaunches)) / kLaunches);
  add("launch_and_wait", run.live_seconds(launch_some(1)));
}

}  // namespace hayloft::gpu::cuda
