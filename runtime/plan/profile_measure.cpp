#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <span>

#include "index/scan/exact_search.h"
#include "offload/clock.h"
#include "offload/error.h"
#include "runtime/plan/near_memory.h"
#include "runtime/plan/profile.h"

// The measurements behind a machine profile: each operation of decoding by itself, over memory that holds noise.
namespace hayloft::runtime {
namespace {

constexpr int kv_heads = 2;
constexpr int rank = 16;
constexpr int list_rows = 512;     // of a gather, per list
constexpr int top_k = 32;          // of an exact search, per query head
constexpr int sparq_k = 96;        // what sparq takes from the store by default: 128, a quarter of it in the window
constexpr int tail_tokens = 4096;  // what a tail holds on average, at the default block size
constexpr int turns = 16;          // different queries and places that a measurement cycles through
constexpr int slices = 8;          // the footprint is read an eighth at a time
constexpr std::uint64_t smallest_footprint = std::uint64_t{64} << 20;
constexpr std::uint64_t usual_footprint = std::uint64_t{1} << 30;
constexpr int measured_dims[] = {64, 128};
constexpr int measured_groups[] = {1, 2, 4, 8};
constexpr int chunk_tokens = 256;          // of a prompt, behind a slice of the footprint
constexpr std::uint64_t small_share = 16;  // of the footprint: 64 MiB of 1 GiB
constexpr int measurements = (10 + 7) * 8 + 4;

double gigabytes(double bytes, double seconds) {
  return bytes / seconds / 1e9;
}

std::vector<float> normal(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(count);
  for (float& x : values) x = distribution(random);
  return values;
}

class Measurement {
 public:
  Measurement(gpu::Backend& backend, offload::Arena& arena, const ProfileOptions& options, ProfileProgress progress)
      : backend_(backend),
        progress_(std::move(progress)),
        end_(Clock::now() +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds))),
        memory_(arena.allocate(wanted_footprint(arena, options))) {
    fill();
  }

  MachineProfile run(const offload::Topology& topology) {
    MachineProfile profile;
    profile.machine = topology.describe();
    profile.device = backend_.name();
    profile.threads = backend_.threads().count();
    profile.footprint_bytes = memory_.bytes();
    profile.small_footprint_bytes = std::max(memory_.bytes() / small_share, smallest_footprint / 4);
    say("memory");
    measure_near_reads(profile, topology, backend_.threads(), {memory_.data(), memory_.bytes()},
                       [&](const std::function<void()>& turn) { return median([&](int) { turn(); }); });
    say("matrices");
    measure_matrices(profile);
    profile.layer_overhead_us = layer_seconds() * 1e6;
    for (const int d : measured_dims) {
      for (const int group : measured_groups) {
        say(fmt::format("attention, head dimension {}, group {}", d, group));
        footprint_ = profile.footprint_bytes;
        parts_ = slices;
        AttentionRates rates{d, group};
        measure_store(rates);
        AttentionRates small = rates;
        measure_tail(rates);
        profile.attention.push_back(rates);
        // Once more over little memory; the tail, which knows no footprint, is the same.
        footprint_ = profile.small_footprint_bytes;
        parts_ = 1;
        measure_store(small);
        small.tail = rates.tail;
        small.sparq_tail = rates.sparq_tail;
        small.causal = rates.causal;
        profile.attention_small.push_back(small);
      }
    }
    return profile;
  }

 private:
  static std::uint64_t wanted_footprint(const offload::Arena& arena, const ProfileOptions& options) {
    const std::uint64_t wanted =
        options.footprint_bytes ? options.footprint_bytes : std::min(usual_footprint, arena.budget_bytes() / 4);
    return std::max(wanted, smallest_footprint);
  }

  // Normal numbers everywhere: whatever part of a block is read, it is finite and of the size of keys and values.
  void fill() {
    const std::vector<float> numbers = normal(1 << 16, 1);
    std::vector<f16> noise(numbers.size());
    std::transform(numbers.begin(), numbers.end(), noise.begin(), [](float x) { return to_f16(x); });
    noise_ = std::move(noise);
    constexpr std::uint64_t piece = std::uint64_t{1} << 20;
    constexpr std::size_t run = 64;  // every 64 numbers are from another place in the noise
    const auto pieces = static_cast<std::int64_t>((memory_.bytes() + piece - 1) / piece);
    backend_.threads().parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        std::minstd_rand random(static_cast<std::uint32_t>(i) + 1);
        const std::uint64_t from = static_cast<std::uint64_t>(i) * piece;
        const std::uint64_t to = std::min(from + piece, memory_.bytes());
        for (std::uint64_t at = from; at < to; at += run * sizeof(f16)) {
          std::memcpy(memory_.data() + at, noise_.data() + random() % (noise_.size() - run), run * sizeof(f16));
        }
      }
    });
  }

  void say(const std::string& what) const {
    if (progress_) progress_(what);
  }

  // The median time of run(turn), after one that is not counted. A neighbour on the machine makes some runs slow, and
  // at least three show which.
  template <class Run>
  double median(const Run& run) {
    const Clock::time_point start = Clock::now();
    const Clock::time_point enough = start + (end_ - start) / std::max(1, left_--);
    run(0);
    backend_.synchronize(stream_);
    std::vector<double> times;
    for (int turn = 1; times.size() < 3 || (Clock::now() < enough && times.size() < 10000); ++turn) {
      const Clock::time_point before = Clock::now();
      run(turn);
      backend_.synchronize(stream_);
      times.push_back(seconds_since(before));
    }
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
    return std::max(times[times.size() / 2], 1e-9);
  }

  template <class T>
  gpu::Buffer on_device(std::span<const T> host) {
    gpu::Buffer buffer = backend_.allocate(host.size_bytes(), stream_);
    backend_.to_device(buffer.as<void>(), host.data(), host.size_bytes(), stream_);
    backend_.synchronize(stream_);
    return buffer;
  }
  gpu::Buffer floats(std::size_t count) { return on_device(std::span<const float>(normal(count, 2))); }

  void measure_matrices(MachineProfile& profile) {
    constexpr int side = 2048;
    const std::uint64_t bytes = std::uint64_t{2} * side * side;
    const std::uint64_t count = std::clamp<std::uint64_t>(memory_.bytes() / 4 / bytes, 1, 32);
    const gpu::Buffer weights = on_device(std::span<const std::byte>(memory_.data(), count * bytes));
    constexpr int many = 256;  // tokens
    const gpu::Buffer x = floats(static_cast<std::size_t>(many) * side);
    const gpu::Buffer y = floats(static_cast<std::size_t>(many) * side);
    const auto matrix = [&](int turn) {
      const std::uint64_t at = static_cast<std::uint64_t>(turn) % count * bytes;
      return gpu::Matrix{weights.as<std::byte>() + at, gpu::DType::f16, side, side};
    };
    const auto multiply = [&](int T) {
      return median(
          [&](int turn) { backend_.matmul(x.as<float>(), T, matrix(turn), nullptr, y.as<float>(), stream_); });
    };
    profile.weight_stream = gigabytes(static_cast<double>(bytes), multiply(1));
    profile.matmul = 2.0 * many * side * side / multiply(many) / 1e9;
  }

  // The operations of a sliding-window layer for one token, at sizes where nothing but calling them takes time.
  double layer_seconds() {
    constexpr int n = 64;
    constexpr int window = 32;
    const gpu::Buffer x = floats(n);
    const gpu::Buffer y = floats(n);
    const gpu::Buffer ones = on_device(std::span<const float>(std::vector<float>(n, 1.0f)));
    const gpu::Buffer weights = on_device(std::span<const f16>(noise_.data(), n * n));
    const gpu::Buffer rows = on_device(std::span<const f16>(noise_.data(), 2 * (window + 1) * n));
    const gpu::Buffer flag = on_device(std::span<const std::int32_t>(std::vector<std::int32_t>(1)));
    const gpu::Matrix w{weights.as<void>(), gpu::DType::f16, n, n};
    gpu::CacheView cache;
    cache.kv_heads = 1;
    cache.head_dim = n;
    cache.tail = {rows.as<f16>(), window + 1, 0, window, 0};
    return median([&](int) {
      for (int norm = 0; norm < 2; ++norm) {
        backend_.rms_norm(x.as<float>(), 1, n, ones.as<float>(), 1e-6f, y.as<float>(), stream_);
      }
      for (int product = 0; product < 7; ++product) {
        backend_.matmul(x.as<float>(), 1, w, nullptr, y.as<float>(), stream_);
      }
      for (int rotated = 0; rotated < 2; ++rotated) {
        backend_.rope(y.as<float>(), 1, 1, n, window, {ones.as<float>()}, stream_);
      }
      backend_.append(cache, y.as<float>(), y.as<float>(), 1, stream_);
      backend_.attend_causal(cache, x.as<float>(), 1, 1, window, y.as<float>(), stream_);
      backend_.silu_mul(y.as<float>(), x.as<float>(), n, stream_);
      backend_.add(y.as<float>(), x.as<float>(), n, stream_);
      backend_.add(y.as<float>(), x.as<float>(), n, stream_);
      backend_.flag_nonfinite(x.as<float>(), n, 0, flag.as<std::int32_t>(), stream_);
    });
  }

  // Memory as the blocks of one layer, of which a turn reads one part of `parts`.
  struct Image {
    Image(std::span<const std::byte> memory, int parts_of_it, int d, offload::ColumnFormat format)
        : parts(static_cast<std::size_t>(parts_of_it)),
          layout({1, kv_heads, d, 4096, format}),
          sums(static_cast<std::size_t>(kv_heads * d)) {
      for (std::uint64_t at = 0; at + layout.block_bytes <= memory.size(); at += layout.block_bytes) {
        blocks.push_back(memory.data() + at);
      }
    }
    gpu::CacheView view(std::size_t first, std::size_t count) const {
      gpu::CacheView cache;
      cache.kv_heads = kv_heads;
      cache.head_dim = layout.head_dim;
      cache.store.layout = &layout;
      cache.store.blocks = std::span(blocks).subspan(first, count);
      cache.store.tokens = static_cast<std::int64_t>(count) * layout.block_tokens;
      cache.store.value_sum = sums;
      cache.tail.position = cache.store.tokens;
      return cache;
    }
    gpu::CacheView all() const { return view(0, blocks.size()); }
    gpu::CacheView slice(int turn) const {
      const std::size_t part = std::max<std::size_t>(1, blocks.size() / parts);
      return view(static_cast<std::size_t>(turn) % (blocks.size() / part) * part, part);
    }
    double keys_of_slice() const { return static_cast<double>(slice(0).store.tokens) * kv_heads; }

    std::size_t parts;
    offload::BlockLayout layout;
    std::vector<const std::byte*> blocks;
    std::vector<float> sums;
  };
  Image image_of(int d, offload::ColumnFormat format) const {
    return Image({memory_.data(), footprint_}, parts_, d, format);
  }

  // Noise would make scales negative. Levels are whatever it holds.
  void set_scales(const Image& image) {
    const auto count = static_cast<std::int64_t>(image.blocks.size()) * kv_heads;
    const offload::BlockLayout& layout = image.layout;
    backend_.threads().parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        auto* const scales = reinterpret_cast<f16*>(memory_.data() + static_cast<std::uint64_t>(i) * layout.head_bytes +
                                                    layout.scales_offset);
        std::fill_n(scales, static_cast<std::uint64_t>(layout.head_dim) * layout.scale_bytes / sizeof(f16),
                    to_f16(1.0f / 64));
      }
    });
  }

  double column_scan(int d, int group, offload::ColumnFormat format) {
    const Image image = image_of(d, format);
    if (format != offload::ColumnFormat::f16) set_scales(image);
    const int query_heads = kv_heads * group;
    const gpu::Buffer queries = floats(static_cast<std::size_t>(turns * query_heads * d));
    const gpu::Buffer selected = floats(static_cast<std::size_t>(query_heads * sparq_k));
    const gpu::Buffer alpha = floats(static_cast<std::size_t>(query_heads));
    const double bytes_per_key =
        rank * static_cast<double>(image.layout.column_bytes + image.layout.scale_bytes) / image.layout.block_tokens;
    return gigabytes(image.keys_of_slice() * bytes_per_key, median([&](int turn) {
                       const gpu::CacheView cache = image.slice(turn);
                       backend_.select_sparq(cache, queries.as<float>() + turn % turns * query_heads * d, query_heads,
                                             {rank, sparq_k, cache.store.tokens, index::GroupRule::softmax},
                                             selected.as<std::int32_t>(), alpha.as<float>(), stream_);
                     }));
  }

  double exact_scan(int d, int group, offload::ColumnFormat format) {
    const Image image = image_of(d, format);
    const int query_heads = kv_heads * group;
    const gpu::Buffer queries = floats(static_cast<std::size_t>(turns * query_heads * d));
    std::vector<float> query(static_cast<std::size_t>(query_heads * d));
    std::vector<std::int32_t> selected(static_cast<std::size_t>(query_heads * top_k));
    return gigabytes(image.keys_of_slice() * d * sizeof(f16), median([&](int turn) {
                       const gpu::CacheView cache = image.slice(turn);
                       backend_.to_host(query.data(), queries.as<float>() + turn % turns * query_heads * d,
                                        query.size() * sizeof(float), stream_);
                       index::search_exact(cache.store, query.data(), {query_heads, cache.store.tokens, top_k},
                                           backend_.threads(), {selected.data(), nullptr, nullptr, nullptr});
                     }));
  }

  // What reads the store.
  void measure_store(AttentionRates& rates) {
    const int d = rates.head_dim;
    const int group = rates.group;
    const Image image = image_of(d, offload::ColumnFormat::f16);
    const offload::BlockLayout& layout = image.layout;
    const int query_heads = kv_heads * group;
    const gpu::Buffer queries = floats(static_cast<std::size_t>(turns * query_heads * d));
    const gpu::Buffer out = floats(static_cast<std::size_t>(query_heads * d));
    const auto q = [&](int turn) { return queries.as<float>() + turn % turns * query_heads * d; };

    const std::int64_t everything = image.all().store.tokens;
    std::mt19937 random(3);
    std::vector<std::int32_t> lists(static_cast<std::size_t>(turns * kv_heads * list_rows));
    for (auto list = lists.begin(); list != lists.end(); list += list_rows) {
      std::generate(list, list + list_rows,
                    [&] { return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(everything)); });
      std::sort(list, list + list_rows);
    }
    const gpu::Buffer gathered = on_device(std::span<const std::int32_t>(lists));
    rates.column_scan = column_scan(d, group, offload::ColumnFormat::f16);
    rates.int8_scan = column_scan(d, group, offload::ColumnFormat::int8);
    rates.int4_scan = column_scan(d, group, offload::ColumnFormat::int4);
    rates.exact_scan = exact_scan(d, group, offload::ColumnFormat::f16);
    rates.row_scan = exact_scan(d, group, offload::ColumnFormat::int8);
    rates.row_gather = gigabytes(static_cast<double>(kv_heads) * list_rows * static_cast<double>(layout.row_bytes),
                                 median([&](int turn) {
                                   gpu::Attended what;
                                   what.positions = gathered.as<std::int32_t>() + turn % turns * kv_heads * list_rows;
                                   what.lists = kv_heads;
                                   what.k = list_rows;
                                   backend_.attend(image.all(), q(turn), query_heads, what, out.as<float>(), stream_);
                                 }));
    rates.dense =
        gigabytes(image.keys_of_slice() * static_cast<double>(layout.row_bytes),
                  median([&](int turn) { attend_all(image.slice(turn), q(turn), query_heads, nullptr, out); }));
  }

  // What reads the newest tokens, and a prompt.
  void measure_tail(AttentionRates& rates) {
    const int d = rates.head_dim;
    const int query_heads = kv_heads * rates.group;
    const Image image = image_of(d, offload::ColumnFormat::f16);
    const gpu::Buffer queries = floats(static_cast<std::size_t>(turns * query_heads * d));
    const gpu::Buffer out = floats(static_cast<std::size_t>(query_heads * d));
    const auto q = [&](int turn) { return queries.as<float>() + turn % turns * query_heads * d; };
    const gpu::Buffer selected = floats(static_cast<std::size_t>(query_heads * sparq_k));
    const gpu::Buffer alpha = floats(static_cast<std::size_t>(query_heads));
    const gpu::Buffer tail_rows = on_device(std::span<const f16>(
        reinterpret_cast<const f16*>(memory_.data()), static_cast<std::size_t>(kv_heads) * tail_tokens * 2 * d));
    gpu::CacheView tail = image.view(0, 0);
    tail.tail = {tail_rows.as<f16>(), tail_tokens, 0, tail_tokens, 0};
    const double tail_bytes = static_cast<double>(kv_heads) * tail_tokens * static_cast<double>(image.layout.row_bytes);
    rates.tail = gigabytes(tail_bytes, median([&](int turn) { attend_all(tail, q(turn), query_heads, nullptr, out); }));
    rates.sparq_tail =
        gigabytes(tail_bytes, median([&](int turn) {
                    backend_.select_sparq(tail, q(turn), query_heads, {rank, 0, 0, index::GroupRule::softmax},
                                          selected.as<std::int32_t>(), alpha.as<float>(), stream_);
                    attend_all(tail, q(turn), query_heads, alpha.as<float>(), out);
                  }));
    rates.causal = causal(image.slice(0), tail, d, query_heads);
  }

  void attend_all(const gpu::CacheView& cache, const float* q, int query_heads, const float* mean_share,
                  const gpu::Buffer& out) {
    gpu::Attended what;
    what.ranges[0] = {0, cache.tokens()};
    what.alpha = mean_share;
    backend_.attend(cache, q, query_heads, what, out.as<float>(), stream_);
  }

  // GFLOP/s of a chunk's attention to a store and to itself.
  double causal(gpu::CacheView cache, const gpu::CacheView& tail, int d, int query_heads) {
    constexpr std::int64_t most_keys = 8192;  // more take longer and teach nothing: a tile of keys is used at once
    cache.store.tokens = std::min(cache.store.tokens, most_keys);
    cache.tail = tail.tail;
    cache.tail.tokens = chunk_tokens;
    cache.tail.position = cache.store.tokens;
    const gpu::Buffer q = floats(static_cast<std::size_t>(chunk_tokens * query_heads * d));
    const gpu::Buffer out = floats(static_cast<std::size_t>(chunk_tokens * query_heads * d));
    const double keys = static_cast<double>(chunk_tokens) * static_cast<double>(cache.store.tokens) +
                        0.5 * chunk_tokens * (chunk_tokens + 1);
    return 4.0 * d * query_heads * keys / 1e9 / median([&](int) {
             backend_.attend_causal(cache, q.as<float>(), chunk_tokens, query_heads, {}, out.as<float>(), stream_);
           });
  }

  gpu::Backend& backend_;
  ProfileProgress progress_;
  Clock::time_point end_;  // when all should be done; what is left until then is shared out among those to come
  int left_ = measurements;
  offload::Extent memory_;
  std::uint64_t footprint_ = 0;  // of the memory: what an image covers
  int parts_ = 1;                // see Image
  std::vector<f16> noise_;
  gpu::Stream stream_ = backend_.stream();
};

}  // namespace

MachineProfile measure_profile(gpu::Backend& backend, offload::Arena& arena, const offload::Topology& topology,
                               const ProfileOptions& options, const ProfileProgress& progress) {
  return Measurement(backend, arena, options, progress).run(topology);
}

}  // namespace hayloft::runtime
