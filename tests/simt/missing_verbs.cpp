#include <stdexcept>

#include "gpu/cuda/verbs.cuh"

// Stand-ins until the last verb has landed; then this file goes. A verb's own definition comes before these.
namespace hayloft::gpu::cuda {

#define HAYLOFT_MISSING(name, ...)                              \
  __attribute__((weak)) void name(__VA_ARGS__) {                \
    throw std::logic_error("no " #name " on the CUDA backend"); \
  }
HAYLOFT_MISSING(select_sparq, const Context&, const CacheView&, const float*, int, const SparqSelect&, std::int32_t*,
                float*, cudaStream_t)
HAYLOFT_MISSING(select_exact, const Context&, const CacheView&, const float*, int, const ExactSelect&, std::int32_t*,
                cudaStream_t)

}  // namespace hayloft::gpu::cuda
