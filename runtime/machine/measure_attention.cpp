#include "runtime/machine/measure_attention.h"

#include <algorithm>
#include <random>

#include "index/ann/ann.h"
#include "index/scan/exact_search.h"

namespace hayloft::runtime::plan {
namespace {

constexpr int kv_heads = NoiseStore::kv_heads;
constexpr int rank = 16;
constexpr int plane_bits = 32;
constexpr int list_rows = 512;     // of a gather, per list
constexpr int few = 32;            // positions of a list, where reading is to be measured
constexpr int many = 512;          // and where selecting is
constexpr int tail_tokens = 4096;  // what a tail holds on average, at the default block size
constexpr int turns = 16;          // different queries and places that a measurement cycles through
constexpr int prompt_chunk = 256;  // of a prompt, behind a slice of the footprint

// The queries and results of one measurement, on the device.
class Workplace {
 public:
  Workplace(TurnTimer& timer, int head_dim, int group)
      : timer_(timer),
        d_(head_dim),
        query_heads_(kv_heads * group),
        queries_(floats(static_cast<std::size_t>(turns * query_heads_ * d_))),
        out_(floats(static_cast<std::size_t>(query_heads_ * d_))),
        selected_(floats(static_cast<std::size_t>(query_heads_ * many))),
        alpha_(floats(static_cast<std::size_t>(query_heads_))) {}

  int query_heads() const { return query_heads_; }
  const float* q(int turn) const { return queries_.as<float>() + turn % turns * query_heads_ * d_; }
  gpu::Buffer floats(std::size_t count) const {
    return timer_.on_device(std::span<const float>(normal_noise(count, 2)));
  }

  // Seconds of SparQ's step 1 and its selection of k positions per head.
  double sparq_seconds(const NoiseStore& store, int k) {
    return timer_.median([&](int turn) {
      const gpu::CacheView cache = store.slice(turn);
      select_sparq(cache, turn, k, cache.store.tokens);
    });
  }

  // Seconds of the exact search of k positions per query head, near the memory.
  double exact_seconds(const NoiseStore& store, int k) {
    std::vector<float> query(static_cast<std::size_t>(query_heads_ * d_));
    std::vector<std::int32_t> found(static_cast<std::size_t>(query_heads_ * k));
    return timer_.median([&](int turn) {
      const gpu::CacheView cache = store.slice(turn);
      timer_.backend().to_host(query.data(), q(turn), query.size() * sizeof(float), timer_.stream());
      index::search_exact(cache.store, query.data(), {query_heads_, cache.store.tokens, k}, timer_.backend().threads(),
                          {found.data(), nullptr, nullptr, nullptr});
    });
  }

  void select_sparq(const gpu::CacheView& cache, int turn, int k, std::int64_t limit) {
    gpu::SparqSelect select{{.rank = rank}, k, limit};
    if (in_planes(cache.store.layout->columns)) select.bits = plane_bits;
    timer_.backend().select_sparq(cache, q(turn), query_heads_, select, selected_.as<std::int32_t>(),
                                  alpha_.as<float>(), timer_.stream());
  }

  // mean_value: with SparQ's share for the mean value, which select_sparq() left.
  void attend_all(const gpu::CacheView& cache, int turn, bool mean_value) {
    gpu::Attended what;
    what.ranges[0] = {0, cache.tokens()};
    what.alpha = mean_value ? alpha_.as<float>() : nullptr;
    attend(cache, turn, what);
  }

  void attend(const gpu::CacheView& cache, int turn, const gpu::Attended& what) {
    timer_.backend().attend(cache, q(turn), query_heads_, what, out_.as<float>(), timer_.stream());
  }

 private:
  TurnTimer& timer_;
  int d_;
  int query_heads_;
  gpu::Buffer queries_;  // [turns][Hq][d]
  gpu::Buffer out_;
  gpu::Buffer selected_;
  gpu::Buffer alpha_;
};

NoiseStore store_of(const TurnTimer& timer, const NoiseMemory& memory, std::uint64_t footprint, int parts, int d,
                    offload::ColumnFormat format) {
  return NoiseStore(memory, footprint, parts, d, format, timer.backend().threads());
}

double column_scan(Workplace& work, const NoiseStore& store) {
  const offload::BlockLayout& layout = store.layout();
  // As count_columns() and count_planes() have it.
  const bool planes = in_planes(layout.columns);
  const double columns = planes ? static_cast<double>(plane_bits) / traits_of(layout.columns).planes : rank;
  const int ranges = planes ? index::plane_rank(layout.head_dim, plane_bits) : rank;
  const double bytes_per_key =
      (columns * static_cast<double>(layout.column_bytes) + ranges * static_cast<double>(layout.scale_bytes)) /
      layout.block_tokens;
  return gigabytes_per_second(store.keys_of_slice() * bytes_per_key, work.sparq_seconds(store, few));
}

double exact_scan(Workplace& work, const NoiseStore& store) {
  return gigabytes_per_second(store.keys_of_slice() * store.layout().head_dim * sizeof(f16),
                              work.exact_seconds(store, few));
}

double row_gather(TurnTimer& timer, Workplace& work, const NoiseStore& store) {
  const gpu::CacheView everything = store.all();
  std::mt19937 random(3);
  std::vector<std::int32_t> lists(static_cast<std::size_t>(turns * kv_heads * list_rows));
  for (auto list = lists.begin(); list != lists.end(); list += list_rows) {
    std::generate(list, list + list_rows, [&] {
      return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(everything.store.tokens));
    });
    std::sort(list, list + list_rows);
  }
  const gpu::Buffer gathered = timer.on_device(std::span<const std::int32_t>(lists));
  return gigabytes_per_second(static_cast<double>(kv_heads) * list_rows * static_cast<double>(store.layout().row_bytes),
                              timer.median([&](int turn) {
                                gpu::Attended what;
                                what.positions = gathered.as<std::int32_t>() + turn % turns * kv_heads * list_rows;
                                what.lists = kv_heads;
                                what.k = list_rows;
                                work.attend(everything, turn, what);
                              }));
}

// GFLOP/s of a chunk's attention to a store and to itself.
double causal(TurnTimer& timer, const Workplace& work, gpu::CacheView cache, const gpu::CacheView& tail) {
  constexpr std::int64_t most_keys = 8192;  // more take longer and teach nothing: a tile of keys is used at once
  cache.store.tokens = std::min(cache.store.tokens, most_keys);
  cache.tail = tail.tail;
  cache.tail.tokens = prompt_chunk;
  cache.tail.position = cache.store.tokens;
  const int heads = work.query_heads();
  const gpu::Buffer q = work.floats(static_cast<std::size_t>(prompt_chunk * heads * cache.head_dim));
  const gpu::Buffer out = work.floats(static_cast<std::size_t>(prompt_chunk * heads * cache.head_dim));
  const double keys = static_cast<double>(prompt_chunk) * static_cast<double>(cache.store.tokens) +
                      0.5 * prompt_chunk * (prompt_chunk + 1);
  return 4.0 * cache.head_dim * heads * keys / 1e9 / timer.median([&](int) {
    timer.backend().attend_causal(cache, q.as<float>(), prompt_chunk, heads, {}, out.as<float>(), timer.stream());
  });
}

}  // namespace

void measure_store(TurnTimer& timer, const NoiseMemory& memory, std::uint64_t footprint, int parts,
                   AttentionRates& rates) {
  Workplace work(timer, rates.head_dim, rates.group);
  const auto store = [&](offload::ColumnFormat format) {
    return store_of(timer, memory, footprint, parts, rates.head_dim, format);
  };
  const NoiseStore f16_store = store(offload::ColumnFormat::f16);
  for (const offload::ColumnTraits& traits : offload::column_traits) {
    timer.measuring(traits.rate);
    rates.sparq_scan(traits.format) = column_scan(work, store(traits.format));
  }
  timer.measuring("exact_scan_GBps");
  rates.exact_scan = exact_scan(work, f16_store);
  timer.measuring("row_scan_GBps");
  rates.row_scan = exact_scan(work, store(offload::ColumnFormat::int8));
  timer.measuring("row_gather_GBps");
  rates.row_gather = row_gather(timer, work, f16_store);
  timer.measuring("dense_GBps");
  rates.dense =
      gigabytes_per_second(f16_store.keys_of_slice() * static_cast<double>(f16_store.layout().row_bytes),
                           timer.median([&](int turn) { work.attend_all(f16_store.slice(turn), turn, false); }));
}

void measure_selection(TurnTimer& timer, const NoiseMemory& memory, std::uint64_t footprint, int parts,
                       AttentionRates& rates) {
  Workplace work(timer, rates.head_dim, rates.group);
  const NoiseStore store = store_of(timer, memory, footprint, parts, rates.head_dim, offload::ColumnFormat::f16);
  const double keys = store.keys_of_slice();
  constexpr double least = 1e-3;  // microseconds: the two measurements may have met different neighbours
  const auto per_position = [&](double seconds, double bytes, double rate, int lists) {
    return std::max(least, 1e6 * (seconds - bytes / rate / 1e9) / (lists * (many - few)));
  };
  rates.column_select_us = per_position(work.sparq_seconds(store, many), keys * rank * sizeof(f16),
                                        rates.sparq_scan(offload::ColumnFormat::f16), kv_heads);
  rates.exact_select_us = per_position(work.exact_seconds(store, many), keys * rates.head_dim * sizeof(f16),
                                       rates.exact_scan, work.query_heads());
}

void measure_tail(TurnTimer& timer, const NoiseMemory& memory, std::uint64_t footprint, int parts,
                  AttentionRates& rates) {
  const int d = rates.head_dim;
  Workplace work(timer, d, rates.group);
  const NoiseStore store = store_of(timer, memory, footprint, parts, d, offload::ColumnFormat::f16);
  // Several, that take turns, as a step reads those of all layers: where stores are large none is in a cache when its
  // turn comes. Together they are as large as a sixteenth of the footprint.
  const std::size_t numbers = static_cast<std::size_t>(kv_heads) * tail_tokens * 2 * d;
  const std::size_t tails = std::clamp<std::size_t>(footprint / 16 / sizeof(f16) / numbers, 1, turns);
  const gpu::Buffer rows =
      timer.on_device(std::span<const f16>(reinterpret_cast<const f16*>(memory.data()), tails * numbers));
  gpu::CacheView tail = store.view(0, 0);
  const auto at = [&](int turn) {
    tail.tail = {rows.as<f16>() + static_cast<std::size_t>(turn) % tails * numbers, tail_tokens, 0, tail_tokens, 0};
    return tail;
  };
  const double bytes = static_cast<double>(kv_heads) * tail_tokens * static_cast<double>(store.layout().row_bytes);
  timer.measuring("tail_GBps");
  rates.tail = gigabytes_per_second(bytes, timer.median([&](int turn) { work.attend_all(at(turn), turn, false); }));
  timer.measuring("sparq_tail_GBps");
  rates.sparq_tail = gigabytes_per_second(bytes, timer.median([&](int turn) {
    const gpu::CacheView& cache = at(turn);
    work.select_sparq(cache, turn, 0, 0);
    work.attend_all(cache, turn, true);
  }));
  timer.measuring("causal_GFLOPps");
  rates.causal = causal(timer, work, store.slice(0), at(0));
}

double measure_ann_search(TurnTimer& timer, const NoiseMemory& memory, int head_dim) {
  constexpr const char* factory = "IVF512,Flat";  // as many lists as train in a second
  constexpr std::size_t most_blocks = 16;         // of 4,096 tokens
  constexpr int group = 1;
  const NoiseStore store = store_of(timer, memory, memory.bytes(), 1, head_dim, offload::ColumnFormat::f16);
  const gpu::CacheView cache = store.view(0, std::min(most_blocks, store.blocks()));
  const offload::Threads& threads = timer.backend().threads();
  index::Ann ann({factory, true}, 1, kv_heads, head_dim);
  ann.sync_with_store({&cache.store, 1}, threads);
  const std::vector<float> queries = normal_noise(static_cast<std::size_t>(turns * kv_heads * group * head_dim), 2);
  std::vector<std::int32_t> found(static_cast<std::size_t>(kv_heads * group * few));
  index::AnnCost cost;
  int searches = 0;
  timer.measuring("ann_search_GBps");
  const double seconds = timer.median([&](int turn) {
    const float* q = queries.data() + turn % turns * kv_heads * group * head_dim;
    cost += ann.search(0, cache.store, q, {kv_heads * group, cache.store.tokens, few}, threads, found.data());
    ++searches;
  });
  return gigabytes_per_second(static_cast<double>(cost.index_bytes + cost.row_bytes) / searches, seconds);
}

}  // namespace hayloft::runtime::plan
