#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu/backend.h"
#include "gpu/make_backend.h"
#include "offload/error.h"
#include "offload/host/threads.h"
#include "tests/support/cpu_cache.h"

// The CUDA backend beside the CPU backend, which is its oracle. These tests are compiled twice: against CUDA, where
// they are skipped without a device, and against the runtime of tests/simt.
namespace hayloft::testing {

inline const offload::Threads& threads() {
  static const offload::Threads threads(2);
  return threads;
}

inline std::unique_ptr<gpu::Backend> make_cuda(const gpu::CudaOptions& options = {}) {
  return gpu::make_cuda_backend(threads(), options);
}

// Small models of every architecture: in the source tree, or where the environment says that a bundle has them.
inline std::filesystem::path golden_models() {
  const char* bundled = std::getenv("HAYLOFT_GOLDEN_MODELS");
  return bundled ? std::filesystem::path(bundled) : std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/models";
}

// Why there is nothing to test on, empty when there is a device.
inline std::string no_cuda_device() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess) return cudaGetErrorString(result);
  return count == 0 ? "no CUDA device" : "";
}

template <class T>
gpu::Buffer upload(gpu::Backend& backend, const std::vector<T>& values) {
  const std::uint64_t bytes = values.size() * sizeof(T);
  gpu::Buffer buffer = backend.allocate(bytes, backend.stream());
  backend.to_device(buffer.as<void>(), values.data(), bytes, backend.stream());
  return buffer;
}

template <class T>
std::vector<T> download(gpu::Backend& backend, const void* data, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  backend.to_host(values.data(), data, values.size() * sizeof(T), backend.stream());
  return values;
}
template <class T>
std::vector<T> download(gpu::Backend& backend, const gpu::Buffer& buffer) {
  return download<T>(backend, buffer.as<void>(), static_cast<std::int64_t>(buffer.bytes() / sizeof(T)));
}

// Takes all of the device's memory but `leaving` bytes. It takes pieces, for one that is longer than what the driver's
// pool grows by has to lie where no other does.
inline std::vector<gpu::Buffer> take_all_but(gpu::Backend& cuda, std::uint64_t leaving) {
  std::vector<gpu::Buffer> taken;
  const auto left = [&] { return cuda.memory().budget_bytes - cuda.memory().used_bytes; };
  std::uint64_t least_refused = UINT64_MAX;
  while (left() >= leaving + 512 && least_refused > 512) {
    const std::uint64_t bytes = std::min(left() - leaving, least_refused / 2);
    try {
      taken.push_back(cuda.allocate(bytes, cuda.stream()));
    } catch (const Error&) {
      least_refused = bytes;
    }
  }
  return taken;
}

// q [Hq][d] of a decode step: components are not alike, the `heavy` largest in magnitude stand out by far as those of
// models do, so that SparQ's choice of components is the same whatever the order of summation.
inline std::vector<float> random_query(int query_heads, int head_dim, std::uint32_t seed, int heavy = 8) {
  std::vector<float> q = normal(static_cast<std::size_t>(query_heads) * static_cast<std::size_t>(head_dim), seed);
  std::mt19937 random(seed + 1);
  for (int i = 0; i < heavy; ++i) {
    const auto component = static_cast<int>(random() % static_cast<unsigned>(head_dim));
    for (int head = 0; head < query_heads; ++head) q[static_cast<std::size_t>(head * head_dim + component)] *= 4;
  }
  return q;
}

// The view as a device sees it that keeps and fetches nothing of it, since nothing tells its blocks apart.
inline gpu::CacheView without_cache(gpu::CacheView view) {
  view.store.serials = {};
  return view;
}

// A random cache as both backends see it: the store is shared host memory, pinned by the CUDA backend unless told
// otherwise; the tail is copied to the device.
class SharedCache {
 public:
  enum class Host { pinned, pageable };

  SharedCache(gpu::Backend& cuda, const CacheShape& shape, Host host = Host::pinned)
      : SharedCache(cuda, shape, host == Host::pinned ? cuda.pinning() : nullptr) {}
  SharedCache(gpu::Backend& cuda, const CacheShape& shape, std::shared_ptr<offload::ChunkListener> listener)
      : cache_(shape, std::move(listener)), tail_(upload(cuda, cache_.tail_rows())) {}

  gpu::CacheView on_cpu() { return cache_.view(); }
  gpu::CacheView on_cuda() {
    gpu::CacheView view = cache_.view();
    view.tail.rows = tail_.as<f16>();
    return view;
  }
  const RandomCache& values() const { return cache_; }
  // The tail's rows as the device has them, [Hkv][capacity][2 d].
  std::vector<f16> device_tail(gpu::Backend& cuda) const { return download<f16>(cuda, tail_); }

 private:
  RandomCache cache_;
  gpu::Buffer tail_;
};

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = no_cuda_device(); !why.empty()) GTEST_SKIP() << why;
    cpu = gpu::make_cpu_backend(threads());
    cuda = make_cuda();
  }

  std::unique_ptr<gpu::Backend> cpu;
  std::unique_ptr<gpu::Backend> cuda;
};

// |actual - expected| <= absolute + relative |expected| for every element; says which is off most.
inline ::testing::AssertionResult near(const std::vector<float>& actual, const std::vector<float>& expected,
                                       double absolute, double relative = 0) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure() << actual.size() << " elements instead of " << expected.size();
  }
  std::size_t worst = 0;
  double excess = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == expected[i]) continue;
    const double allowed = absolute + relative * std::fabs(double{expected[i]});
    const double off = std::fabs(double{actual[i]} - double{expected[i]}) / allowed;
    if (off <= 1) continue;  // never true of NaN
    if (!(off <= excess)) {
      worst = i;
      excess = std::isnan(off) ? std::numeric_limits<double>::infinity() : off;
    }
  }
  if (excess == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "element " << worst << " of " << actual.size() << " is " << actual[worst]
                                       << " instead of " << expected[worst] << ", off by " << excess
                                       << " times what is allowed";
}

}  // namespace hayloft::testing
