#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>

#include "gpu/cuda/check.cuh"
#include "gpu/cuda/column_copy.cuh"
#include "gpu/cuda/device.cuh"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/link_gate.cuh"
#include "gpu/cuda/link_memory.cuh"
#include "gpu/cuda/refuse.h"
#include "gpu/link.h"
#include "offload/format.h"

// The protocol is nvbandwidth's: memory on a known NUMA node, the stream held by a gate until everything is queued, a
// warm-up, events around the work, the payload checked, the median reported.
namespace hayloft::gpu {
namespace cuda {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr std::uint64_t kUnit = sizeof(uint4);
constexpr std::uint64_t kCopyBytes = 256 * kMiB;  // of a whole copy, at most
constexpr std::uint64_t kPieceBytes = 64 * kMiB;  // gathered by one measurement, about
constexpr int kRepeats = 7;
constexpr int kBlockTokens = 4096;  // the store's default block, of which a column run is one component
constexpr int kColumns = 128;       // components of a key
constexpr int kRank = 16;           // of which step 1 of SparQ reads this many
constexpr int kHops = 2000;         // of one latency measurement: once around the chain
constexpr int kRowBytes[] = {128, 256, 512, 1024};
constexpr double kMostSeconds = 20;  // to prepare a footprint that nobody asked for

class LinkBench {
 public:
  LinkBench(const offload::Topology& topology, const offload::Threads& threads, const LinkOptions& options,
            const LinkProgress& progress)
      : topology_(topology), threads_(threads), options_(options), progress_(progress), wrong_(1) {
    HAYLOFT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    HAYLOFT_CUDA(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking));
    HAYLOFT_CUDA(cudaEventCreate(&start_));
    HAYLOFT_CUDA(cudaEventCreate(&stop_));
    HAYLOFT_CUDA(cudaEventCreateWithFlags(&joined_, cudaEventDisableTiming));
  }
  ~LinkBench() {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
    cudaEventDestroy(joined_);
    cudaStreamDestroy(stream_);
    cudaStreamDestroy(other_);
  }
  LinkBench(const LinkBench&) = delete;
  LinkBench& operator=(const LinkBench&) = delete;

  LinkReport run() {
    describe();
    const std::vector<std::uint64_t> footprints = usable_footprints();
    // Whole copies for every kind of page and node, at the smallest footprint; the rest on ordinary pages of the
    // device's own node, at every footprint.
    for (const std::uint64_t page : page_kinds()) {
      for (const int node : nodes()) {
        attempt(page, node, footprints.front(), [&](const PinnedRegion& region) { whole_copies(region); });
      }
    }
    for (const std::uint64_t footprint : footprints) {
      attempt(4096, report_.node, footprint, [&](const PinnedRegion& region) {
        if (footprint != footprints.front()) whole_copies(region);
        column_runs(region);
        row_gathers(region);
        latency(region);
      });
    }
    return std::move(report_);
  }

 private:
  static std::string version(int number) {
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  }

  void describe() {
    int driver = 0, runtime = 0, device = 0;
    require_device();
    HAYLOFT_CUDA(cudaGetDevice(&device));
    HAYLOFT_CUDA(cudaDriverGetVersion(&driver));
    HAYLOFT_CUDA(cudaRuntimeGetVersion(&runtime));
    cudaDeviceProp properties{};
    HAYLOFT_CUDA(cudaGetDeviceProperties(&properties, device));
    report_.device = std::string(properties.name) + ", " + format_bytes(properties.totalGlobalMem);
    report_.driver = version(driver);
    report_.runtime = version(runtime);
    multiprocessors_ = attribute(cudaDevAttrMultiProcessorCount, device);
    const PcieLink link = pcie_link_of(device);
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
      } else {
        skip("footprint " + format_bytes(footprint), "half of the free memory is " + format_bytes(most));
      }
    }
    if (usable.empty()) {
      usable.push_back(std::max(most / (2 * kMiB), std::uint64_t{1}) * 2 * kMiB);
    }
    return usable;
  }

  std::vector<std::uint64_t> page_kinds() {
    std::vector<std::uint64_t> kinds{4096};
    for (const std::uint64_t page : {2 * kMiB, kGiB}) {
      const auto& pools = topology_.huge_pages();
      const bool kept =
          std::any_of(pools.begin(), pools.end(), [&](const auto& pool) { return pool.page_bytes == page; });
      if (kept) {
        kinds.push_back(page);
      } else {
        skip("pages of " + format_bytes(page), "the system keeps none free");
      }
    }
    return kinds;
  }

  std::vector<int> nodes() const {
    std::vector<int> all;
    for (const offload::NumaNode& node : topology_.nodes()) {
      if (node.memory_bytes > 0 && topology_.nodes().size() > 1) all.push_back(node.os_index);
    }
    if (all.empty()) all.push_back(report_.node);
    return all;
  }

  void skip(const std::string& what, const std::string& why) { report_.skipped.push_back(what + ": " + why); }

  template <class Measure>
  void attempt(std::uint64_t page, int node, std::uint64_t footprint, const Measure& measure) {
    std::string what = format_bytes(footprint) + " in pages of " + format_bytes(page);
    if (node >= 0) what += " on node " + std::to_string(node);
    if (progress_) progress_(what, report_);
    // Memory is touched and pinned at 0.1 to 0.5 s per GiB, which the largest footprints make a long time.
    const double expected = seconds_per_byte_ * static_cast<double>(footprint);
    if (options_.footprints.empty() && expected > kMostSeconds) {
      return skip(what, "to pin it takes about " + std::to_string(static_cast<int>(expected)) +
                            " s here; name it with --link-footprint to have it all the same");
    }
    const auto begin = std::chrono::steady_clock::now();
    std::unique_ptr<PinnedRegion> region;
    try {
      region = std::make_unique<PinnedRegion>(footprint, page, node, threads_);
    } catch (const std::exception& error) {
      return skip(what, error.what());
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    if (page == 4096) seconds_per_byte_ = taken.count() / static_cast<double>(footprint);
    like_ = {};
    like_.page_bytes = page;
    like_.node = node;
    like_.footprint_bytes = footprint;
    measure(*region);
  }

  void add(const char* test, const char* engine, double value, const char* unit = "GB/s", int piece = 0,
           const char* order = "") {
    LinkFigure figure = like_;
    figure.test = test;
    figure.engine = engine;
    figure.piece_bytes = piece;
    figure.order = order;
    figure.value = value;
    figure.unit = unit;
    report_.figures.push_back(std::move(figure));
  }

  // Median seconds of work(turn), queued behind a gate on stream_; what it puts on other_ is joined.
  template <class Work>
  double seconds(const Work& work) {
    std::vector<double> times;
    for (int turn = 0; turn <= kRepeats; ++turn) {
      // The first turn warms up, without a gate: kernels are loaded when they are first launched, for which the driver
      // may wait until the device is idle.
      std::optional<Gate> gate;
      if (turn > 0 && gates_) gate.emplace(stream_);
      HAYLOFT_CUDA(cudaEventRecord(start_, stream_));
      HAYLOFT_CUDA(cudaStreamWaitEvent(other_, start_, 0));
      work(turn);
      HAYLOFT_CUDA(cudaEventRecord(joined_, other_));
      HAYLOFT_CUDA(cudaStreamWaitEvent(stream_, joined_, 0));
      HAYLOFT_CUDA(cudaEventRecord(stop_, stream_));
      if (gate) gate->open();
      HAYLOFT_CUDA(cudaStreamSynchronize(stream_));
      if (gate && gate->gave_up()) {
        gates_ = false;
        skip("gates", "the driver waits for a stream that is held; figures from here on hold the time of queueing");
      }
      float ms = 0;
      HAYLOFT_CUDA(cudaEventElapsedTime(&ms, start_, stop_));
      if (turn > 0) times.push_back(std::max(static_cast<double>(ms) * 1e-3, 1e-9));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  static double gigabytes(std::uint64_t bytes, double time) { return static_cast<double>(bytes) / time / 1e9; }

  Shape grid() const { return {dim3(static_cast<unsigned>(multiprocessors_) * 8), dim3(kLinkThreads)}; }

  void clear_wrong() { HAYLOFT_CUDA(cudaMemsetAsync(wrong_, 0, sizeof(unsigned), stream_)); }
  void require_right(const char* test) {
    unsigned wrong = 0;
    HAYLOFT_CUDA(cudaMemcpyAsync(&wrong, wrong_, sizeof wrong, cudaMemcpyDeviceToHost, stream_));
    HAYLOFT_CUDA(cudaStreamSynchronize(stream_));
    if (wrong)
      refuse("link: ", wrong, " words arrived changed in ", test, ": do not trust this machine's memory or link");
  }

  void whole_copies(const PinnedRegion& region) {
    const std::uint64_t bytes = std::min(kCopyBytes, region.bytes());
    const auto units = static_cast<std::int64_t>(bytes / kUnit);
    const auto places = static_cast<int>(region.bytes() / bytes);
    DeviceArray<uint4> buffer(static_cast<std::uint64_t>(units));
    const auto at = [&](int turn) { return static_cast<std::uint64_t>(turn % places) * bytes; };
    const auto check_arrived = [&](const char* test) {
      clear_wrong();
      launch("link_check", link_check, grid(), stream_, buffer, units, at(kRepeats) / kUnit, wrong_);
      require_right(test);
    };

    double time = seconds([&](int turn) {
      HAYLOFT_CUDA(cudaMemcpyAsync(buffer, region.host() + at(turn), bytes, cudaMemcpyHostToDevice, stream_));
    });
    check_arrived("host_to_device_memcpy_ce");
    add("host_to_device_memcpy_ce", "ce", gigabytes(bytes, time));

    HAYLOFT_CUDA(cudaMemsetAsync(buffer, 0, bytes, stream_));
    time = seconds([&](int turn) {
      launch("link_copy", link_copy, grid(), stream_, region.device() + at(turn) / kUnit, buffer, units);
    });
    check_arrived("host_to_device_memcpy_sm");
    add("host_to_device_memcpy_sm", "sm", gigabytes(bytes, time));

    HAYLOFT_CUDA(cudaMemsetAsync(buffer, 0, bytes, stream_));
    const std::int64_t half = units / 2;
    const std::uint64_t half_bytes = static_cast<std::uint64_t>(half) * kUnit;
    time = seconds([&](int turn) {
      HAYLOFT_CUDA(cudaMemcpyAsync(buffer + half, region.host() + at(turn) + half_bytes, bytes - half_bytes,
                                   cudaMemcpyHostToDevice, other_));
      launch("link_copy", link_copy, grid(), stream_, region.device() + at(turn) / kUnit, buffer, half);
    });
    check_arrived("host_to_device_both");
    add("host_to_device_both", "both", gigabytes(bytes, time));

    device_to_host(region, buffer, bytes, "device_to_host_memcpy_ce", "ce", [&](std::byte* to) {
      HAYLOFT_CUDA(cudaMemcpyAsync(to, buffer, bytes, cudaMemcpyDeviceToHost, stream_));
    });
    device_to_host(region, buffer, bytes, "device_to_host_memcpy_sm", "sm", [&](std::byte* to) {
      launch("link_copy", link_copy, grid(), stream_, buffer, region.device() + (to - region.host()) / kUnit, units);
    });
  }

  // Writes another stretch of the pattern than the one that lies there, so that a copy that did nothing is found.
  template <class Copy>
  void device_to_host(const PinnedRegion& region, uint4* buffer, std::uint64_t bytes, const char* test,
                      const char* engine, const Copy& copy) {
    constexpr std::uint64_t elsewhere = 77;
    launch("link_fill", link_fill, grid(), stream_, buffer, static_cast<std::int64_t>(bytes / kUnit), elsewhere);
    const double time = seconds([&](int) { copy(region.host()); });
    const auto* words = reinterpret_cast<const unsigned*>(region.host());
    for (std::uint64_t i = 0; i < bytes / sizeof(unsigned); i += 1021) {
      if (words[i] != link_word(elsewhere * 4 + i)) refuse("link: words arrived changed in ", test);
    }
    add(test, engine, gigabytes(bytes, time));
    region.fill(bytes, threads_);
  }

  void upload(const std::vector<std::int64_t>& starts, std::int64_t* device) {
    HAYLOFT_CUDA(
        cudaMemcpyAsync(device, starts.data(), starts.size() * sizeof(std::int64_t), cudaMemcpyHostToDevice, stream_));
    HAYLOFT_CUDA(cudaStreamSynchronize(stream_));
  }

  void launch_gather(const PinnedRegion& region, const std::int64_t* starts, std::int64_t count, std::uint64_t piece) {
    launch("link_gather", link_gather, grid(), stream_, region.device(), starts, count, std::countr_zero(piece / kUnit),
           wrong_);
  }

  // Reads the pieces at `starts` (in units) by the multiprocessors. Their length is a power of two.
  double gather(const PinnedRegion& region, const std::vector<std::int64_t>& starts, std::uint64_t piece,
                const char* test) {
    const DeviceArray<std::int64_t> device(starts.size());
    upload(starts, device);
    clear_wrong();
    const double time =
        seconds([&](int) { launch_gather(region, device, static_cast<std::int64_t>(starts.size()), piece); });
    require_right(test);
    return gigabytes(starts.size() * piece, time);
  }

  // The r chosen columns of blocks of keys, as the store lays them out: read by the multiprocessors, and brought in by
  // the copy engine as ColumnSlabs does, slab by slab, a column of all its blocks by one copy.
  void column_runs(const PinnedRegion& region) {
    struct Format {
      const char* test;
      int bits;
    };
    constexpr Format formats[] = {{"column_stream_f16", 16}, {"column_stream_int8", 8}, {"column_stream_int4", 4}};
    for (const Format& format : formats) {
      ColumnRuns runs;
      runs.run_bytes = static_cast<std::uint64_t>(kBlockTokens) * format.bits / 8;
      // A head's rows and columns lie behind one another, so blocks are this far apart.
      runs.block_bytes = static_cast<std::uint64_t>(kBlockTokens) * kColumns * 4 + kColumns * runs.run_bytes;
      const std::uint64_t blocks = region.bytes() / runs.block_bytes;
      if (blocks == 0) return skip("column streams", "the footprint is smaller than a block");
      runs.slab_blocks = std::min(blocks, kColumnSlabBytes / (kRank * runs.run_bytes));
      const std::uint64_t slabs = std::min(blocks / runs.slab_blocks, kPieceBytes / kColumnSlabBytes);
      std::mt19937 random(1);
      for (std::uint64_t slab = 0; slab < slabs; ++slab) {
        std::vector<int> components(kColumns);
        std::iota(components.begin(), components.end(), 0);
        std::shuffle(components.begin(), components.end(), random);
        std::sort(components.begin(), components.begin() + kRank);
        // Evenly over the footprint, but not across a border between two registrations, which no copy may cross.
        const std::uint64_t bytes = runs.slab_blocks * runs.block_bytes;
        std::uint64_t base = slab * (blocks / slabs) * runs.block_bytes;
        const std::uint64_t piece = (base + bytes - 1) / kLinkPinBytes * kLinkPinBytes;
        if (base < piece) base = piece - bytes;
        for (int j = 0; j < kRank; ++j) {
          runs.columns.push_back(base +
                                 static_cast<std::uint64_t>(components[static_cast<std::size_t>(j)]) * runs.run_bytes);
        }
      }
      measure_columns(region, runs, format.test);
    }
  }

  // A column's run in each of slab_blocks blocks that lie behind one another.
  struct ColumnRuns {
    std::uint64_t run_bytes = 0;
    std::uint64_t block_bytes = 0;  // from one block to the next
    std::uint64_t slab_blocks = 0;
    std::vector<std::uint64_t> columns;  // where the first run of each begins, in bytes; kRank of every slab

    // The runs of columns [first, last) of every slab, block by block, in units.
    std::vector<std::int64_t> starts(int first, int last) const {
      std::vector<std::int64_t> all;
      for (std::size_t slab = 0; slab < columns.size(); slab += kRank) {
        for (std::uint64_t block = 0; block < slab_blocks; ++block) {
          for (int j = first; j < last; ++j) {
            const std::uint64_t start = columns[slab + static_cast<std::size_t>(j)] + block * block_bytes;
            all.push_back(static_cast<std::int64_t>(start / kUnit));
          }
        }
      }
      return all;
    }
  };

  void measure_columns(const PinnedRegion& region, const ColumnRuns& runs, const char* test) {
    const std::uint64_t column_bytes = runs.slab_blocks * runs.run_bytes;
    const std::uint64_t bytes = runs.columns.size() * column_bytes;
    const int piece = static_cast<int>(runs.run_bytes);
    add(test, "sm", gather(region, runs.starts(0, kRank), runs.run_bytes, test), "GB/s", piece);

    DeviceArray<std::byte> buffer(bytes);
    const auto copy = [&](int last, cudaStream_t stream) {
      for (std::size_t i = 0; i < runs.columns.size(); ++i) {
        if (static_cast<int>(i % kRank) >= last) continue;
        HAYLOFT_CUDA(cudaMemcpy2DAsync(buffer + i * column_bytes, runs.run_bytes, region.host() + runs.columns[i],
                                       runs.block_bytes, runs.run_bytes, runs.slab_blocks, cudaMemcpyHostToDevice,
                                       stream));
      }
    };
    clear_wrong();
    const double alone = seconds([&](int) { copy(kRank, stream_); });
    for (std::size_t i = 0; i < runs.columns.size(); i += kRank + 1) {  // each of the slab's columns in turn
      const std::uint64_t block = i % runs.slab_blocks;
      launch("link_check", link_check, grid(), stream_,
             reinterpret_cast<const uint4*>(buffer + i * column_bytes + block * runs.run_bytes),
             static_cast<std::int64_t>(runs.run_bytes / kUnit), (runs.columns[i] + block * runs.block_bytes) / kUnit,
             wrong_);
    }
    require_right(test);
    add(test, "ce", gigabytes(bytes, alone), "GB/s", piece);

    // Half of the columns each.
    const std::vector<std::int64_t> others = runs.starts(kRank / 2, kRank);
    const DeviceArray<std::int64_t> starts(others.size());
    upload(others, starts);
    clear_wrong();
    const double together = seconds([&](int) {
      copy(kRank / 2, other_);
      launch_gather(region, starts, static_cast<std::int64_t>(others.size()), runs.run_bytes);
    });
    require_right(test);
    add(test, "both", gigabytes(bytes, together), "GB/s", piece);
  }

  void row_gathers(const PinnedRegion& region) {
    for (const int row : kRowBytes) {
      const std::uint64_t rows = region.bytes() / static_cast<std::uint64_t>(row);
      const std::uint64_t count = std::min(rows, kPieceBytes / static_cast<std::uint64_t>(row));
      std::mt19937_64 random(2);
      std::vector<std::int64_t> starts(count);
      for (std::int64_t& start : starts) {
        start = static_cast<std::int64_t>(random() % rows * (static_cast<std::uint64_t>(row) / kUnit));
      }
      add("row_gather", "sm", gather(region, starts, static_cast<std::uint64_t>(row), "row_gather"), "GB/s", row,
          "random");
      std::sort(starts.begin(), starts.end());
      add("row_gather", "sm", gather(region, starts, static_cast<std::uint64_t>(row), "row_gather"), "GB/s", row,
          "ascending");
    }
  }

  // One small fetch after another, each naming the next, all over the footprint.
  void latency(const PinnedRegion& region) {
    const std::uint64_t units = std::min<std::uint64_t>(region.bytes() / kUnit, ~0u);
    // A closed chain of one unit in each of equal slices of the footprint, the slices in random order.
    const std::uint64_t slice = units / kHops;
    std::mt19937_64 random(3);
    std::vector<unsigned> chain(kHops);
    for (std::size_t i = 0; i < chain.size(); ++i) chain[i] = static_cast<unsigned>(i * slice + random() % slice);
    std::shuffle(chain.begin(), chain.end(), random);
    auto* words = reinterpret_cast<unsigned*>(region.host());
    for (std::size_t i = 0; i < chain.size(); ++i) {
      words[std::uint64_t{chain[i]} * 4] = chain[(i + 1) % chain.size()];
    }

    const double time = seconds([&](int) {
      launch("link_chase", link_chase, {dim3(1), dim3(1)}, stream_, region.device(), chain[0], kHops, wrong_);
    });
    unsigned end = 0;
    HAYLOFT_CUDA(cudaMemcpyAsync(&end, wrong_, sizeof end, cudaMemcpyDeviceToHost, stream_));
    HAYLOFT_CUDA(cudaStreamSynchronize(stream_));
    for (const unsigned unit : chain) words[std::uint64_t{unit} * 4] = link_word(std::uint64_t{unit} * 4);
    if (end != chain[0]) refuse("link: a fetch arrived changed in host_device_latency_sm");
    add("host_device_latency_sm", "sm", time / kHops * 1e9, "ns", static_cast<int>(kUnit), "random");
  }

  const offload::Topology& topology_;
  const offload::Threads& threads_;
  const LinkOptions& options_;
  const LinkProgress& progress_;
  LinkReport report_;
  LinkFigure like_;  // what the figures of one region share
  int multiprocessors_ = 1;
  double seconds_per_byte_ = 0;  // that the last region of ordinary pages took; 0: none did yet
  bool gates_ = true;            // whether the driver takes work behind them
  DeviceArray<unsigned> wrong_;
  cudaStream_t stream_ = nullptr;
  cudaStream_t other_ = nullptr;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
  cudaEvent_t joined_ = nullptr;
};

}  // namespace
}  // namespace cuda

LinkReport measure_link(const offload::Topology& topology, const offload::Threads& threads, const LinkOptions& options,
                        const LinkProgress& progress) {
  return cuda::LinkBench(topology, threads, options, progress).run();
}

}  // namespace hayloft::gpu
