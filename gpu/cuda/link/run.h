#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpu/cuda/api/device.h"
#include "gpu/cuda/api/refuse.h"
#include "gpu/cuda/api/stream.h"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/link/gate.h"
#include "gpu/cuda/link/memory.h"
#include "gpu/link.h"

namespace hayloft::gpu::cuda {

inline constexpr std::uint64_t kLinkUnit = sizeof(uint4);
inline constexpr int kLinkRepeats = 7;
inline constexpr std::uint64_t kLinkPieceBytes = std::uint64_t{64} << 20;  // that one measurement gathers, about

// Holds what the measurements of the link share: two streams, the clock, the check of what arrived and the report.
class LinkRun {
 public:
  LinkRun() : wrong_(1) {
    HAYLOFT_CUDA(cudaGetDevice(&device_));
    multiprocessors_ = attribute(cudaDevAttrMultiProcessorCount, device_);
  }

  LinkReport& report() { return report_; }
  int device() const { return device_; }
  cudaStream_t stream() const { return stream_; }
  cudaStream_t other() const { return other_; }
  Shape grid() const { return {dim3(static_cast<unsigned>(multiprocessors_) * 8), dim3(kLinkThreads)}; }

  void skip(const std::string& what, const std::string& why) { report_.skipped.push_back(what + ": " + why); }

  // Sets what the figures of one region share.
  void begin_region(LinkFigure shared) { like_ = std::move(shared); }
  void add(const char* test, const char* engine, double value, const char* unit = "GB/s", std::uint64_t piece = 0,
           const char* order = "") {
    LinkFigure figure = like_;
    figure.test = test;
    figure.engine = engine;
    figure.piece_bytes = static_cast<int>(piece);
    figure.order = order;
    figure.value = value;
    figure.unit = unit;
    if (timed_) {
      const bool is_rate = figure.unit == "GB/s";  // else a time
      figure.runs = kLinkRepeats;
      figure.slowest = is_rate ? value * timed_->median / timed_->most : value * timed_->most / timed_->median;
      figure.fastest = is_rate ? value * timed_->median / timed_->least : value * timed_->least / timed_->median;
    }
    timed_.reset();
    report_.figures.push_back(std::move(figure));
  }

  // Median seconds of work(turn), queued behind a gate on stream(); what it puts on other() is joined.
  template <class Work>
  double seconds(const Work& work) {
    return median([&](int turn) {
      // The first turn warms up, without a gate: kernels are loaded when they are first launched, for which the driver
      // may wait until the device is idle.
      std::optional<Gate> gate;
      if (turn > 0 && gates_) gate.emplace(stream_);
      start_.record(stream_);
      start_.wait(other_);
      work(turn);
      joined_.record(other_);
      joined_.wait(stream_);
      stop_.record(stream_);
      if (gate) gate->open();
      HAYLOFT_CUDA(cudaStreamSynchronize(stream_));
      if (gate && gate->gave_up()) {
        gates_ = false;
        skip("gates", "the driver waits for a stream that is held; figures from here on hold the time of queueing");
      }
      return stop_.seconds_since(start_);
    });
  }

  // Median seconds of work(turn) as a decode step has it: the host has waited for the device, and the device begins
  // with the first of what is being queued. What it puts on other() is joined by itself.
  template <class Work>
  double live_seconds(const Work& work) {
    using Clock = std::chrono::steady_clock;
    return median([&](int turn) {
      HAYLOFT_CUDA(cudaStreamSynchronize(stream_));
      const Clock::time_point begin = Clock::now();
      work(turn);
      HAYLOFT_CUDA(cudaStreamSynchronize(stream_));
      return std::chrono::duration<double>(Clock::now() - begin).count();
    });
  }

  // Returns where kernels count the words that are not the pattern's.
  unsigned* wrong() const { return wrong_; }
  void clear_wrong() { HAYLOFT_CUDA(cudaMemsetAsync(wrong_, 0, sizeof(unsigned), stream_)); }
  unsigned read_wrong() {
    unsigned wrong = 0;
    HAYLOFT_CUDA(cudaMemcpyAsync(&wrong, wrong_, sizeof wrong, cudaMemcpyDeviceToHost, stream_));
    HAYLOFT_CUDA(cudaStreamSynchronize(stream_));
    return wrong;
  }
  void require_right(const char* test) {
    if (const unsigned wrong = read_wrong()) refuse_changed(test, wrong);
  }
  [[noreturn]] static void refuse_changed(const char* test, std::uint64_t wrong) {
    refuse("link: ", wrong, " words arrived changed in ", test, ": do not trust this machine's memory or link");
  }

  static double gigabytes(std::uint64_t bytes, double time) { return static_cast<double>(bytes) / time / 1e9; }

 private:
  // Returns the median of kLinkRepeats turns after one that is not counted.
  template <class Turn>
  double median(const Turn& turn) {
    std::vector<double> times;
    for (int i = 0; i <= kLinkRepeats; ++i) {
      const double time = turn(i);
      if (i > 0) times.push_back(std::max(time, 1e-9));
    }
    std::sort(times.begin(), times.end());
    timed_ = Timed{times.front(), times[times.size() / 2], times.back()};
    return timed_->median;
  }

  struct Timed {  // seconds
    double least, median, most;
  };
  std::optional<Timed> timed_;  // of the last measurement, for the figure that is made of it
  int device_ = 0;
  int multiprocessors_ = 1;
  LinkReport report_;
  LinkFigure like_;
  bool gates_ = true;  // whether the driver takes work behind them
  DeviceArray<unsigned> wrong_;
  OwnedStream stream_;
  OwnedStream other_;
  TimedEvent start_;
  TimedEvent stop_;
  Event joined_;
};

// Says where pieces begin in a region, in units of 16 bytes, for kernels to read.
class LinkStarts {
 public:
  LinkStarts(const LinkRun& run, const std::vector<std::int64_t>& starts)
      : device_(starts.size()), count_(starts.size()) {
    HAYLOFT_CUDA(cudaMemcpyAsync(device_, starts.data(), starts.size() * sizeof(std::int64_t), cudaMemcpyHostToDevice,
                                 run.stream()));
    HAYLOFT_CUDA(cudaStreamSynchronize(run.stream()));
  }
  const std::int64_t* data() const { return device_; }
  std::int64_t count() const { return static_cast<std::int64_t>(count_); }

 private:
  DeviceArray<std::int64_t> device_;
  std::size_t count_;
};

// The groups of measurements; each puts figures into the run's report. They throw Error when a payload arrives changed,
// and leave the pattern in the region as it was.
void measure_whole_copies(LinkRun& run, const PinnedRegion& region, const offload::Threads& threads);
void measure_both_ways(LinkRun& run, const PinnedRegion& region, const offload::Threads& threads);
void measure_other_devices(LinkRun& run, std::uint64_t bytes);  // no region is read
void measure_columns(LinkRun& run, const PinnedRegion& region);
void measure_rows(LinkRun& run, const PinnedRegion& region);
void measure_latency(LinkRun& run, const PinnedRegion& region);
void measure_launches(LinkRun& run);  // no memory is read

}  // namespace hayloft::gpu::cuda
