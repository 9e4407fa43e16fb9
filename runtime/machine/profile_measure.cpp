#include <algorithm>

#include "offload/error.h"
#include "runtime/machine/measure_attention.h"
#include "runtime/machine/numa_bandwidth.h"
#include "runtime/machine/profile.h"

// The measurements behind a machine profile: each operation of decoding by itself, over memory that holds noise.
namespace hayloft::runtime::plan {
namespace {

constexpr int slices = 8;  // the footprint is read an eighth at a time
constexpr std::uint64_t smallest_footprint = std::uint64_t{64} << 20;
constexpr std::uint64_t usual_footprint = std::uint64_t{1} << 30;
constexpr std::uint64_t small_share = 16;  // of the footprint: 64 MiB of 1 GiB
constexpr int measured_dims[] = {64, 128};
constexpr int measured_groups[] = {1, 2, 4, 8};
constexpr int attention_measurements = 8 * (2 * (store_measurements + tail_measurements) + search_measurements);
constexpr int index_measurements = 2;
constexpr int other_measurements = 4;

// Returns whether it is one of those to run.
bool wants(const ProfileOptions& options, const char* test) {
  return options.tests.empty() || std::find(options.tests.begin(), options.tests.end(), test) != options.tests.end();
}

int measurements(const ProfileOptions& options) {
  return (wants(options, "attention") ? attention_measurements : 0) +
         (wants(options, "index") ? index_measurements : 0) + other_measurements;
}

std::uint64_t wanted_footprint(const offload::Arena& arena, const ProfileOptions& options) {
  const std::uint64_t wanted =
      options.footprint_bytes ? options.footprint_bytes : std::min(usual_footprint, arena.budget_bytes() / 4);
  return std::max(wanted, smallest_footprint);
}

void measure_matrices(TurnTimer& timer, const NoiseMemory& memory, MachineProfile& profile) {
  constexpr int side = 2048;
  constexpr int many = 256;  // tokens
  const std::uint64_t bytes = std::uint64_t{2} * side * side;
  const std::uint64_t count = std::clamp<std::uint64_t>(memory.bytes() / 4 / bytes, 1, 32);
  const gpu::Buffer weights = timer.on_device(std::span<const std::byte>(memory.data(), count * bytes));
  const std::vector<float> noise = normal_noise(static_cast<std::size_t>(many) * side, 2);
  const gpu::Buffer x = timer.on_device(std::span<const float>(noise));
  const gpu::Buffer y = timer.on_device(std::span<const float>(noise));
  const auto multiply = [&](int T) {
    timer.measuring(T == 1 ? "weight_stream_GBps" : "matmul_GFLOPps");
    return timer.median([&](int turn) {
      const std::uint64_t at = static_cast<std::uint64_t>(turn) % count * bytes;
      timer.backend().matmul(x.as<float>(), T, {weights.as<std::byte>() + at, gpu::DType::f16, side, side}, nullptr,
                             y.as<float>(), timer.stream());
    });
  };
  profile.weight_stream = gigabytes_per_second(static_cast<double>(bytes), multiply(1));
  profile.matmul = 2.0 * many * side * side / multiply(many) / 1e9;
}

// One median for each rate, in the order of near_reads; before them, where there are several nodes, that of all memory.
void measure_memory(TurnTimer& timer, const offload::Topology& topology, const NoiseMemory& memory,
                    MachineProfile& profile) {
  const bool several = std::count_if(topology.nodes().begin(), topology.nodes().end(),
                                     [](const offload::NumaNode& node) { return node.memory_bytes > 0; }) > 1;
  bool first = several;
  measure_numa_bandwidth(profile, topology, timer.backend().threads(), {memory.data(), memory.bytes()},
                         [&](const std::function<void()>& turn) {
                           timer.measuring(first ? "near_read_GBps" : "near_reads");
                           first = false;
                           return timer.median([&](int) { turn(); });
                         });
}

RateSpread spread_of(const Timing& timing) {
  return {timing.what,
          timing.head_dim,
          timing.group,
          timing.small,
          timing.runs,
          timing.median / timing.most,
          timing.median / timing.high,
          timing.median / timing.low,
          timing.median / timing.least};
}

// The operations of a sliding-window layer for one token, at sizes where nothing but calling them takes time.
double layer_seconds(TurnTimer& timer, const NoiseMemory& memory) {
  constexpr int n = 64;
  constexpr int window = 32;
  gpu::Backend& backend = timer.backend();
  const gpu::Stream stream = timer.stream();
  const gpu::Buffer x = timer.on_device(std::span<const float>(normal_noise(n, 2)));
  const gpu::Buffer y = timer.on_device(std::span<const float>(normal_noise(n, 2)));
  const gpu::Buffer ones = timer.on_device(std::span<const float>(std::vector<float>(n, 1.0f)));
  const gpu::Buffer weights = timer.on_device(memory.numbers().first(n * n));
  const gpu::Buffer rows = timer.on_device(memory.numbers().first(2 * (window + 1) * n));
  const gpu::Buffer flag = timer.on_device(std::span<const std::int32_t>(std::vector<std::int32_t>(1)));
  const gpu::Matrix w{weights.as<void>(), gpu::DType::f16, n, n};
  gpu::CacheView cache;
  cache.kv_heads = 1;
  cache.head_dim = n;
  cache.tail = {rows.as<f16>(), window + 1, 0, window, 0};
  return timer.median([&](int) {
    for (int norm = 0; norm < 2; ++norm) {
      backend.rms_norm(x.as<float>(), 1, n, ones.as<float>(), 1e-6f, y.as<float>(), stream);
    }
    for (int product = 0; product < 7; ++product) {
      backend.matmul(x.as<float>(), 1, w, nullptr, y.as<float>(), stream);
    }
    for (int rotated = 0; rotated < 2; ++rotated) {
      backend.rope(y.as<float>(), 1, 1, n, window, {ones.as<float>()}, stream);
    }
    backend.append(cache, y.as<float>(), y.as<float>(), 1, stream);
    backend.attend_causal(cache, x.as<float>(), 1, 1, window, y.as<float>(), stream);
    backend.silu_mul(y.as<float>(), x.as<float>(), n, stream);
    backend.add(y.as<float>(), x.as<float>(), n, stream);
    backend.add(y.as<float>(), x.as<float>(), n, stream);
    backend.flag_nonfinite(x.as<float>(), n, 0, flag.as<std::int32_t>(), stream);
  });
}

}  // namespace

MachineProfile measure_profile(gpu::Backend& backend, offload::Arena& arena, const offload::Topology& topology,
                               const ProfileOptions& options, const ProfileProgress& progress) {
  const auto report = [&](const std::string& what) {
    if (progress) progress(what);
  };
  TurnTimer timer(backend, options.seconds, measurements(options));
  const NoiseMemory memory(arena.allocate(wanted_footprint(arena, options)), backend.threads());
  MachineProfile profile;
  profile.origin = origin_here(topology, options.version);
  profile.origin.seconds = std::max(options.seconds, 1e-3);  // 0 is as short as it goes, too
  const gpu::DeviceMemory device = backend.memory();
  profile.origin.gpu_memory_bytes = device.budget_bytes > 0 ? device.budget_bytes + device.overhead_bytes : 0;
  profile.machine = topology.describe();
  profile.device = backend.name();
  profile.threads = backend.threads().count();
  profile.footprint_bytes = memory.bytes();
  profile.small_footprint_bytes = std::max(memory.bytes() / small_share, smallest_footprint / 4);
  if (wants(options, "memory")) {
    report("memory");
    measure_memory(timer, topology, memory, profile);
  }
  if (wants(options, "matrices")) {
    report("matrices");
    measure_matrices(timer, memory, profile);
    timer.measuring("layer_overhead_us");
    profile.layer_overhead_us = layer_seconds(timer, memory) * 1e6;
  }
  for (const int d : measured_dims) {
    double ann_search = 0;
    if (wants(options, "index")) {
      report(fmt::format("an index of keys, head dimension {}", d));
      timer.about(d, 0, false);
      ann_search = measure_ann_search(timer, memory, d);
    }
    for (const int group : measured_groups) {
      AttentionRates rates{d, group};
      rates.ann_search = ann_search;
      if (!wants(options, "attention")) {
        if (wants(options, "index") && group == measured_groups[0]) profile.attention.push_back(rates);
        continue;
      }
      report(fmt::format("attention, head dimension {}, group {}", d, group));
      timer.about(d, group, false);
      measure_store(timer, memory, profile.footprint_bytes, slices, rates);
      measure_selection(timer, memory, profile.footprint_bytes, slices, rates);
      measure_tail(timer, memory, profile.footprint_bytes, slices, rates);
      profile.attention.push_back(rates);
      // Once more over little memory; what knows no footprint is the same.
      timer.about(d, group, true);
      measure_store(timer, memory, profile.small_footprint_bytes, 1, rates);
      measure_tail(timer, memory, profile.small_footprint_bytes, 1, rates);
      profile.attention_small.push_back(rates);
    }
  }
  for (const Timing& timing : timer.timings()) profile.spreads.push_back(spread_of(timing));
  return profile;
}

}  // namespace hayloft::runtime::plan
