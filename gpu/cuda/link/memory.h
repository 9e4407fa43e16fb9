#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/cuda/api/refuse.h"
#include "gpu/cuda/link/pattern.h"
#include "gpu/cuda/memory/host_pins.h"
#include "offload/host/pages.h"
#include "offload/host/threads.h"
#include "offload/text/format.h"

// The two ends of the link benchmark: pinned host memory that holds its pattern, and plain device memory.
namespace hayloft::gpu::cuda {

inline constexpr std::uint64_t kLinkPinBytes = std::uint64_t{64}
                                               << 30;  // of one registration: drivers fail on much larger

// Host memory of one kind of page on one node, pinned, holding the pattern. Throws Error when the system has not got it
// or refuses to pin it.
class PinnedRegion {
 public:
  PinnedRegion(std::uint64_t bytes, const offload::PageKind& kind, int node, int device,
               const offload::Threads& threads)
      : bytes_(bytes), pins_(KvHost::staged, device, threads, nullptr) {
    const bool explicit_huge = kind.bytes > 4096 && !kind.transparent;
    pages_ = offload::map_pages(bytes, explicit_huge ? (bytes + kind.bytes - 1) / kind.bytes * kind.bytes : bytes,
                                explicit_huge ? std::vector<std::uint64_t>{kind.bytes} : std::vector<std::uint64_t>{});
    if (!pages_.data || pages_.explicit_huge != explicit_huge) {
      offload::unmap_pages(pages_);
      refuse("the system has no ", format_bytes(bytes), " in pages of ", format_bytes(kind.bytes));
    }
    if (kind.bytes == 4096) offload::want_small_pages(pages_.data, pages_.bytes);
    if (node >= 0) offload::prefer_node(pages_.data, pages_.bytes, node);
    fill(bytes, threads);
    for (std::uint64_t at = 0; at < pages_.bytes; at += kLinkPinBytes) {
      const std::uint64_t part = std::min(kLinkPinBytes, pages_.bytes - at);
      cudaError_t result = pins_.pin(pages_.data + at, part);
      if (result == cudaSuccess) {
        auto* const device_part = reinterpret_cast<const uint4*>(pins_.on_device(pages_.data + at, part));
        if (at == 0) device_ = const_cast<uint4*>(device_part);
        if (device_part != device_ + at / sizeof(uint4)) result = cudaErrorNotSupported;
      }
      if (result != cudaSuccess) {
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
  HostPins& pins() const { return pins_; }

  // Puts the pattern into the first `bytes`: at first, and after something else was written over it.
  void fill(std::uint64_t bytes, const offload::Threads& threads) const {
    each_piece(bytes, threads, [](unsigned* words, std::uint64_t first, std::uint64_t last) {
      for (std::uint64_t i = first; i < last; ++i) words[i] = link_word(i);
    });
  }
  // Returns how many words of the first `bytes` are not those that the pattern has from word `from` on.
  std::uint64_t count_wrong(std::uint64_t bytes, std::uint64_t from, const offload::Threads& threads) const {
    std::atomic<std::uint64_t> wrong = 0;
    each_piece(bytes, threads, [&](const unsigned* words, std::uint64_t first, std::uint64_t last) {
      std::uint64_t here = 0;
      for (std::uint64_t i = first; i < last; ++i) here += words[i] != link_word(from + i);
      wrong += here;
    });
    return wrong;
  }

 private:
  // Calls body(words, first, last) for parts of the first `bytes`.
  template <class Body>
  void each_piece(std::uint64_t bytes, const offload::Threads& threads, const Body& body) const {
    constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;  // of parallel work
    const auto pieces = static_cast<std::int64_t>((bytes + kPiece - 1) / kPiece);
    threads.parallel_for(pieces, 8, [&](std::int64_t begin, std::int64_t end) {
      body(reinterpret_cast<unsigned*>(pages_.data), static_cast<std::uint64_t>(begin) * kPiece / sizeof(unsigned),
           std::min(bytes, static_cast<std::uint64_t>(end) * kPiece) / sizeof(unsigned));
    });
  }

  void release() noexcept {
    pins_.releasing(pages_.data, pages_.bytes);
    offload::unmap_pages(pages_);
  }

  std::uint64_t bytes_;
  mutable HostPins pins_;
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
  ~DeviceArray() {
    cudaDeviceSynchronize();  // after an error, what is queued may still use it
    cudaFree(data_);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  operator T*() const { return data_; }  // NOLINT(google-explicit-constructor): a pointer wherever one is wanted

 private:
  T* data_ = nullptr;
};

}  // namespace hayloft::gpu::cuda
