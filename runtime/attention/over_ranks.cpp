#include "runtime/attention/over_ranks.h"

#include <algorithm>

#include "offload/error.h"
#include "runtime/attention/selection.h"
#include "runtime/cluster/merge.h"
#include "runtime/cluster/part.h"

namespace hayloft::runtime {
namespace {

constexpr std::uint64_t most_gathered = std::uint64_t{64} << 20;  // bytes of all ranks that come together in a prefill

// Own positions of those that are this rank's, list by list; `sizes` says how many each list has.
std::vector<std::int32_t> own_lists(const cluster::Part& part, const SelectionPlan& plan,
                                    const std::vector<std::int32_t>& positions, std::vector<std::int32_t>& sizes) {
  std::vector<std::int32_t> own(positions.size());
  for (int list = 0; list < plan.lists; ++list) {
    const auto first = static_cast<std::size_t>(list) * static_cast<std::size_t>(plan.k);
    std::int32_t size = 0;
    for (int i = 0; i < plan.k; ++i) {
      const std::int32_t position = positions[first + static_cast<std::size_t>(i)];
      if (!part.holds(position)) continue;
      own[first + static_cast<std::size_t>(size++)] = static_cast<std::int32_t>(part.own(position));
    }
    sizes.push_back(size);
  }
  return own;
}

// y = alpha * y + (1 - alpha) * mean of V over every token. The mean is what a backend makes of attention to nothing at
// alpha 0, over a cache with the value sums of all ranks: no row of it is read.
void blend_mean_value(const Step& step, const float* alpha, std::vector<float>& y) {
  gpu::CacheView sums = step.cache;
  if (!sums.shard.alone()) sums.store.value_sum = sums.value_sum;
  sums.store.tokens = step.cache.stored_tokens();
  const auto heads = static_cast<std::size_t>(step.query_heads);
  const gpu::Buffer none = step.backend.allocate(heads * sizeof(float), step.stream);
  const gpu::Buffer mean = step.backend.allocate(y.size() * sizeof(float), step.stream);
  step.backend.to_device(none.as<void>(), std::vector<float>(heads).data(), heads * sizeof(float), step.stream);
  gpu::Attended nothing;
  nothing.alpha = none.as<float>();
  step.backend.attend(sums, mean.as<float>(), step.query_heads, nothing, mean.as<float>(), step.stream);
  const std::vector<float> v = copy_to_host(step.backend, mean.as<float>(), step.query_elements(), step.stream);
  const auto d = static_cast<std::size_t>(step.head_dim());
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = alpha[i / d] * y[i] + (1 - alpha[i / d]) * v[i];
}

void record(const Step& step, const SelectionPlan& plan, const std::vector<std::int32_t>& positions) {
  StepTrace& trace = *step.trace;
  const gpu::Attended what = plan.attended();
  trace.lists = what.lists;
  trace.k = what.k;
  trace.ranges[0] = what.ranges[0];
  trace.ranges[1] = what.ranges[1];
  trace.positions = positions;
  trace.alpha.clear();
}

}  // namespace

void require_over_ranks(const MethodOptions& method) {
  if (!is_registered_method(method.name)) return;
  fail("--attn {}: is a method of one's own, which does not attend over ranks; hayloft's do, as topk",
       method_label(method));
}

void require_over_ranks(const MethodOptions& method, const CacheOptions& cache) {
  require_over_ranks(method);
  if (method.name == "pages" && cache.block_tokens > 0 && cache.block_tokens < method.page) {
    fail("--attn {}: over ranks a page lies in a block, and --block-tokens is {}; raise it to {}", method_label(method),
         cache.block_tokens, method.page);
  }
  if (method.name == "flexgen" && cache.columns != offload::ColumnFormat::f16) {
    fail("--attn flexgen scores exactly, and {} columns are not exact; use --columns f16",
         offload::name(cache.columns));
  }
}

void require_over_ranks(const gpu::Backend& backend) {
  if (backend.attends_in_parts()) return;
  fail("--device {}: does not attend over ranks yet; use --device cpu", backend.name());
}

void attend_over_ranks(const Step& step, const SelectionPlan& plan, const float* q,
                       const std::vector<std::int32_t>& positions, const float* alpha, float* out) {
  const cluster::Part part(step.cache);
  std::vector<std::int32_t> sizes;
  const std::vector<std::int32_t> own = own_lists(part, plan, positions, sizes);
  gpu::Attended what = plan.attended();
  for (gpu::Attended::Range& range : what.ranges) range = part.own(range);
  what.positions = own.data();
  what.sizes = sizes.data();
  cluster::AttentionParts mine(step.query_heads, step.head_dim());
  what.partial = {mine.max(), mine.sum()};
  step.backend.attend(part.cache(), q, step.query_heads, what, mine.weighted(), step.stream);
  std::vector<float> y(static_cast<std::size_t>(step.query_elements()));
  cluster::merge_attention(*step.ranks, mine, step.backend.threads(), y.data());
  if (alpha != nullptr) blend_mean_value(step, alpha, y);
  step.backend.to_device(out, y.data(), y.size() * sizeof(float), step.stream);
  if (step.trace != nullptr) record(step, plan, positions);
}

void attend_causal_over_ranks(cluster::Communicator& ranks, gpu::Backend& backend, const gpu::CacheView& cache,
                              const float* q, int T, int query_heads, float* out, gpu::Stream stream) {
  const cluster::Part part(cache);
  const std::int64_t width = static_cast<std::int64_t>(query_heads) * cache.head_dim;
  const std::uint64_t of_token =
      cluster::AttentionParts::bytes(query_heads, cache.head_dim) * static_cast<std::uint64_t>(ranks.ranks());
  const int most = static_cast<int>(std::clamp<std::uint64_t>(most_gathered / of_token, 1, static_cast<unsigned>(T)));
  std::vector<float> y;
  for (int begin = 0; begin < T; begin += most) {
    const int count = std::min(most, T - begin);
    cluster::AttentionParts mine(static_cast<std::int64_t>(count) * query_heads, cache.head_dim);
    const std::int64_t first = part.own(cache.tokens() - T + begin);
    backend.attend_causal_part(part.cache(), q + begin * width, count, query_heads, first, {mine.max(), mine.sum()},
                               mine.weighted(), stream);
    y.resize(static_cast<std::size_t>(count * width));
    cluster::merge_attention(ranks, mine, backend.threads(), y.data());
    backend.to_device(out + begin * width, y.data(), y.size() * sizeof(float), stream);
  }
}

}  // namespace hayloft::runtime
