#include <dlfcn.h>

#include <string>

#include "gpu/cuda/api/cublas.h"
#include "gpu/cuda/api/refuse.h"

namespace hayloft::gpu::cuda {
namespace {

// This build's version first; the functions used are the same in its neighbours. The folder is the one that CUDA's own
// installer leaves to LD_LIBRARY_PATH.
constexpr const char* kLibraries[] = {"libcublas.so.13", "/usr/local/cuda/lib64/libcublas.so.13", "libcublas.so.12",
                                      "/usr/local/cuda/lib64/libcublas.so.12", "libcublas.so"};

void* open_library() {
  std::string why;
  for (const char* name : kLibraries) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
    if (why.empty()) why = dlerror();
  }
  refuse("--device cuda needs cuBLAS, which the system does not have (", why,
         "); install it from NVIDIA's packages (libcublas-13-0, or pip install nvidia-cublas) and put its folder into "
         "LD_LIBRARY_PATH, or use --device cpu");
}

template <class Function>
void resolve(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (!function) refuse("--device cuda: the system's libcublas has no ", name, "; install that of CUDA 12 or 13");
}

}  // namespace

CublasFunctions load_cublas() {
  void* const library = open_library();
  CublasFunctions functions;
  resolve(library, "cublasCreate_v2", functions.create);
  resolve(library, "cublasDestroy_v2", functions.destroy);
  resolve(library, "cublasSetStream_v2", functions.set_stream);
  resolve(library, "cublasSetWorkspace_v2", functions.set_workspace);
  resolve(library, "cublasGemmEx", functions.gemm_ex);
  resolve(library, "cublasGemmStridedBatchedEx", functions.gemm_strided_batched_ex);
  return functions;
}

}  // namespace hayloft::gpu::cuda
