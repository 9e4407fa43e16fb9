#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <string>

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

  // Half of the bytes each way, in the same memory as whole copies take: what arrived is checked on both sides.
  void both_ways() {
    constexpr std::uint64_t elsewhere = 77;
    const std::int64_t half = units_ / 2;
    const std::uint64_t half_bytes = static_cast<std::uint64_t>(half) * kLinkUnit;
    if (half_bytes == 0) return;
    HAYLOFT_CUDA(cudaMemsetAsync(buffer_, 0, half_bytes, run_.stream()));
    launch("link_fill", link_fill, run_.grid(), run_.stream(), buffer_ + half, half, elsewhere);
    const double time = run_.seconds([&](int) {
      HAYLOFT_CUDA(cudaMemcpyAsync(region_.host(), buffer_ + half, half_bytes, cudaMemcpyDeviceToHost, run_.other()));
      HAYLOFT_CUDA(
          cudaMemcpyAsync(buffer_, region_.host() + half_bytes, half_bytes, cudaMemcpyHostToDevice, run_.stream()));
    });
    run_.clear_wrong();
    launch("link_check", link_check, run_.grid(), run_.stream(), buffer_, half, static_cast<std::uint64_t>(half),
           run_.wrong());
    run_.require_right("both_ways_memcpy_ce");
    if (const std::uint64_t wrong = region_.count_wrong(half_bytes, elsewhere * 4, threads_)) {
      LinkRun::refuse_changed("both_ways_memcpy_ce", wrong);
    }
    run_.add("both_ways_memcpy_ce", "ce", LinkRun::gigabytes(2 * half_bytes, time));
    region_.fill(half_bytes, threads_);
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

// Between two devices, over whatever joins them; through host memory where they cannot reach each other.
void measure_peer(LinkRun& run, int other, std::uint64_t bytes) {
  DeviceArray<uint4> here(bytes / kLinkUnit);
  HAYLOFT_CUDA(use_device(other));
  std::optional<DeviceArray<uint4>> there;
  try {
    there.emplace(bytes / kLinkUnit);
  } catch (...) {
    HAYLOFT_CUDA(use_device(run.device()));
    throw;
  }
  HAYLOFT_CUDA(use_device(run.device()));
  const auto units = static_cast<std::int64_t>(bytes / kLinkUnit);
  const std::string pair = " " + std::to_string(run.device()) + "-" + std::to_string(other);
  launch("link_fill", link_fill, run.grid(), run.stream(), here, units, std::uint64_t{0});
  const double out = run.seconds(
      [&](int) { HAYLOFT_CUDA(cudaMemcpyAsync(*there, here, bytes, cudaMemcpyDeviceToDevice, run.stream())); });
  run.add(("device_to_device_write" + pair).c_str(), "ce", LinkRun::gigabytes(bytes, out));
  HAYLOFT_CUDA(cudaMemsetAsync(here, 0, bytes, run.stream()));
  const double in = run.seconds(
      [&](int) { HAYLOFT_CUDA(cudaMemcpyAsync(here, *there, bytes, cudaMemcpyDeviceToDevice, run.stream())); });
  run.clear_wrong();
  launch("link_check", link_check, run.grid(), run.stream(), here, units, std::uint64_t{0}, run.wrong());
  run.require_right("device_to_device_memcpy_ce");
  run.add(("device_to_device_read" + pair).c_str(), "ce", LinkRun::gigabytes(bytes, in));
}

// Measures copies within the device, of which bytes that are read and bytes that are written count.
void measure_own_memory(LinkRun& run, std::uint64_t bytes) {
  DeviceArray<uint4> from(bytes / kLinkUnit), to(bytes / kLinkUnit);
  const auto units = static_cast<std::int64_t>(bytes / kLinkUnit);
  launch("link_fill", link_fill, run.grid(), run.stream(), from, units, std::uint64_t{0});
  const double time =
      run.seconds([&](int) { HAYLOFT_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, run.stream())); });
  run.clear_wrong();
  launch("link_check", link_check, run.grid(), run.stream(), to, units, std::uint64_t{0}, run.wrong());
  run.require_right("device_local_copy");
  run.add("device_local_copy", "sm", LinkRun::gigabytes(2 * bytes, time));
}

}  // namespace

void measure_both_ways(LinkRun& run, const PinnedRegion& region, const offload::Threads& threads) {
  WholeCopies(run, region, threads).both_ways();
}

void measure_other_devices(LinkRun& run, std::uint64_t bytes) {
  LinkFigure shared;
  shared.footprint_bytes = std::min(kCopyBytes, bytes);
  run.begin_region(shared);
  measure_own_memory(run, shared.footprint_bytes);
  int devices = 0;
  HAYLOFT_CUDA(cudaGetDeviceCount(&devices));
  for (int other = 0; other < devices; ++other) {
    if (other == run.device()) continue;
    try {
      measure_peer(run, other, shared.footprint_bytes);
    } catch (const std::exception& error) {
      run.skip("device to device " + std::to_string(other), error.what());
    }
  }
}

void measure_whole_copies(LinkRun& run, const PinnedRegion& region, const offload::Threads& threads) {
  WholeCopies copies(run, region, threads);
  copies.to_device();
  copies.to_host();
}

}  // namespace hayloft::gpu::cuda
