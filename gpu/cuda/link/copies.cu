#include <atomic>

#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/link/kernels.cuh"
#include "gpu/cuda/link/run.h"

// Whole copies in both directions, as nvbandwidth has them, and one by both engines at once.
namespace hayloft::gpu::cuda {
namespace {

constexpr std::uint64_t kCopyBytes = std::uint64_t{256} << 20;  // at most

class WholeCopies {
 public:
  WholeCopies(LinkRun& run, const PinnedRegion& region, const offload::Threads& threads)
      : run_(run),
        region_(region),
        threads_(threads),
        bytes_(std::min(kCopyBytes, region.bytes())),
        units_(static_cast<std::int64_t>(bytes_ / kLinkUnit)),
        buffer_(static_cast<std::uint64_t>(units_)) {}

  void to_device() {
    measure_to_device("host_to_device_memcpy_ce", "ce", [&](std::uint64_t at) {
      HAYLOFT_CUDA(cudaMemcpyAsync(buffer_, region_.host() + at, bytes_, cudaMemcpyHostToDevice, run_.stream()));
    });
    measure_to_device("host_to_device_memcpy_sm", "sm", [&](std::uint64_t at) { read(at, units_); });
    const std::int64_t half = units_ / 2;
    const std::uint64_t half_bytes = static_cast<std::uint64_t>(half) * kLinkUnit;
    measure_to_device("host_to_device_both", "both", [&](std::uint64_t at) {
      HAYLOFT_CUDA(cudaMemcpyAsync(buffer_ + half, region_.host() + at + half_bytes, bytes_ - half_bytes,
                                   cudaMemcpyHostToDevice, run_.other()));
      read(at, half);
    });
  }

  void to_host() {
    measure_to_host("device_to_host_memcpy_ce", "ce", [&] {
      HAYLOFT_CUDA(cudaMemcpyAsync(region_.host(), buffer_, bytes_, cudaMemcpyDeviceToHost, run_.stream()));
    });
    measure_to_host("device_to_host_memcpy_sm", "sm", [&] {
      launch("link_copy", link_copy, run_.grid(), run_.stream(), buffer_, region_.device(), units_);
    });
  }

 private:
  // By the multiprocessors, from `at` on.
  void read(std::uint64_t at, std::int64_t units) {
    launch("link_copy", link_copy, run_.grid(), run_.stream(), region_.device() + at / kLinkUnit, buffer_, units);
  }

  template <class Copy>
  void measure_to_device(const char* test, const char* engine, const Copy& copy) {
    const std::uint64_t places = region_.bytes() / bytes_;
    const auto at = [&](int turn) { return static_cast<std::uint64_t>(turn) % places * bytes_; };
    HAYLOFT_CUDA(cudaMemsetAsync(buffer_, 0, bytes_, run_.stream()));
    const double time = run_.seconds([&](int turn) { copy(at(turn)); });
    run_.clear_wrong();
    launch("link_check", link_check, run_.grid(), run_.stream(), buffer_, units_, at(kLinkRepeats) / kLinkUnit,
           run_.wrong());
    run_.require_right(test);
    run_.add(test, engine, LinkRun::gigabytes(bytes_, time));
  }

  // Writes another stretch of the pattern than the one that lies there, so that a copy that did nothing is found.
  template <class Copy>
  void measure_to_host(const char* test, const char* engine, const Copy& copy) {
    constexpr std::uint64_t elsewhere = 77;
    launch("link_fill", link_fill, run_.grid(), run_.stream(), buffer_, units_, elsewhere);
    const double time = run_.seconds([&](int) { copy(); });
    if (const std::uint64_t wrong = region_.count_wrong(bytes_, elsewhere * 4, threads_)) {
      LinkRun::refuse_changed(test, wrong);
    }
    run_.add(test, engine, LinkRun::gigabytes(bytes_, time));
    region_.fill(bytes_, threads_);
  }

  LinkRun& run_;
  const PinnedRegion& region_;
  const offload::Threads& threads_;
  const std::uint64_t bytes_;
  const std::int64_t units_;
  DeviceArray<uint4> buffer_;
};

}  // namespace

void measure_whole_copies(LinkRun& run, const PinnedRegion& region, const offload::Threads& threads) {
  WholeCopies copies(run, region, threads);
  copies.to_device();
  copies.to_host();
}

}  // namespace hayloft::gpu::cuda
