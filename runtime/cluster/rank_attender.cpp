#include "runtime/cluster/rank_attender.h"

#include <algorithm>

#include "offload/error.h"
#include "runtime/attention/host_tail.h"
#include "runtime/attention/method.h"
#include "runtime/cluster/attend_part.h"
#include "runtime/cluster/rank_finds.h"
#include "runtime/cluster/rank_rest.h"
#include "runtime/cluster/rank_selection.h"

namespace hayloft::runtime::cluster {
namespace {

constexpr std::uint64_t most_gathered = std::uint64_t{64} << 20;  // bytes of all ranks that come together in a prefill

// The positions that are this rank's, as own ones, in device memory.
class OwnLists {
 public:
  OwnLists(const LayerStep& at, const Part& part, const SelectionPlan& plan, const std::vector<std::int32_t>& positions)
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
    memory_ = at.backend.allocate(all.size() * sizeof(std::int32_t), at.stream);
    at.backend.to_device(memory_.as<void>(), all.data(), memory_.bytes(), at.stream);
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

// Returns attention to nothing at alpha 0 over a cache without a store, in device memory: the mean of V
// over the tail, [Hq][d].
gpu::Buffer mean_of_tail(const LayerStep& at, const float* q) {
  gpu::CacheView tail = at.cache;
  tail.store.blocks = {};
  tail.store.tokens = 0;
  const auto heads = static_cast<std::size_t>(at.query_heads);
  const gpu::Buffer none = at.backend.allocate(heads * sizeof(float), at.stream);
  gpu::Buffer mean = at.backend.allocate(static_cast<std::uint64_t>(at.query_elements()) * sizeof(float), at.stream);
  at.backend.to_device(none.as<void>(), std::vector<float>(heads).data(), none.bytes(), at.stream);
  gpu::Attended nothing;
  nothing.alpha = none.as<float>();
  at.backend.attend(tail, q, at.query_heads, nothing, mean.as<float>(), at.stream);
  return mean;
}

// The mean of V over every token, [Hq][d]: of the stores the ranks know the sums.
std::vector<float> mean_of_all(const LayerStep& at, const gpu::Buffer& tail_mean) {
  const gpu::CacheView& cache = at.cache;
  const std::span<const float> sums = cache.shard.alone() ? cache.store.value_sum : cache.value_sum;
  std::vector<float> mean = copy_to_host(at.backend, tail_mean.as<float>(), at.query_elements(), at.stream);
  const auto d = static_cast<std::size_t>(at.head_dim());
  const auto group = static_cast<std::size_t>(at.group());
  for (std::size_t i = 0; i < mean.size(); ++i) {
    const double in_store = cache.stored_tokens() == 0 ? 0 : double{sums[i / d / group * d + i % d]};
    const double sum = in_store + double{mean[i]} * static_cast<double>(cache.tail.tokens);
    mean[i] = static_cast<float>(sum / static_cast<double>(cache.tokens()));
  }
  return mean;
}

// y = alpha * y + (1 - alpha) * mean of V over every token.
void blend_mean_value(const LayerStep& at, const gpu::Buffer& tail_mean, const float* alpha, std::vector<float>& y) {
  const std::vector<float> mean = mean_of_all(at, tail_mean);
  const auto d = static_cast<std::size_t>(at.head_dim());
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = alpha[i / d] * y[i] + (1 - alpha[i / d]) * mean[i];
}

// Counts the tokens of a prompt that are merged at once.
int gathered_tokens(std::uint64_t of_token, int T, int ranks) {
  const std::uint64_t of_all = of_token * static_cast<std::uint64_t>(ranks);
  return static_cast<int>(std::clamp<std::uint64_t>(most_gathered / of_all, 1, static_cast<unsigned>(T)));
}

class RankAttender final : public Attender {
 public:
  explicit RankAttender(Communicator& ranks) : ranks_(ranks) {}

  Selection select(const Step& step, const SelectionPlan& plan, const Ranking& ranking) const override {
    if (ranking.source == Ranking::Source::given) return {ranking.positions};
    Selection selection = select_over_ranks(ranks_, step, in_entries(plan, ranking), ranking);
    selection.positions = as_positions(std::move(selection.positions), ranking);
    return selection;
  }

  Finds find(const Step& step, const SelectionPlan& plan, const float* q, const OwnSearch& search) const override {
    return find_over_ranks(ranks_, step, plan, q, search);
  }

  // One all-gather. The positions are those of all ranks, whole ones.
  void attend(const Step& step, const SelectionPlan& plan, const Selection& selection, Rest rest) const override {
    const LayerStep& at = step.at;
    const bool blends = rest.kind == Rest::Kind::mean && !selection.alpha.empty();
    const Part part(at.cache);
    const OwnLists own(at, part, plan, selection.positions);
    const gpu::Attended what = own_part(step, plan, part, own);
    const gpu::Buffer tail_mean = blends ? mean_of_tail(at, step.q) : gpu::Buffer();
    const AttentionParts mine = attend_part(at, part, step.q, what);
    std::vector<float> y(static_cast<std::size_t>(at.query_elements()));
    merge_attention(ranks_, mine, at.backend.threads(), y.data());
    if (blends) blend_mean_value(at, tail_mean, selection.alpha.data(), y);
    at.backend.to_device(step.out, y.data(), y.size() * sizeof(float), at.stream);
    if (step.trace != nullptr) record(*step.trace, plan.attended(), selection);
  }

  // Three all-gathers at most (RankRest).
  void attend_with_rest(const Step& step, const SelectionPlan& plan, const Selection& selection, const Ranking& ranking,
                        Rest rest) const override {
    if (plan.k == plan.limit) return attend(step, plan, selection, {});
    const LayerStep& at = step.at;
    const Part part(at.cache);
    const OwnLists own(at, part, plan, selection.positions);
    const gpu::Attended what = own_part(step, plan, part, own);
    const auto mean = [&] { return mean_of_all(at, mean_of_tail(at, step.q)); };
    Selection weighed = selection;
    std::vector<float> y;
    weighed.alpha = RankRest{ranks_, step, plan, part, ranking, rest}.attend(what, selection.positions, mean, y);
    at.backend.to_device(step.out, y.data(), y.size() * sizeof(float), at.stream);
    if (step.trace != nullptr) record(*step.trace, plan.attended(), weighed);
  }

  // An all-gather for each 64 MiB that come together, one at least.
  void attend_causal(const LayerStep& at, const float* q, int rows, const gpu::CausalWindow&,
                     float* out) const override {
    const Part part(at.cache);
    const std::int64_t width = at.query_elements();
    const std::uint64_t of_token = AttentionParts::bytes(at.query_heads, at.head_dim());
    const int most = gathered_tokens(of_token, rows, ranks_.ranks());
    const gpu::Buffer values = at.backend.allocate(of_token * static_cast<std::uint64_t>(most), at.stream);
    std::vector<float> y;
    for (int begin = 0; begin < rows; begin += most) {
      const int count = std::min(most, rows - begin);
      AttentionParts mine(static_cast<std::int64_t>(count) * at.query_heads, at.head_dim());
      const std::int64_t first = part.own(at.tokens() - rows + begin);
      float* const max = values.as<float>() + count * width;
      at.backend.attend_causal_part(part.cache(), q + begin * width, count, at.query_heads, first,
                                    {max, max + count * at.query_heads}, values.as<float>(), at.stream);
      at.backend.to_host(mine.values.data(), values.as<void>(), mine.values.size() * sizeof(float), at.stream);
      y.resize(static_cast<std::size_t>(count * width));
      merge_attention(ranks_, mine, at.backend.threads(), y.data());
      at.backend.to_device(out + begin * width, y.data(), y.size() * sizeof(float), at.stream);
    }
  }

  Communicator& peers() const override { return ranks_; }
  // One of them would attend to all of a layer that is not in blocks yet.
  bool has_whole_layers() const override { return false; }
  std::uint64_t prefill_bytes(int query_heads, int head_dim, int T) const override {
    return prefill_bytes_over_ranks(query_heads, head_dim, T, ranks_.ranks());
  }
  void require(const MethodOptions& method, const CacheOptions& cache) const override {
    require_over_ranks(method, cache);
  }
  void require(const gpu::Backend& backend) const override {
    if (backend.attends_in_parts()) return;
    fail("--device {}: does not attend over ranks; use --device cpu", backend.name());
  }

 private:
  static void record(StepTrace& trace, const gpu::Attended& what, const Selection& selection) {
    trace.lists = what.lists;
    trace.k = what.k;
    trace.ranges[0] = what.ranges[0];
    trace.ranges[1] = what.ranges[1];
    trace.positions = selection.positions;
    trace.alpha = selection.alpha;
  }

  // The positions that this rank attends to.
  static gpu::Attended own_part(const Step& step, const SelectionPlan& plan, const Part& part, const OwnLists& own) {
    gpu::Attended what = plan.attended();
    for (gpu::Attended::Range& range : what.ranges) range = part.own(range);
    own.give(what);
    if (step.held_bytes != nullptr) what.held_bytes = step.held_bytes + 2;
    return what;
  }

  Communicator& ranks_;
};

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

std::uint64_t prefill_bytes_over_ranks(int query_heads, int head_dim, int T, int ranks) {
  const std::uint64_t of_token = AttentionParts::bytes(query_heads, head_dim);
  return of_token * static_cast<std::uint64_t>(gathered_tokens(of_token, T, ranks));
}

AttentionParts attend_part(const LayerStep& at, const Part& part, const float* q, gpu::Attended what) {
  AttentionParts mine(at.query_heads, at.head_dim());
  const std::uint64_t bytes = mine.values.size() * sizeof(float);
  const gpu::Buffer values = at.backend.allocate(bytes, at.stream);
  float* const max = values.as<float>() + at.query_elements();
  what.partial = {max, max + at.query_heads};
  at.backend.attend(part.cache(), q, at.query_heads, what, values.as<float>(), at.stream);
  at.backend.to_host(mine.values.data(), values.as<void>(), bytes, at.stream);
  return mine;
}

SharedAttender rank_attender(Communicator& ranks) {
  return std::make_shared<RankAttender>(ranks);
}

}  // namespace hayloft::runtime::cluster
