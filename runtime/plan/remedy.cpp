#include "runtime/plan/remedy.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "offload/error.h"

namespace hayloft::runtime::plan {
namespace {

// A value of one option, and what taking it loses. Chunks lose time only; columns are looked at to choose, rows are
// what is attended; int8 rows changed the next token in no step and int4 rows in one of ten (docs/rows.md). Experts
// near the processor lose time. A sum of cheaper changes stays below the next dearer one.
template <class T>
struct Step {
  T value;
  int cost;
};
constexpr Step<int> chunk_steps[] = {{512, 1}, {128, 2}};
constexpr Step<offload::RowFormat> row_steps[] = {{offload::RowFormat::int8, 16}, {offload::RowFormat::int4, 64}};

std::vector<Step<offload::ColumnFormat>> column_steps() {
  std::vector<Step<offload::ColumnFormat>> steps;
  for (const offload::ColumnTraits& traits : offload::column_traits) {
    if (traits.remedy_cost > 0) steps.push_back({traits.format, traits.remedy_cost});
  }
  return steps;
}

struct Candidate {
  PlanRequest request;
  std::string options;
  int cost = 0;
};

void add_option(std::string& options, const std::string& option) {
  options += (options.empty() ? "" : " ") + option;
}

// `from` with every value of `steps` that is less than its own, beside `from` as it is.
template <class Steps, class Apply>
void widen(std::vector<Candidate>& from, const Steps& steps, const Apply& apply) {
  const std::size_t count = from.size();
  for (std::size_t i = 0; i < count; ++i) {
    for (const auto& step : steps) {
      Candidate next = from[i];
      if (!apply(next, step.value)) continue;
      next.cost += step.cost;
      from.push_back(std::move(next));
    }
  }
}

std::vector<Candidate> candidates(const PlanRequest& request, const std::vector<OtherWeights>& weights) {
  std::vector<Candidate> all{{request, "", 0}};
  for (const OtherWeights& other : weights) {
    if (other.sizes.bytes >= request.weights.bytes) continue;
    Candidate next{request, other.options, other.cost};
    next.request.weights = other.sizes;
    all.push_back(std::move(next));
  }
  constexpr Step<ExpertPlace> near_processor[] = {{ExpertPlace::near, 4}};
  widen(all, near_processor, [](Candidate& c, ExpertPlace place) {
    if (placed_experts(c.request).place == place || c.request.weights.mixture_bytes == 0 ||
        c.request.device_budget == 0) {
      return false;
    }
    c.request.experts = place;
    add_option(c.options, fmt::format("--experts {}", name(place)));
    return true;
  });
  widen(all, column_steps(), [](Candidate& c, offload::ColumnFormat format) {
    offload::ColumnFormat& own = c.request.session.cache.columns;
    const int cost = traits_of(own).remedy_cost;
    if (cost < 0 || cost >= traits_of(format).remedy_cost) return false;
    own = format;
    add_option(c.options, fmt::format("--columns {}", offload::name(format)));
    return true;
  });
  widen(all, row_steps, [](Candidate& c, offload::RowFormat format) {
    offload::RowFormat& own = c.request.session.cache.rows;
    if (own >= format) return false;
    own = format;
    add_option(c.options, fmt::format("--rows {}", offload::name(format)));
    return true;
  });
  widen(all, chunk_steps, [](Candidate& c, int tokens) {
    if (c.request.session.chunk_tokens <= tokens) return false;
    c.request.session.chunk_tokens = tokens;
    add_option(c.options, fmt::format("--batch {}", tokens));
    return true;
  });
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
  return all;
}

// A format may be none that a method or a head dimension can have.
bool fits_at_all(const PlanRequest& request) {
  try {
    return fits(request);
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::int64_t longest_fitting(PlanRequest request) {
  const auto fits_at = [&](std::int64_t tokens) {
    request.tokens = tokens;
    return fits_at_all(request);
  };
  std::int64_t fitting = 0;
  std::int64_t beyond = request.tokens;
  constexpr std::int64_t longest = std::numeric_limits<std::int32_t>::max();
  while (beyond < longest && fits_at(beyond)) {
    fitting = beyond;
    beyond = std::min(longest, 2 * beyond);
  }
  while (beyond - fitting > 1) {
    const std::int64_t middle = fitting + (beyond - fitting) / 2;
    (fits_at(middle) ? fitting : beyond) = middle;
  }
  return fitting;
}

Remedy remedy(const PlanRequest& request, const std::vector<OtherWeights>& weights) {
  Remedy result;
  result.longest_tokens = longest_fitting(request);
  for (const Candidate& candidate : candidates(request, weights)) {
    if (candidate.options.empty() || !fits_at_all(candidate.request)) continue;
    const PlanMemory memory = make_plan(candidate.request, nullptr).memory;
    result.change = candidate.options;
    result.memory_bytes = memory.total();
    result.device_bytes = memory.device();
    break;
  }
  return result;
}

}  // namespace hayloft::runtime::plan
