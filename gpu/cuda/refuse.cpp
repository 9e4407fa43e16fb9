#include "gpu/cuda/refuse.h"

#include "offload/error.h"

namespace hayloft::gpu::cuda {

void throw_error(const std::string& message) {
  throw Error(message);
}

}  // namespace hayloft::gpu::cuda
