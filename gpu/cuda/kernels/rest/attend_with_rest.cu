#include <algorithm>
#include <vector>

#include "gpu/cuda/api/fetch.h"
#include "gpu/cuda/api/stage_clock.h"
#include "gpu/cuda/cuda_backend.h"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/rest/lines.cuh"
#include "gpu/cuda/kernels/rest/values.cuh"
#include "gpu/cuda/kernels/select/components.h"
#include "gpu/cuda/kernels/select/radix_select.h"
#include "gpu/cuda/memory/store_tables.h"
#include "gpu/cuda/memory/upload.h"
#include "index/scan/exact_search.h"

// A decode step whose rest is estimated by the scores that its selection has kept. Beside attention to what was
// selected it reads the scores once, writes Hkv keys a position and reads those of the chunks that matter, as the
// selection does; over the link come V of the positions drawn and nothing else.
namespace hayloft::gpu::cuda {
namespace {

constexpr std::int64_t kSpreadTokens = 512;  // the newest of the tail, over which V is taken to spread as it does

class RestEstimator {
 public:
  RestEstimator(const Context& context, const CacheView& cache, const float* q, int query_heads, const RestStep& rest,
                cudaStream_t stream)
      : context_(context),
        cache_(cache),
        q_(q),
        query_heads_(query_heads),
        group_(query_heads / cache.kv_heads),
        rest_(rest),
        stream_(stream),
        lines_(context, query_heads, stream) {}

  void run(RestOutput to, const float* mean) {
    const Stage stage(context_.stages, "rest", stream_);
    RestScores in;
    in.scores = rest_.scores;
    in.stride = scores_stride(cache_.store.tokens);
    in.limit = rest_.select.limit;
    in.group = group_;
    in.lines = lines_;
    in.max = to.max;
    in.sum = to.sum;
    in.draws = rest_.draws;
    in.key = rest_.key;
    fit(in);
    const auto heads = static_cast<unsigned>(query_heads_);
    launch("forget_attended", forget_attended, {heads, kRestThreads}, stream_, in, rest_.what.positions, rest_.what.k);
    if (rest_.draws) {
      draw(in, to);
    } else {
      weigh_mean(in, to, mean);
    }
  }

 private:
  // Components and weights once more: they are quickly chosen, and the same.
  void fit(const RestScores& in) {
    const SparqSelect& select = rest_.select;
    const int rank = select.components(cache_.head_dim);
    const Scratch<std::int32_t> chosen(context_, 2 * std::int64_t{cache_.kv_heads} * rank, stream_);
    const Scratch<float> weights(context_, std::int64_t{query_heads_} * rank, stream_);
    std::int32_t* const planes = select.bits > 0 ? chosen + cache_.kv_heads * rank : nullptr;
    ComponentChoice choice;
    choice.rank = rank;
    choice.bits = select.bits;
    choice.temperature = select.temperature;
    if (select.needs_planes()) choice.spread = context_.tables.find(cache_.store, stream_).spread;
    choose_components(q_, cache_.kv_heads, group_, cache_.head_dim, choice, {}, chosen, planes, weights, stream_);

    LineFit fit;
    fit.keys = rest_.line_keys;
    fit.positions = rest_.line_positions;
    fit.samples = rest_.line_samples;
    fit.q = q_;
    fit.scale = index::exact_scale(cache_.head_dim);
    fit.components = chosen;
    fit.weights = weights;
    fit.rank = rank;
    fit.group = group_;
    fit.head_dim = cache_.head_dim;
    fit.scores = planes != nullptr ? in.scores : nullptr;
    fit.stride = in.stride;
    launch("fit_lines", fit_lines, {static_cast<unsigned>(cache_.kv_heads), kRestThreads}, stream_, fit, lines_);
  }

  void draw(const RestScores& in, const RestOutput& to) {
    const int lists = cache_.kv_heads;
    const auto found = static_cast<int>(std::min<std::int64_t>(std::int64_t{rest_.drawn} + 1, in.limit));
    const std::int64_t chunks = (in.limit + kChunkKeys - 1) / kChunkKeys;
    const Scratch<std::int32_t> positions(context_, std::int64_t{lists} * found, stream_);
    const Scratch<float> chances(context_, std::int64_t{lists} * found, stream_);
    const Scratch<float> weights(context_, std::int64_t{query_heads_} * found, stream_);
    {
      const Scratch<unsigned> keys(context_, lists * in.stride, stream_);
      const Scratch<unsigned> chunk_max(context_, lists * chunks, stream_);
      RadixSelect passes(context_, lists, stream_);
      passes.clear();
      const unsigned shared = 2 * static_cast<unsigned>(group_) * sizeof(float);
      launch("rank_masses", rank_masses, {passes.pass_grid(lists, in.limit), kRestThreads, shared}, stream_, in, keys,
             chunk_max, chunks, passes.histogram(0));
      passes.select({keys, chunk_max, in.stride, chunks, in.limit}, lists, found, positions);
      const unsigned factors = 3 * static_cast<unsigned>(group_) * sizeof(float);
      launch("finish_draw", finish_draw, {static_cast<unsigned>(lists), kRestThreads, factors}, stream_, in, keys,
             positions, found, rest_.drawn, chances, weights);
    }
    const Scratch<f16> values(context_, std::int64_t{lists} * found * cache_.head_dim, stream_);
    if (context_.tables.pinned(cache_.store)) {
      const dim3 grid(blocks_for(found, kRestThreads / kWarp), static_cast<unsigned>(lists));
      launch("fetch_values", fetch_values, {grid, kRestThreads}, stream_, context_.tables.find(cache_.store, stream_),
             positions, chances, found, values);
    } else {
      gather_values(positions, chances, found, values);
    }
    with_most_components(cache_.head_dim, [&](auto most) {
      launch("add_drawn_values", add_drawn_values<decltype(most)::value>,
             {static_cast<unsigned>(query_heads_), kRestThreads}, stream_, to, lines_, chances, weights, values, found);
    });
  }

  // The host gathers them, where kernels do not reach all of the store.
  void gather_values(const std::int32_t* positions, const float* chances, int found, f16* values) {
    const std::int64_t count = std::int64_t{cache_.kv_heads} * found;
    const std::vector<std::int32_t> at = fetch(positions, count, stream_);
    const std::vector<float> chance = fetch(chances, count, stream_);
    const int d = cache_.head_dim;
    std::vector<f16> host(static_cast<std::size_t>(count * d));
    context_.threads.parallel_for(count, 64, [&](std::int64_t begin, std::int64_t end) {
      std::vector<f16> space(static_cast<std::size_t>(2 * d));
      for (std::int64_t i = begin; i < end; ++i) {
        if (chance[static_cast<std::size_t>(i)] == 0) continue;
        const f16* const row =
            cache_.store.row(static_cast<int>(i / found), at[static_cast<std::size_t>(i)], space.data());
        std::copy_n(row + d, d, host.begin() + static_cast<std::ptrdiff_t>(i * d));
      }
    });
    upload(values, host.data(), host.size() * sizeof(f16), stream_);
  }

  void weigh_mean(const RestScores& in, const RestOutput& to, const float* mean) {
    const Scratch<double> sums(context_, 2 * std::int64_t{query_heads_} * kSumBlocks, stream_);
    const Scratch<double> spread(context_, cache_.kv_heads, stream_);
    double* const squares = sums + std::int64_t{query_heads_} * kSumBlocks;
    const auto heads = static_cast<unsigned>(query_heads_);
    const unsigned parts = std::min<unsigned>(kSumBlocks, blocks_for(in.limit, 4 * kRestThreads));
    launch("sum_masses", sum_masses, {dim3(parts, heads), kRestThreads}, stream_, in, sums, squares);
    const std::int64_t newest = std::min<std::int64_t>(kSpreadTokens, cache_.tail.tokens);
    with_most_components(cache_.head_dim, [&](auto most) {
      launch("spread_values", spread_values<decltype(most)::value>,
             {static_cast<unsigned>(cache_.kv_heads), kRestThreads}, stream_, cache_.tail, newest, cache_.head_dim,
             group_, mean, spread);
      launch("add_mean_value", add_mean_value<decltype(most)::value>, {heads, kRestThreads}, stream_, to, lines_, sums,
             squares, static_cast<int>(parts), spread, mean);
    });
  }

  const Context& context_;
  const CacheView& cache_;
  const float* q_;
  int query_heads_;
  int group_;
  const RestStep& rest_;
  cudaStream_t stream_;
  Scratch<index::LogitLine> lines_;
};

}  // namespace

void CudaBackend::attend_with_rest(const CacheView& cache, const float* q, int query_heads, const RestStep& rest,
                                   float* out, Stream queue) {
  const cudaStream_t stream = native(queue);
  const std::int64_t elements = std::int64_t{query_heads} * cache.head_dim;
  const Scratch<float> exact(context_, elements + 2 * query_heads, stream);
  const Scratch<float> mean(context_, rest.draws ? 1 : elements + query_heads, stream);
  Attended what = rest.what;
  what.partial = {exact + elements, exact + elements + query_heads};
  attend(cache, q, query_heads, what, exact, queue);
  if (!rest.draws) {
    Attended nothing;
    float* const zeros = mean + elements;
    HAYLOFT_CUDA(cudaMemsetAsync(zeros, 0, static_cast<std::uint64_t>(query_heads) * sizeof(float), in_order(stream)));
    nothing.alpha = zeros;
    attend(cache, q, query_heads, nothing, mean, queue);
  }
  RestOutput to;
  to.weighted = exact;
  to.max = what.partial.max;
  to.sum = what.partial.sum;
  to.out = out;
  to.error = rest.error;
  to.share = rest.share;
  to.head_dim = cache.head_dim;
  to.group = query_heads / cache.kv_heads;
  RestEstimator(context_, cache, q, query_heads, rest, stream).run(to, mean);
}

}  // namespace hayloft::gpu::cuda
