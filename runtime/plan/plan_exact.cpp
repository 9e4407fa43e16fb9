#include "runtime/plan/plan_exact.h"

#include <algorithm>

#include "gpu/cuda_memory.h"
#include "offload/error.h"
#include "runtime/checkpoint/draft_head.h"
#include "runtime/decode/draft_length.h"
#include "runtime/decode/drafting.h"
#include "runtime/plan/plan_memory.h"

namespace hayloft::runtime::plan {
namespace {

double ms_of(const std::vector<PredictedStage>& stages) {
  double ms = 0;
  for (const PredictedStage& stage : stages) ms += stage.ms;
  return ms;
}

// Returns what a pass that verifies so many tokens takes on the card.
double pass_ms(const PlanRequest& request, const PlannedMethod& dense, int tokens) {
  const CacheOptions& cache = request.session.cache;
  DecodeStep step{&request.config, placed_weights(request), dense.attn, dense.counters, cache.columns, cache.rows};
  step.tokens = tokens;
  return ms_of(predict_stages(step, *request.card));
}

// `by`: what drafts; null: they are copies, or there are none. `through`: the weights that a draft goes through.
PlannedExact plan_drafts(const PlanRequest& request, const PlannedMethod& dense, const PlannedMethod* by,
                         const WeightSizes& through, int most) {
  const bool device = request.device_budget > 0 || request.card;
  const WeightSizes weights = placed_weights(request);
  const DraftCosts costs = draft_costs(request.config, weights, dense.counters,
                                       by ? std::optional(DraftStep{through, by->counters}) : std::nullopt, device);
  PlannedExact exact;
  exact.drafted = tokens_worth_drafting(*request.accepted, costs, most);
  exact.tokens = tokens_of_pass(*request.accepted, exact.drafted);
  const double drafts = exact.drafted;
  const std::uint64_t of_draft = !by ? 0 : by->cache ? by->cache->link_bytes : by->counters.total(Place::link);
  const auto of_pass = static_cast<double>(dense.counters.total(Place::link));
  exact.link_bytes = static_cast<std::uint64_t>((of_pass + drafts * static_cast<double>(of_draft)) / exact.tokens);
  if (dense.ms) {
    const double pass = dense.ms->total() * (costs.of_pass(exact.drafted) - drafts * costs.draft);
    exact.ms = (pass + (by ? drafts * by->ms->total() : 0)) / exact.tokens;
  }
  if (request.card) {
    exact.card_ms =
        (pass_ms(request, dense, exact.drafted + 1) + (by ? drafts * ms_of(by->predicted) : 0)) / exact.tokens;
  }
  return exact;
}

bool can_draft(const MethodOptions& method) {
  try {
    check_draft_method(method);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Counts what a draft by the model's head attends to, in the one layer that slides.
Counters attended_by_head(const PlanRequest& request) {
  const PlanRequest head = request_of_head(request);
  const offload::BlockLayout layout(store_shape(request.config, request.session.cache));
  const gpu::CacheView cache = cache_of_step(head, layout, draft_head_positions);
  return make_method(head.methods.front(), request.config.head_dim)->count(cache, request.config.query_heads);
}

}  // namespace

PlanRequest request_of_head(const PlanRequest& request) {
  PlanRequest head = request;
  head.config = draft_head_config(request.config);
  head.weights = *request.head;
  head.placed_experts = ExpertPlacement{};
  head.methods = {MethodOptions{}};
  if (!request.methods.empty()) head.methods[0].rates = request.methods[0].rates;
  head.tokens = std::min(request.tokens, draft_head_positions);
  head.accepted.reset();
  head.head.reset();
  return head;
}

std::vector<PlannedExact> plan_exact(const PlanRequest& request, const PlannedMethod& dense,
                                     const std::vector<PlannedMethod>& methods, const Plan* head) {
  if (!(*request.accepted >= 0 && *request.accepted <= 1)) {
    fail("--accepted {}: must be a share, between 0 and 1", *request.accepted);
  }
  const bool device = request.device_budget > 0 || request.card;
  const int most = std::min(DraftOptions().most, device ? gpu::cuda_tokens_as_alone - 1 : DraftOptions().most);
  const WeightSizes weights = placed_weights(request);
  std::vector<PlannedExact> all{plan_drafts(request, dense, nullptr, weights, 0),
                                plan_drafts(request, dense, nullptr, weights, most)};
  all[0].drafts = "none";
  all[1].drafts = "lookup";
  for (const PlannedMethod& method : methods) {
    if (!can_draft(method.attn)) continue;
    all.push_back(plan_drafts(request, dense, &method, weights, most));
    all.back().drafts = "self, by " + method_label(method.attn);
  }
  if (head) {
    PlannedMethod step = head->methods.front();
    step.counters = attended_by_head(request);
    all.push_back(plan_drafts(request, dense, &step, *request.head, most));
    all.back().drafts = "mtp";
    all.back().memory = request.head->bytes + head->memory.tails;
  }
  return all;
}

}  // namespace hayloft::runtime::plan
