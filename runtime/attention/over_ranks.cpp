#include "runtime/attention/over_ranks.h"

#include <algorithm>

#include "offload/error.h"
#include "runtime/attention/selection.h"
#include "runtime/cluster/merge.h"
#include "runtime/cluster/part.h"

namespace hayloft::runtime {
namespace {

constexpr std::uint64_t most_gathered = std::uint64_t{64} << 20;  // bytes of all ranks that come together in a prefill

// Of the positions those that are this rank's, as own ones, in device memory.
class OwnLists {
 public:
  OwnLists(const Step& step, const cluster::Part& part, const SelectionPlan& plan,
           const std::vector<std::int32_t>& positions)
      : lists_(plan.lists) {
    std::vector<std::vector<std::int32_t>> own(static_cast<std::size_t>(plan.k == 0 ? 0 : lists_));
    for (std::size_t list = 0; list < own.size(); ++list) {
      const auto first = positions.begin() + static_cast<std::ptrdiff_t>(list) * plan.k;
      for (auto position = first; position != first + plan.k; ++position) {
        if (part.holds(*position)) own[list].push_back(static_cast<std::int32_t>(part.own(*position)));
      }
      k_ = std::max(k_, static_cast<int>(own[list].size()));
    }
    if (k_ == 0) return;
    std::vector<std::int32_t> all;  // the sizes, then the lists
    for (const auto& list : own) all.push_back(static_cast<std::int32_t>(list.size()));
    for (const auto& list : own) {
      all.insert(all.end(), list.begin(), list.end());
      all.resize(all.size() + static_cast<std::size_t>(k_) - list.size());
    }
    memory_ = step.backend.allocate(all.size() * sizeof(std::int32_t), step.stream);
    step.backend.to_device(memory_.as<void>(), all.data(), memory_.bytes(), step.stream);
  }

  void give(gpu::Attended& what) const {
    what.lists = k_ == 0 ? 0 : lists_;
    what.k = k_;
    what.sizes = memory_.as<std::int32_t>();
    what.positions = what.sizes + what.lists;
  }

 private:
  int lists_;
  int k_ = 0;  // of the longest
  gpu::Buffer memory_;
};

// What a backend makes of attention to nothing at alpha 0 over a cache without a store, in device memory: the mean of V
// over the tail, [Hq][d].
gpu::Buffer mean_of_tail(const Step& step, const float* q) {
  gpu::CacheView tail = step.cache;
  tail.store.blocks = {};
  tail.store.tokens = 0;
  const auto heads = static_cast<std::size_t>(step.query_heads);
  const gpu::Buffer none = step.backend.allocate(heads * sizeof(float), step.stream);
  gpu::Buffer mean =
      step.backend.allocate(static_cast<std::uint64_t>(step.query_elements()) * sizeof(float), step.stream);
  step.backend.to_device(none.as<void>(), std::vector<float>(heads).data(), none.bytes(), step.stream);
  gpu::Attended nothing;
  nothing.alpha = none.as<float>();
  step.backend.attend(tail, q, step.query_heads, nothing, mean.as<float>(), step.stream);
  return mean;
}

// y = alpha * y + (1 - alpha) * mean of V over every token: of the stores the ranks know the sums.
void blend_mean_value(const Step& step, const gpu::Buffer& tail_mean, const float* alpha, std::vector<float>& y) {
  const gpu::CacheView& cache = step.cache;
  const std::span<const float> sums = cache.shard.alone() ? cache.store.value_sum : cache.value_sum;
  const std::vector<float> in_tail =
      copy_to_host(step.backend, tail_mean.as<float>(), step.query_elements(), step.stream);
  const auto d = static_cast<std::size_t>(step.head_dim());
  const auto group = static_cast<std::size_t>(step.query_heads / step.kv_heads());
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double in_store = cache.stored_tokens() == 0 ? 0 : double{sums[i / d / group * d + i % d]};
    const double sum = in_store + double{in_tail[i]} * static_cast<double>(cache.tail.tokens);
    const auto mean = static_cast<float>(sum / static_cast<double>(cache.tokens()));
    y[i] = alpha[i / d] * y[i] + (1 - alpha[i / d]) * mean;
  }
}

// How many tokens of a prompt are merged at once.
int gathered_tokens(std::uint64_t of_token, int T, int ranks) {
  const std::uint64_t of_all = of_token * static_cast<std::uint64_t>(ranks);
  return static_cast<int>(std::clamp<std::uint64_t>(most_gathered / of_all, 1, static_cast<unsigned>(T)));
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
  fail("--device {}: does not attend over ranks; use --device cpu", backend.name());
}

cluster::AttentionParts attend_part(const Step& step, const cluster::Part& part, const float* q, gpu::Attended what) {
  cluster::AttentionParts mine(step.query_heads, step.head_dim());
  const std::uint64_t bytes = mine.values.size() * sizeof(float);
  const gpu::Buffer values = step.backend.allocate(bytes, step.stream);
  float* const max = values.as<float>() + step.query_elements();
  what.partial = {max, max + step.query_heads};
  step.backend.attend(part.cache(), q, step.query_heads, what, values.as<float>(), step.stream);
  step.backend.to_host(mine.values.data(), values.as<void>(), bytes, step.stream);
  return mine;
}

void attend_over_ranks(const Step& step, const SelectionPlan& plan, const float* q,
                       const std::vector<std::int32_t>& positions, const float* alpha, float* out) {
  const cluster::Part part(step.cache);
  const OwnLists own(step, part, plan, positions);
  gpu::Attended what = plan.attended();
  for (gpu::Attended::Range& range : what.ranges) range = part.own(range);
  own.give(what);
  if (step.held_bytes != nullptr) what.held_bytes = step.held_bytes + 2;
  const gpu::Buffer tail_mean = alpha == nullptr ? gpu::Buffer() : mean_of_tail(step, q);
  const cluster::AttentionParts mine = attend_part(step, part, q, what);
  std::vector<float> y(static_cast<std::size_t>(step.query_elements()));
  cluster::merge_attention(*step.ranks, mine, step.backend.threads(), y.data());
  if (alpha != nullptr) blend_mean_value(step, tail_mean, alpha, y);
  step.backend.to_device(out, y.data(), y.size() * sizeof(float), step.stream);
  if (step.trace != nullptr) record(step, plan, positions);
}

std::uint64_t prefill_bytes_over_ranks(int query_heads, int head_dim, int T, int ranks) {
  const std::uint64_t of_token = cluster::AttentionParts::bytes(query_heads, head_dim);
  return of_token * static_cast<std::uint64_t>(gathered_tokens(of_token, T, ranks));
}

void attend_causal_over_ranks(cluster::Communicator& ranks, gpu::Backend& backend, const gpu::CacheView& cache,
                              const float* q, int T, int query_heads, float* out, gpu::Stream stream) {
  const cluster::Part part(cache);
  const std::int64_t width = static_cast<std::int64_t>(query_heads) * cache.head_dim;
  const std::uint64_t of_token = cluster::AttentionParts::bytes(query_heads, cache.head_dim);
  const int most = gathered_tokens(of_token, T, ranks.ranks());
  const gpu::Buffer values = backend.allocate(of_token * static_cast<std::uint64_t>(most), stream);
  std::vector<float> y;
  for (int begin = 0; begin < T; begin += most) {
    const int count = std::min(most, T - begin);
    cluster::AttentionParts mine(static_cast<std::int64_t>(count) * query_heads, cache.head_dim);
    const std::int64_t first = part.own(cache.tokens() - T + begin);
    float* const max = values.as<float>() + count * width;
    backend.attend_causal_part(part.cache(), q + begin * width, count, query_heads, first,
                               {max, max + count * query_heads}, values.as<float>(), stream);
    backend.to_host(mine.values.data(), values.as<void>(), mine.values.size() * sizeof(float), stream);
    y.resize(static_cast<std::size_t>(count * width));
    cluster::merge_attention(ranks, mine, backend.threads(), y.data());
    backend.to_device(out + begin * width, y.data(), y.size() * sizeof(float), stream);
  }
}

}  // namespace hayloft::runtime
