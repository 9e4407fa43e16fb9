#include "runtime/context/measure_columns.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "index/scan/exact_search.h"
#include "index/scan/search.h"
#include "index/scan/sparq_query.h"
#include "offload/store/planes.h"
#include "runtime/attention/host_tail.h"

namespace hayloft::runtime {
namespace {

constexpr std::int64_t sampled_span = 512;  // newest tokens, of which the queries are
constexpr int sampled_stride = 64;
constexpr std::int64_t most_sought = 128;  // k, and an eighth of the tokens at most

// The newest queries of each global layer, every 64th of the last 512 of a chunk; a further chunk takes their place.
class SampledQueries : public MethodState {
 public:
  SampledQueries(const AttentionShape& shape, gpu::Backend& backend)
      : shape_(shape), backend_(&backend), queries_(static_cast<std::size_t>(shape.layers)) {}

  std::unique_ptr<MethodState> fork() const override { return std::make_unique<SampledQueries>(*this); }
  void sync_with_cache(std::span<const gpu::CacheView>, const StateProgress&) override {}
  int wants_queries(int, int T) const override { return static_cast<int>(std::min<std::int64_t>(T, sampled_span)); }
  void see_queries(const gpu::CacheView& cache, const float* q, int n) override {
    const std::int64_t elements = std::int64_t{shape_.query_heads} * shape_.head_dim;
    std::vector<std::vector<float>>& layer = queries_[static_cast<std::size_t>(cache.layer)];
    layer.clear();
    for (int i = sampled_stride - 1; i < n; i += sampled_stride) {
      layer.push_back(copy_to_host(*backend_, q + i * elements, elements, backend_->stream()));
    }
  }
  std::uint64_t bytes() const override {
    std::uint64_t bytes = 0;
    for (const auto& layer : queries_) {
      for (const auto& query : layer) bytes += query.size() * sizeof(float);
    }
    return bytes;
  }

  const AttentionShape& shape() const { return shape_; }
  const std::vector<std::vector<float>>& layer(int layer) const { return queries_[static_cast<std::size_t>(layer)]; }

 private:
  AttentionShape shape_;
  gpu::Backend* backend_;
  std::vector<std::vector<std::vector<float>>> queries_;  // [layers][up to 8][Hq d]
};

class QuerySample : public Method {
 public:
  QuerySample() : Method(MethodOptions()) {}
  std::string state_key() const override { return "column choice"; }
  std::unique_ptr<MethodState> make_state(const AttentionShape& shape, gpu::Backend& backend) const override {
    return std::make_unique<SampledQueries>(shape, backend);
  }

 protected:
  Counters count_planned(const gpu::CacheView&, const SelectionPlan&) const override { return {}; }
};

// The settings that are measured, cheapest first: half of what the keys have at most.
std::vector<ColumnSetting> settings_for(int head_dim) {
  using offload::ColumnFormat;
  std::vector<ColumnSetting> settings;
  for (const int bits : {32, 64, 128, 256, 512}) {
    if (bits <= head_dim * offload::plane_count / 2) settings.push_back({ColumnFormat::planes, bits});
  }
  for (const ColumnFormat format : {ColumnFormat::int4, ColumnFormat::int8, ColumnFormat::f16}) {
    for (const int components : {8, 16, 32, 64}) {
      if (components <= head_dim / 2) settings.push_back({format, components});
    }
  }
  std::ranges::stable_sort(settings, {}, &ColumnSetting::bits);
  return settings;
}

// The first `tokens` rows of one layer, head after head: f16 [Hkv][tokens][2 d].
std::vector<f16> rows_of(const gpu::CacheView& view, std::int64_t tokens, gpu::Backend& backend) {
  const std::int64_t width = 2 * std::int64_t{view.head_dim};
  std::vector<f16> rows(static_cast<std::size_t>(view.kv_heads * tokens * width));
  const HostTail tail(backend, view, backend.stream());
  const std::int64_t block = view.store.layout->block_tokens;
  std::vector<f16> space(static_cast<std::size_t>(block * width));
  for (int head = 0; head < view.kv_heads; ++head) {
    f16* const out = rows.data() + head * tokens * width;
    for (std::int64_t at = 0; at < std::min(tokens, view.store.tokens); at += block) {
      const std::int64_t n = std::min({block, tokens - at, view.store.tokens - at});
      std::copy_n(view.store.rows(head, at, n, space.data()), n * width, out + at * width);
    }
    const offload::LayerView newest = tail.rows();
    for (std::int64_t at = std::max<std::int64_t>(0, tail.first()); at < tokens; ++at) {
      std::copy_n(newest.row(head, at - tail.first(), space.data()), width, out + at * width);
    }
  }
  return rows;
}

// One layer's keys in columns of one format, as one block.
class TrialColumns {
 public:
  static offload::StoreShape shape(int kv_heads, int head_dim, std::int64_t tokens, offload::ColumnFormat format) {
    const auto block = std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(16, tokens)));
    return {1, kv_heads, head_dim, static_cast<int>(block), format};
  }

  TrialColumns(const std::vector<f16>& rows, const gpu::CacheView& like, std::int64_t tokens,
               offload::ColumnFormat format, const offload::Threads& threads)
      : layout_(shape(like.kv_heads, like.head_dim, tokens, format)),
        memory_(layout_.block_bytes + alignment),
        spread_(static_cast<std::size_t>(like.kv_heads * like.head_dim)) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    std::byte* const block = memory_.data() + (alignment - address % alignment) % alignment;
    block_ = block;
    const std::int64_t width = 2 * std::int64_t{like.head_dim};
    threads.parallel_for(like.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t head = begin; head < end; ++head) {
        offload::fill_block(layout_, block, static_cast<int>(head), rows.data() + head * tokens * width, width,
                            static_cast<int>(tokens));
      }
    });
    view_ = {&layout_, {&block_, 1}, tokens, {}};
    if (offload::traits_of(format).planes == 1) return;
    std::vector<double> spread(spread_.size());
    offload::add_spread(layout_, block, spread.data());
    std::ranges::transform(spread, spread_.begin(), [](double sum) { return static_cast<float>(sum); });
    view_.spread = spread_;
  }
  TrialColumns(const TrialColumns&) = delete;
  TrialColumns& operator=(const TrialColumns&) = delete;

  const offload::LayerView& view() const { return view_; }

 private:
  static constexpr std::size_t alignment = 64;
  offload::BlockLayout layout_;
  std::vector<std::byte> memory_;
  const std::byte* block_ = nullptr;
  std::vector<float> spread_;
  offload::LayerView view_;
};

// The top k of a search, [Hkv][k] ascending.
std::vector<std::int32_t> top_of(const offload::LayerView& view, index::ColumnSearch search, int query_heads, int k,
                                 const offload::Threads& threads) {
  search.query_heads = query_heads;
  search.limit = view.tokens;
  search.k = k;
  std::vector<std::int32_t> positions(static_cast<std::size_t>(view.layout->kv_heads * k));
  std::vector<float> max(static_cast<std::size_t>(query_heads), -std::numeric_limits<float>::infinity());
  std::vector<float> sum(max.size(), 0.0f);
  index::search_columns(view, search, threads, {positions.data(), max.data(), sum.data(), nullptr});
  return positions;
}

std::vector<std::int32_t> exact_top(const offload::LayerView& view, const std::vector<float>& q, int query_heads, int k,
                                    const offload::Threads& threads) {
  const int d = view.layout->head_dim;
  std::vector<float> weights = q;
  for (float& weight : weights) weight *= index::exact_scale(d);
  const std::vector<std::int32_t> components = index::every_component(view.layout->kv_heads, d);
  index::ColumnSearch search;
  search.rank = d;
  search.components = components.data();
  search.weights = weights.data();
  search.keys = index::KeySource::columns;
  return top_of(view, search, query_heads, k, threads);
}

std::vector<std::int32_t> setting_top(const offload::LayerView& view, const std::vector<float>& q, int query_heads,
                                      int k, const ColumnSetting& setting, const offload::Threads& threads) {
  index::RankingOptions by;
  (offload::traits_of(setting.columns).planes > 1 ? by.bits : by.rank) = setting.size;
  const index::SparqQuery query =
      index::sparq_query(q.data(), query_heads, view.layout->kv_heads, view.layout->head_dim, view, by);
  index::ColumnSearch search;
  search.rank = query.rank;
  search.components = query.components.data();
  search.weights = query.weights.data();
  search.planes = query.planes.empty() ? nullptr : query.planes.data();
  return top_of(view, search, query_heads, k, threads);
}

// How many positions of two lists per head, ascending, are in both.
std::int64_t common(const std::vector<std::int32_t>& one, const std::vector<std::int32_t>& other, int k) {
  std::int64_t count = 0;
  for (auto a = one.begin(), b = other.begin(); a != one.end(); a += k, b += k) {
    std::vector<std::int32_t> both;
    std::set_intersection(a, a + k, b, b + k, std::back_inserter(both));
    count += static_cast<std::int64_t>(both.size());
  }
  return count;
}

}  // namespace

SharedMethod make_query_sample() {
  return std::make_shared<QuerySample>();
}

ColumnRecall measure_columns(const Session& session, const Method& sample, gpu::Backend& backend) {
  const auto* const sampled = dynamic_cast<const SampledQueries*>(session.state(sample));
  if (!sampled) throw std::logic_error("measure_columns: the sample of queries is not attached");
  const int query_heads = sampled->shape().query_heads, head_dim = sampled->shape().head_dim;
  const std::vector<ColumnSetting> settings = settings_for(head_dim);
  ColumnRecall recall;
  recall.tokens = session.tokens() - sampled_span;
  if (recall.tokens < 1) throw std::logic_error("measure_columns: too few tokens");
  recall.k = static_cast<int>(std::clamp<std::int64_t>(recall.tokens / 8, 1, most_sought));
  for (const ColumnSetting& setting : settings) recall.settings.push_back({setting, {}});
  const offload::Threads& threads = backend.threads();
  for (const gpu::CacheView& view : session.cache().global_views()) {
    const std::vector<std::vector<float>>& queries = sampled->layer(view.layer);
    recall.queries = static_cast<int>(queries.size());
    const std::vector<f16> rows = rows_of(view, recall.tokens, backend);
    std::vector<std::vector<std::int32_t>> truth;
    for (const auto format : {offload::ColumnFormat::f16, offload::ColumnFormat::int8, offload::ColumnFormat::int4,
                              offload::ColumnFormat::planes}) {
      const TrialColumns columns(rows, view, recall.tokens, format, threads);
      if (format == offload::ColumnFormat::f16) {
        for (const auto& q : queries) truth.push_back(exact_top(columns.view(), q, query_heads, recall.k, threads));
      }
      for (MeasuredSetting& each : recall.settings) {
        if (each.setting.columns != format) continue;
        std::int64_t found = 0, sought = 0;
        for (std::size_t i = 0; i < queries.size(); ++i) {
          found +=
              common(truth[i], setting_top(columns.view(), queries[i], query_heads, recall.k, each.setting, threads),
                     recall.k);
          sought += static_cast<std::int64_t>(truth[i].size());
        }
        each.recall.push_back(sought == 0 ? 0 : static_cast<float>(found) / static_cast<float>(sought));
      }
    }
  }
  return recall;
}

std::uint64_t measuring_bytes(const ModelConfig& config, std::int64_t tokens) {
  const std::int64_t measured = tokens - sampled_span;
  if (measured < 1) return 0;
  const offload::BlockLayout trial(
      TrialColumns::shape(config.kv_heads, config.head_dim, measured, offload::ColumnFormat::f16));
  return static_cast<std::uint64_t>(measured * config.kv_heads * 2 * config.head_dim) * sizeof(f16) + trial.block_bytes;
}

std::optional<ColumnSetting> choose_columns(const ColumnRecall& recall) {
  constexpr double enough = 0.75;                        // on average over the layers
  for (const MeasuredSetting& each : recall.settings) {  // cheapest first
    if (each.recall.empty()) continue;
    if (each.mean() >= enough && *std::ranges::min_element(each.recall) >= ColumnRecall::blind_below) {
      return each.setting;
    }
  }
  return std::nullopt;
}

}  // namespace hayloft::runtime
