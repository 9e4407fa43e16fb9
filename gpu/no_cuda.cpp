#include "gpu/backend.h"
#include "gpu/link.h"
#include "gpu/make_backend.h"

namespace hayloft::gpu {

int cuda_devices() noexcept {
  return 0;
}

std::unique_ptr<Backend> make_cuda_backend(const offload::Threads&, const CudaOptions&) {
  throw NoDevice(
      "--device cuda: this build of hayloft has no CUDA backend; build it where nvcc 13 is found, as scripts/try does, "
      "or "
      "use --device cpu");
}

LinkReport measure_link(const offload::Topology&, const offload::Threads&, const LinkOptions&, const LinkProgress&) {
  fail("--device cuda: this build of hayloft has no CUDA backend, so there is no link to measure; use --device cpu");
}

}  // namespace hayloft::gpu
