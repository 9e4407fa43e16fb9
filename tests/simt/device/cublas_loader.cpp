#include <algorithm>

#include "gpu/cuda/api/cublas.h"
#include "tests/simt/device/control.h"

// In the place of gpu/cuda/api/cublas_loader.cpp, which opens the system's library.
namespace hayloft::gpu::cuda {

std::optional<CublasLibrary> open_cublas(const std::string& name, std::string& why) {
  const auto& names = simt::device().cublas;
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    why = name + ": no such file";
    return std::nullopt;
  }
  const int version = name.ends_with("13") ? 13000 : name.ends_with("12") ? 12080 : 0;
  return CublasLibrary{
      &*found, version, {cublasCreate, cublasDestroy, cublasSetStream, cublasSetWorkspace, cublasGemmEx}};
}

}  // namespace hayloft::gpu::cuda
