#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "offload/half.h"
#include "simt/tensor_core.h"
#include "tests/simt/device/runtime.h"

// Matrix products, by the definition.
struct cublasContext {
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;
};

namespace hayloft::simt {
namespace {

struct Operand {
  const void* data;
  cudaDataType type;
  bool transposed;
  std::int64_t leading;

  float at(std::int64_t row, std::int64_t column) const {
    const std::int64_t i = transposed ? column + row * leading : row + column * leading;
    switch (type) {
      case CUDA_R_16F:
        return to_float(static_cast<const f16*>(data)[i]);
      case CUDA_R_16BF:
        return to_float(static_cast<const bf16*>(data)[i]);
      default:
        return static_cast<const float*>(data)[i];
    }
  }
};

bf16 to_bf16(float x) {  // to nearest even
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

void store(void* data, cudaDataType type, std::int64_t i, float x) {
  switch (type) {
    case CUDA_R_16F:
      static_cast<f16*>(data)[i] = to_f16(x);
      break;
    case CUDA_R_16BF:
      static_cast<bf16*>(data)[i] = to_bf16(x);
      break;
    default:
      static_cast<float*>(data)[i] = x;
  }
}

struct Product {
  int m, n, k;
  float alpha, beta;
  Operand a, b;
  void* c;
  cudaDataType type_c;
  int leading_c;

  void run() const {
    const Operand before{c, type_c, false, leading_c};
    std::vector<double> rows, columns;  // k elements after k elements
    for (std::int64_t row = 0; row < m; ++row) {
      for (std::int64_t i = 0; i < k; ++i) rows.push_back(a.at(row, i));
    }
    for (std::int64_t column = 0; column < n; ++column) {
      for (std::int64_t i = 0; i < k; ++i) columns.push_back(b.at(i, column));
    }
    for (std::int64_t column = 0; column < n; ++column) {
      for (std::int64_t row = 0; row < m; ++row) {
        const float sum = add_up(0, rows.data() + row * k, columns.data() + column * k, k);
        double result = static_cast<double>(alpha) * static_cast<double>(sum);
        if (beta != 0) result += static_cast<double>(beta) * static_cast<double>(before.at(row, column));
        store(c, type_c, row + column * leading_c, static_cast<float>(result));
      }
    }
  }
};

// Returns what cuBLAS multiplies in f32.
bool supported(cudaDataType a, cudaDataType b, cudaDataType c, cublasComputeType_t compute) {
  if (a != b || compute == CUBLAS_COMPUTE_16F) return false;
  if (a == CUDA_R_32F) return c == CUDA_R_32F;
  if (a != CUDA_R_16F && a != CUDA_R_16BF) return false;
  return (c == CUDA_R_32F || c == a) && (compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_PEDANTIC);
}

cublasStatus_t queue_product(const char* function, cublasHandle_t handle, const float* alpha, const float* beta,
                             Product product, cublasComputeType_t compute) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  if (const cublasStatus_t status = runtime.enter_cublas(function); status != CUBLAS_STATUS_SUCCESS) return status;
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!runtime.known(handle->stream)) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (!handle->workspace) return CUBLAS_STATUS_ALLOC_FAILED;  // its own would be memory beyond every budget
  const Product& p = product;
  if (p.m < 0 || p.n < 0 || p.k < 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (p.a.leading < std::max(1, p.a.transposed ? p.k : p.m) || p.b.leading < std::max(1, p.b.transposed ? p.n : p.k) ||
      p.leading_c < std::max(1, p.m)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!supported(p.a.type, p.b.type, p.type_c, compute)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p.m == 0 || p.n == 0) return CUBLAS_STATUS_SUCCESS;
  if (!alpha || !beta || !p.a.data || !p.b.data || !p.c) return CUBLAS_STATUS_INVALID_VALUE;
  product.alpha = *alpha;
  product.beta = *beta;
  ++runtime.products[p.a.type];
  runtime.queue(handle->stream, [product] { product.run(); });
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t set(const char* function, cublasHandle_t handle) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  const cublasStatus_t status = runtime.enter_cublas(function);
  return status == CUBLAS_STATUS_SUCCESS && !handle ? CUBLAS_STATUS_NOT_INITIALIZED : status;
}

}  // namespace
}  // namespace hayloft::simt

using hayloft::simt::Product;

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  auto& runtime = hayloft::simt::Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  const cublasStatus_t status = runtime.enter_cublas("cublasCreate");
  if (status == CUBLAS_STATUS_SUCCESS) *handle = new cublasContext;
  return status;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  delete handle;
  return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  const cublasStatus_t status = hayloft::simt::set("cublasSetStream", handle);
  if (status == CUBLAS_STATUS_SUCCESS) *handle = {stream, nullptr};
  return status;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, std::size_t bytes) {
  const cublasStatus_t status = hayloft::simt::set("cublasSetWorkspace", handle);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  auto& runtime = hayloft::simt::Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0 ||
      runtime.memory.place(workspace, bytes) != hayloft::simt::MemoryPlace::device) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  handle->workspace = workspace;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                            int k, const void* alpha, const void* A, cudaDataType type_a, int lda, const void* B,
                            cudaDataType type_b, int ldb, const void* beta, void* C, cudaDataType type_c, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t) {
  const Product product{
      m, n, k, 0, 0, {A, type_a, transa != CUBLAS_OP_N, lda}, {B, type_b, transb != CUBLAS_OP_N, ldb}, C, type_c, ldc};
  return hayloft::simt::queue_product("cublasGemmEx", handle, static_cast<const float*>(alpha),
                                      static_cast<const float*>(beta), product, compute);
}

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
      return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR:
      return "CUBLAS_STATUS_LICENSE_ERROR";
  }
  return "unknown status";
}
const char* cublasGetStatusString(cublasStatus_t status) {
  return cublasGetStatusName(status);
}
