#include "gpu/backend.h"
#include "offload/error.h"

namespace hayloft::gpu {

std::unique_ptr<Backend> make_cuda_backend(const offload::Threads&, const CudaOptions&) {
  fail("--device cuda: this build of hayloft has no CUDA backend; use --device cpu");
}

}  // namespace hayloft::gpu
