#include <dlfcn.h>

#include <string>

#include "gpu/cuda/api/cublas.h"
#include "gpu/cuda/api/refuse.h"

namespace hayloft::gpu::cuda {
namespace {

template <class Function>
void resolve(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (!function) refuse("--device cuda: the system's libcublas has no ", name, "; install that of CUDA 12 or 13");
}

// Returns 0 when the library does not say.
int version_of(void* library) {
  // cublasGetProperty(libraryPropertyType, int*), of which 0 asks for the major version and 1 for the minor one.
  const auto property = reinterpret_cast<int (*)(int, int*)>(dlsym(library, "cublasGetProperty"));
  int major = 0, minor = 0;
  if (!property || property(0, &major) != 0 || property(1, &minor) != 0) return 0;
  return major * 1000 + minor * 10;
}

}  // namespace

std::optional<CublasLibrary> open_cublas(const std::string& name, std::string& why) {
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    why = dlerror();
    return std::nullopt;
  }
  CublasLibrary found{library, version_of(library), {}};
  resolve(library, "cublasCreate_v2", found.functions.create);
  resolve(library, "cublasDestroy_v2", found.functions.destroy);
  resolve(library, "cublasSetStream_v2", found.functions.set_stream);
  resolve(library, "cublasSetWorkspace_v2", found.functions.set_workspace);
  resolve(library, "cublasGemmEx", found.functions.gemm_ex);
  return found;
}

}  // namespace hayloft::gpu::cuda
