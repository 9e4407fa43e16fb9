#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/cuda/check.cuh"
#include "gpu/cuda/link_kernels.cuh"
#include "gpu/cuda/refuse.h"
#include "offload/format.h"
#include "offload/pages.h"
#include "offload/threads.h"

// The two ends of the link benchmark: pinned host memory that holds its pattern, and plain device memory.
namespace hayloft::gpu::cuda {

inline constexpr std::uint64_t kLinkPinBytes = std::uint64_t{64}
                                               << 30;  // of one registration: drivers fail on much larger

// Host memory of one kind of page on one node, pinned, holding the pattern. Throws Error when the system has not got it
// or refuses to pin it.
class PinnedRegion {
 public:
  PinnedRegion(std::uint64_t bytes, std::uint64_t page_bytes, int node, const offload::Threads& threads)
      : bytes_(bytes) {
    const bool huge = page_bytes > 4096;
    pages_ = offload::map_pages(bytes, huge ? (bytes + page_bytes - 1) / page_bytes * page_bytes : bytes,
                                huge ? std::vector<std::uint64_t>{page_bytes} : std::vector<std::uint64_t>{});
    if (!pages_.data || pages_.explicit_huge != huge) {
      offload::unmap_pages(pages_);
      refuse("the system has no ", format_bytes(bytes), " in pages of ", format_bytes(page_bytes));
    }
    if (!huge) offload::want_small_pages(pages_.data, pages_.bytes);
    if (node >= 0) offload::prefer_node(pages_.data, pages_.bytes, node);
    fill(bytes, threads);
    for (std::uint64_t at = 0; at < pages_.bytes; at += kLinkPinBytes) {
      const std::uint64_t part = std::min(kLinkPinBytes, pages_.bytes - at);
      cudaError_t result = cudaHostRegister(pages_.data + at, part, cudaHostRegisterMapped);
      void* device = nullptr;
      if (result == cudaSuccess) {
        pinned_ += part;
        result = cudaHostGetDevicePointer(&device, pages_.data + at, 0);
      }
      if (at == 0) device_ = static_cast<uint4*>(device);
      if (result == cudaSuccess && device != device_ + at / sizeof(uint4)) result = cudaErrorNotSupported;
      if (result != cudaSuccess) {
        cudaGetLastError();
        release();
        refuse("the system refuses to pin ", format_bytes(bytes), " (", cudaGetErrorName(result), ")");
      }
    }
  }
  ~PinnedRegion() { release(); }
  PinnedRegion(const PinnedRegion&) = delete;
  PinnedRegion& operator=(const PinnedRegion&) = delete;

  std::byte* host() const { return pages_.data; }
  uint4* device() const { return device_; }
  std::uint64_t bytes() const { return bytes_; }

  // Puts the pattern into the first `bytes`: at first, and after something else was written over it.
  void fill(std::uint64_t bytes, const offload::Threads& threads) const {
    constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;  // of parallel work
    const auto pieces = static_cast<std::int64_t>((bytes + kPiece - 1) / kPiece);
    threads.parallel_for(pieces, 8, [&](std::int64_t begin, std::int64_t end) {
      const std::uint64_t last = std::min(bytes, static_cast<std::uint64_t>(end) * kPiece) / sizeof(unsigned);
      auto* words = reinterpret_cast<unsigned*>(pages_.data);
      for (std::uint64_t i = static_cast<std::uint64_t>(begin) * kPiece / sizeof(unsigned); i < last; ++i) {
        words[i] = link_word(i);
      }
    });
  }

 private:
  void release() noexcept {
    for (std::uint64_t at = 0; at < pinned_; at += kLinkPinBytes) cudaHostUnregister(pages_.data + at);
    offload::unmap_pages(pages_);
  }

  std::uint64_t bytes_;
  std::uint64_t pinned_ = 0;
  offload::Pages pages_;
  uint4* device_ = nullptr;
};

// Plain device memory: the benchmark is no part of a run's budget.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::uint64_t count) {
    check(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), "cudaMalloc", count * sizeof(T));
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  operator T*() const { return data_; }  // NOLINT(google-explicit-constructor): a pointer wherever one is wanted

 private:
  T* data_ = nullptr;
};

}  // namespace hayloft::gpu::cuda
