#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "gpu/cuda/api/device.h"
#include "gpu/cuda/link/run.h"
#include "gpu/link.h"
#include "offload/host/pages.h"
#include "offload/text/format.h"

// Over which memory the link is measured. The protocol is nvbandwidth's: memory on a known NUMA node, the stream held
// by a gate until everything is queued, a warm-up, events around the work, the payload checked, the median reported.
// Only columns that the copy engine brings in (columns.cu) and some launches (launches.cu) are measured as the host
// queues them.
namespace hayloft::gpu {
namespace cuda {
namespace {

constexpr std::uint64_t kMeasuredMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr double kMostSeconds = 20;  // to prepare a footprint that nobody asked for

std::string version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

std::string words(const offload::PageKind& kind) {
  return (kind.transparent ? "transparent pages of " : "pages of ") + format_bytes(kind.bytes);
}

std::uint64_t free_bytes() {
  std::size_t free = 0, total = 0;
  HAYLOFT_CUDA(cudaMemGetInfo(&free, &total));
  return free;
}

class LinkBench {
 public:
  LinkBench(const offload::Topology& topology, const offload::Threads& threads, const LinkOptions& options,
            const LinkProgress& progress)
      : topology_(topology), threads_(threads), options_(options), progress_(progress) {}

  LinkReport run() {
    describe();
    const std::vector<std::uint64_t> footprints = usable_footprints();
    // Every kind of page and node at the smallest footprint; the larger ones on what keys and values lie on.
    if (wants_memory()) {
      for (const offload::PageKind& kind : page_kinds()) {
        for (const int node : nodes()) measure(kind, node, footprints.front());
      }
      for (std::size_t i = 1; i < footprints.size(); ++i) {
        measure(offload::arena_pages(topology_.huge_pages(), footprints[i]), report_.node, footprints[i]);
      }
    }
    if (wants("device-to-device")) {
      if (progress_) progress_("device to device", report_);
      measure_other_devices(run_, footprints.front());
    }
    if (wants("launches")) {
      if (progress_) progress_("launches", report_);
      LinkFigure of_no_memory;
      of_no_memory.page_bytes = 0;
      run_.begin_region(of_no_memory);
      measure_launches(run_);
    }
    return std::move(report_);
  }

 private:
  void describe() {
    int driver = 0, runtime = 0;
    HAYLOFT_CUDA(cudaDriverGetVersion(&driver));
    HAYLOFT_CUDA(cudaRuntimeGetVersion(&runtime));
    cudaDeviceProp properties{};
    HAYLOFT_CUDA(cudaGetDeviceProperties(&properties, run_.device()));
    report_.device = std::string(properties.name) + ", " + format_bytes(properties.totalGlobalMem);
    report_.driver = version(driver);
    report_.runtime = version(runtime);
    report_.runtime_number = runtime;
    std::ifstream file("/proc/driver/nvidia/version");
    report_.driver_version = driver_version_in({std::istreambuf_iterator<char>(file), {}});
    const PcieLink link = pcie_link_of(run_.device());
    report_.generation = link.generation;
    report_.lanes = link.lanes;
    report_.node = link.node;
  }

  std::vector<std::uint64_t> usable_footprints() {
    // Half of what is free: pinned memory cannot be taken back by the system while it is measured.
    const std::uint64_t most = topology_.available_bytes() / 2;
    std::vector<std::uint64_t> wanted = options_.footprints;
    if (wanted.empty()) wanted = {kGiB, 4 * kGiB, 16 * kGiB, 64 * kGiB};
    std::vector<std::uint64_t> usable;
    for (const std::uint64_t footprint : wanted) {
      if (footprint <= most) {
        usable.push_back(footprint);
      } else if (wants_memory()) {
        run_.skip("footprint " + format_bytes(footprint), "half of the free memory is " + format_bytes(most));
      }
    }
    if (usable.empty()) {
      usable.push_back(std::max(most / (2 * kMeasuredMiB), std::uint64_t{1}) * 2 * kMeasuredMiB);
    }
    return usable;
  }

  std::vector<offload::PageKind> page_kinds() {
    std::vector<offload::PageKind> kinds{{4096, false}};
    const offload::PageKind ordinary = offload::ordinary_pages();
    if (ordinary.transparent) kinds.push_back(ordinary);
    for (const std::uint64_t page : {2 * kMeasuredMiB, kGiB}) {
      const auto& pools = topology_.huge_pages();
      const bool kept =
          std::any_of(pools.begin(), pools.end(), [&](const auto& pool) { return pool.page_bytes == page; });
      if (kept) {
        kinds.push_back({page, false});
      } else {
        run_.skip("explicit pages of " + format_bytes(page), "the system keeps none free");
      }
    }
    if (!ordinary.transparent) run_.skip("transparent huge pages", "the system never gives them");
    return kinds;
  }

  // The device's own among them.
  std::vector<int> nodes() const {
    std::vector<int> all;
    for (const offload::NumaNode& node : topology_.nodes()) {
      if (node.memory_bytes > 0 && topology_.nodes().size() > 1) all.push_back(node.os_index);
    }
    if (std::find(all.begin(), all.end(), report_.node) == all.end()) all.push_back(report_.node);
    return all;
  }

  void measure(const offload::PageKind& kind, int node, std::uint64_t footprint) {
    std::string what = format_bytes(footprint) + " in " + words(kind);
    if (node >= 0) what += " on node " + std::to_string(node);
    if (progress_) progress_(what, report_);
    // Memory is touched and pinned at 0.1 to 0.5 s per GiB, which the largest footprints make a long time.
    const double expected = seconds_per_byte_ * static_cast<double>(footprint);
    if (options_.footprints.empty() && expected > kMostSeconds) {
      return run_.skip(what, "to pin it takes about " + std::to_string(static_cast<int>(expected)) +
                                 " s here; name it with --link-footprint to have it all the same");
    }
    const auto begin = std::chrono::steady_clock::now();
    const std::uint64_t free_before = free_bytes();
    std::unique_ptr<PinnedRegion> region;
    try {
      region = std::make_unique<PinnedRegion>(footprint, kind, node, run_.device(), threads_);
    } catch (const std::exception& error) {
      return run_.skip(what, error.what());
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    LinkFigure shared;
    shared.page_bytes = kind.bytes;
    shared.transparent = kind.transparent;
    shared.node = node;
    shared.footprint_bytes = footprint;
    shared.kv_pages = node == report_.node && kind == offload::arena_pages(topology_.huge_pages(), footprint);
    if (shared.kv_pages) seconds_per_byte_ = taken.count() / static_cast<double>(footprint);
    run_.begin_region(shared);
    // The region's share of the device's page tables.
    const std::uint64_t free_after = free_bytes();
    run_.add("device_memory_of_pinned", "",
             static_cast<double>(free_before - std::min(free_before, free_after)) * kMeasuredMiB /
                 static_cast<double>(footprint),
             "B/MiB");
    if (wants("copies")) measure_whole_copies(run_, *region, threads_);
    if (wants("both-ways")) measure_both_ways(run_, *region, threads_);
    if (wants("columns")) measure_columns(run_, *region);
    if (wants("rows")) measure_rows(run_, *region);
    if (wants("latency")) measure_latency(run_, *region);
  }

  bool wants(const char* test) const {
    return options_.tests.empty() ||
           std::find(options_.tests.begin(), options_.tests.end(), test) != options_.tests.end();
  }

  bool wants_memory() const {
    return std::ranges::any_of(link_tests, [&](const LinkTest& test) { return test.reads_memory && wants(test.name); });
  }

  const offload::Topology& topology_;
  const offload::Threads& threads_;
  const LinkOptions& options_;
  const LinkProgress& progress_;
  LinkRun run_;
  LinkReport& report_ = run_.report();
  double seconds_per_byte_ = 0;  // that the last region took of what keys and values lie on; 0: none did yet
};

}  // namespace
}  // namespace cuda

LinkReport measure_link(const offload::Topology& topology, const offload::Threads& threads, const LinkOptions& options,
                        const LinkProgress& progress) {
  cuda::require_device(options.device);
  HAYLOFT_CUDA(cuda::use_device(options.device));
  return cuda::LinkBench(topology, threads, options, progress).run();
}

}  // namespace hayloft::gpu
