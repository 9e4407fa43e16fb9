#include "runtime/plan/expert_division.h"

#include <algorithm>

#include "gpu/cuda_memory.h"
#include "runtime/plan/plan_memory.h"

namespace hayloft::runtime::plan {
namespace {

// Says what crosses the link for attention, by what other weights and experts leave of the device's memory.
class AttentionOverLink {
 public:
  AttentionOverLink(const PlanRequest& request, const MethodOptions& options)
      : request_(request), shape_(store_shape(request.config, request.session.cache)) {
    const offload::BlockLayout layout(shape_);
    gpu::CacheView cache = cache_of_step(request, layout, 0);
    blocks_ = cache.store.tokens / shape_.block_tokens;
    const SharedMethod method = make_method(options, request.config.head_dim);
    for (cache.layer = 0; cache.layer < request.config.global_layers(); ++cache.layer) {
      counters_ += method->count(cache, request.config.query_heads);
    }
  }

  ExpectedCache with(std::uint64_t left) const {
    const std::uint64_t budget = request_.device_budget;
    return expect_cache(counters_, shape_, blocks_, request_.device_cache, left,
                        budget - std::min(budget, gpu::cuda_context_bytes));
  }

 private:
  const PlanRequest& request_;
  offload::StoreShape shape_;
  std::int64_t blocks_ = 0;
  Counters counters_;
};

}  // namespace

ExpertRates expert_rates(const MachineProfile* profile) {
  if (!profile || !profile->link_to_device) return {};
  return {profile->near_read, *profile->link_to_device};
}

const MethodOptions* divided_for(const PlanRequest& request) {
  for (const MethodOptions& method : request.methods) {
    const ExpectedCache cache = AttentionOverLink(request, method).with(request.device_budget);
    if (cache.columns_held + cache.rows_held > 0) return &method;
  }
  return request.methods.empty() ? nullptr : &request.methods.front();
}

ExpertPlacement divide_device(const PlanRequest& asked) {
  const std::uint64_t budget = asked.device_budget;
  if (budget == 0) return {};
  const WeightSizes& sizes = asked.weights;
  const std::uint64_t taken = gpu::cuda_context_bytes + gpu::cuda_workspace_bytes;
  const ExpertPlacement whole =
      place_experts(sizes, asked.experts, budget - std::min(budget, taken), asked.expert_rates);
  const MethodOptions* const method = divided_for(asked);
  if (!whole.slots() || !method || !asked.session.cache.shard.alone()) return whole;

  PlanRequest request = asked;
  ExpertPlacement link{ExpertPlace::link, 0, whole.ring};
  request.placed_experts = link;
  const std::uint64_t others = plan_memory(request).device();
  const std::uint64_t most = budget / 8 * 7;
  const AttentionOverLink attention(request, *method);
  const auto left = [&](std::uint64_t used) { return budget - std::min(budget, used); };
  const std::uint64_t of_each = sizes.slot_bytes * static_cast<unsigned>(sizes.mixture_layers);
  double least = 0;
  for (int kept = 0; kept <= sizes.experts; ++kept) {
    const std::uint64_t used = others + static_cast<unsigned>(kept) * of_each;
    if (kept > 0 && used > most) break;
    const double passing = 1 - request.experts_held.at(static_cast<double>(kept) / sizes.experts);
    const double bytes = passing * static_cast<double>(sizes.mixture_bytes_per_step) +
                         static_cast<double>(attention.with(left(used)).link_bytes);
    if (kept == 0 || bytes < least) link.kept = kept, least = bytes;
  }
  if (asked.experts == ExpertPlace::link) return link;
  const double near = static_cast<double>(sizes.mixture_bytes_per_step) / request.expert_rates.near +
                      static_cast<double>(attention.with(left(others)).link_bytes) / request.expert_rates.link;
  return least / request.expert_rates.link <= near ? link : ExpertPlacement{ExpertPlace::near, 0, whole.ring, true};
}

}  // namespace hayloft::runtime::plan
