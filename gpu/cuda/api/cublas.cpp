#include "gpu/cuda/api/cublas.h"

#include <algorithm>

#include "gpu/cuda/api/refuse.h"

namespace hayloft::gpu::cuda {
namespace {

// Returns 12.8 for 12080.
std::string cuda_version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

// Returns where the library for a driver comes from.
std::string cublas_advice(int driver) {
  const int major = std::clamp(driver / 1000, 12, 13);
  return std::string("install that of CUDA ") + std::to_string(major) + " from NVIDIA's packages (" +
         (major == 12 ? "libcublas-12-" + std::to_string(driver % 1000 / 10) + ", or pip install nvidia-cublas-cu12"
                      : "libcublas-13-0, or pip install nvidia-cublas") +
         ") and put its folder into LD_LIBRARY_PATH, or use --device cpu";
}

}  // namespace

std::vector<std::string> cublas_names(int runtime, int driver) {
  std::vector<int> majors = {13, 12};
  std::stable_sort(majors.begin(), majors.end(), [&](int a, int b) {
    const auto rank = [&](int major) { return major > driver / 1000 ? 2 : major == runtime / 1000 ? 0 : 1; };
    return rank(a) < rank(b);
  });
  std::vector<std::string> names;
  for (const int major : majors) {
    const std::string name = "libcublas.so." + std::to_string(major);
    names.push_back(name);
    names.push_back("/usr/local/cuda/lib64/" + name);  // which CUDA's own installer leaves to LD_LIBRARY_PATH
  }
  names.emplace_back("libcublas.so");
  return names;
}

Cublas::Cublas(cudaStream_t stream, void* workspace, std::size_t workspace_bytes) {
  int driver = 0;
  HAYLOFT_CUDA(cudaDriverGetVersion(&driver));
  std::string missing, refused;
  bool too_new = true;
  std::vector<const void*> tried;
  for (const std::string& name : cublas_names(CUDART_VERSION, driver)) {
    std::string why;
    const std::optional<CublasLibrary> library = open_cublas(name, why);
    if (!library) {
      if (missing.empty()) missing = why;
      continue;
    }
    if (std::find(tried.begin(), tried.end(), library->opened) != tried.end()) continue;
    tried.push_back(library->opened);
    functions = library->functions;
    const cublasStatus_t status = functions.create(&handle);
    if (status == CUBLAS_STATUS_SUCCESS) break;
    cudaGetLastError();
    handle = nullptr;
    refused += (refused.empty() ? "" : ", ") + name +
               (library->version > 0 ? " of CUDA " + cuda_version(library->version) : "") + " (status " +
               std::to_string(static_cast<int>(status)) + ")";
    too_new &= library->version / 1000 > driver / 1000;
  }
  if (!handle && refused.empty()) {
    refuse("--device cuda needs cuBLAS, which the system does not have (", missing, "); ", cublas_advice(driver));
  }
  if (!handle) {
    refuse("cuBLAS does not start: cublasCreate is refused by ", refused, ", and the driver speaks CUDA ",
           cuda_version(driver), "; ",
           too_new ? cublas_advice(driver) : "perhaps the device has no memory for it: lower --gpu-memory");
  }
  // In this order: setting the stream resets the workspace.
  cublasStatus_t set = functions.set_stream(handle, stream);
  if (set == CUBLAS_STATUS_SUCCESS) set = functions.set_workspace(handle, workspace, workspace_bytes);
  if (set != CUBLAS_STATUS_SUCCESS) functions.destroy(handle);
  check(set, "cublasSetStream, cublasSetWorkspace");
}

Cublas::~Cublas() {
  functions.destroy(handle);
}

}  // namespace hayloft::gpu::cuda
