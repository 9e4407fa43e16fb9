#include <algorithm>
#include <limits>

#include "offload/error.h"
#include "runtime/attention/attender.h"
#include "runtime/attention/host_tail.h"
#include "runtime/attention/logit_lines.h"
#include "runtime/attention/method_option_table.h"
#include "runtime/attention/rest_estimate.h"

namespace hayloft::runtime {
namespace {

template <class T>
T* scratch_for(const LayerStep& at, gpu::Buffer& scratch, std::int64_t count) {
  const std::uint64_t bytes = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(count)) * sizeof(T);
  if (scratch.bytes() < bytes) scratch = at.backend.allocate(bytes, at.stream);
  return scratch.as<T>();
}

// Returns where a search leaves the scores of all positions, if they are wanted once more.
index::KeptScores* kept_scores(const LayerStep& at, const Ranking& ranking) {
  if (!ranking.keep) return nullptr;
  at.scratch.kept.clear();
  return &at.scratch.kept;
}

class LocalAttender final : public Attender {
 public:
  Selection select(const Step& step, const SelectionPlan& plan, const Ranking& ranking) const override {
    switch (ranking.source) {
      case Ranking::Source::given:
        return {ranking.positions};
      case Ranking::Source::components: {  // step 1 of SparQ
        const LayerStep& at = step.at;
        index::KeptScores* const kept = kept_scores(at, ranking);
        gpu::SparqSelect args{ranking.by, plan.k, plan.limit, step.held_bytes, {}, kept};
        if (step.held_bytes != nullptr) args.ahead_bytes = step.held_bytes + 3;
        std::shared_ptr<const gpu::Buffer> scores;
        if (ranking.keep && at.backend.estimates_rest()) {
          const std::int64_t count = at.query_heads * gpu::scores_stride(at.cache.store.tokens);
          scores = std::make_shared<const gpu::Buffer>(
              at.backend.allocate(static_cast<std::uint64_t>(count) * sizeof(float), at.stream));
          args.scores = scores->as<float>();
        }
        auto* const positions = scratch_for<std::int32_t>(at, at.scratch.positions, plan.positions());
        auto* const alpha = scratch_for<float>(at, at.scratch.alpha, at.query_heads);
        at.backend.select_sparq(at.cache, step.q, at.query_heads, args, positions, alpha, at.stream);
        return {{}, {}, positions, ranking.with_alpha ? alpha : nullptr, kept, scores};
      }
      default:
        return select_on_host(step, in_entries(plan, ranking), ranking);
    }
  }

  Finds find(const Step& step, const SelectionPlan& plan, const float*, const OwnSearch& search) const override {
    if (plan.k == 0) return {};
    Finds finds;
    finds.positions.resize(static_cast<std::size_t>(plan.positions()));
    finds.counted = search(step.at.cache.store, plan.limit, plan.k, finds.positions.data());
    return finds;
  }

  void attend(const Step& step, const SelectionPlan& plan, const Selection& selection, Rest rest) const override {
    const LayerStep& at = step.at;
    gpu::Attended what = plan.attended();
    what.positions = selection.device_positions;
    what.alpha = rest.kind == Rest::Kind::mean ? selection.device_alpha : nullptr;
    if (!selection.positions.empty()) {
      auto* const positions = scratch_for<std::int32_t>(at, at.scratch.positions, plan.positions());
      at.backend.to_device(positions, selection.positions.data(), selection.positions.size() * sizeof(std::int32_t),
                           at.stream);
      what.positions = positions;
    }
    if (rest.kind == Rest::Kind::mean && !selection.alpha.empty()) {
      auto* const alpha = scratch_for<float>(at, at.scratch.alpha, at.query_heads);
      at.backend.to_device(alpha, selection.alpha.data(), selection.alpha.size() * sizeof(float), at.stream);
      what.alpha = alpha;
    }
    if (step.held_bytes != nullptr) what.held_bytes = step.held_bytes + 2;
    at.backend.attend(at.cache, step.q, at.query_heads, what, step.out, at.stream);
    if (step.trace != nullptr) record(step, what, selection);
  }

  void attend_with_rest(const Step& step, const SelectionPlan& plan, const Selection& selection, const Ranking& ranking,
                        Rest rest) const override {
    if (plan.k == plan.limit) return attend(step, plan, selection, {});
    const LayerStep& at = step.at;
    require_rest(at.backend, rest);
    if (selection.scores != nullptr) return attend_on_device(step, plan, selection, ranking, rest);
    gpu::Attended what = plan.attended();
    Selection taken = selection;
    if (taken.device_positions != nullptr) {
      taken.positions.resize(static_cast<std::size_t>(plan.positions()));
      at.backend.to_host(taken.positions.data(), taken.device_positions, taken.positions.size() * sizeof(std::int32_t),
                         at.stream);
      what.positions = taken.device_positions;
    } else {
      auto* const positions = scratch_for<std::int32_t>(at, at.scratch.positions, plan.positions());
      at.backend.to_device(positions, taken.positions.data(), taken.positions.size() * sizeof(std::int32_t), at.stream);
      what.positions = positions;
    }
    taken.device_alpha = nullptr;
    taken.alpha = attend_with_estimate(step, plan, what, taken, ranking, rest);
    if (step.trace != nullptr) record(step, what, taken);
  }

  void predict(const Step& step, const SelectionPlan& plan, const Selection& selection, const Ranking& ranking,
               Rest rest) const override {
    const LayerStep& at = step.at;
    if (at.backend.name() != "cpu" || plan.k == plan.limit) return;
    gpu::Attended what = plan.attended();
    Selection taken = selection;
    if (taken.device_positions != nullptr) {
      taken.positions.assign(taken.device_positions, taken.device_positions + plan.positions());
    }
    if (taken.device_alpha != nullptr) taken.alpha.assign(taken.device_alpha, taken.device_alpha + at.query_heads);
    what.positions = taken.positions.data();
    predict_error(step, plan, what, taken, ranking, rest);
  }

  // The same where the device has the scores: all of it there, but for what the step says of itself.
  static void attend_on_device(const Step& step, const SelectionPlan& plan, const Selection& selection,
                               const Ranking& ranking, Rest rest) {
    const LayerStep& at = step.at;
    const auto heads = static_cast<std::size_t>(at.query_heads);
    gpu::Attended what = plan.attended();
    what.positions = selection.device_positions;
    if (step.held_bytes != nullptr) what.held_bytes = step.held_bytes + 2;
    const gpu::Buffer said = at.backend.allocate(2 * heads * sizeof(float), at.stream);  // errors, shares
    const gpu::SparqSelect select{ranking.by, plan.k, plan.limit};
    gpu::RestStep args{select, what, selection.scores->as<float>()};
    LineSample& sample = line_sample(step, at.cache.store, line_positions(plan.limit));
    const LineSample::OnDevice keys = sample.on_device(at.backend, at.stream);
    args.line_keys = keys.keys;
    args.line_positions = keys.positions;
    args.line_samples = sample.count();
    args.draws = rest.kind == Rest::Kind::draw;
    args.drawn = plan.drawn;
    args.key = draw_key(rest.seed, at.cache.layer, plan.tokens);
    args.error = said.as<float>();
    args.share = said.as<float>() + heads;
    at.backend.attend_with_rest(at.cache, step.q, at.query_heads, args, step.out, at.stream);
    if (step.estimate == nullptr && step.trace == nullptr) return;
    const std::vector<float> values =
        copy_to_host(at.backend, said.as<float>(), static_cast<std::int64_t>(2 * heads), at.stream);
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(heads);
    if (step.estimate != nullptr) {
      step.estimate->error.assign(values.begin(), middle);
      step.estimate->attended.assign(middle, values.end());
    }
    if (step.trace == nullptr) return;
    Selection weighed = selection;
    weighed.device_alpha = nullptr;
    weighed.alpha.assign(middle, values.end());
    record(step, what, weighed);
  }

  void attend_causal(const LayerStep& at, const float* q, int rows, const gpu::CausalWindow& window,
                     float* out) const override {
    at.backend.attend_causal(at.cache, q, rows, at.query_heads, window, out, at.stream);
  }

 private:
  // By every column of what is searched. Softmaxes go on from the tail's, where it counts.
  static Selection select_on_host(const Step& step, const SelectionPlan& plan, const Ranking& ranking) {
    if (plan.k == 0 && !ranking.with_alpha) return {};
    const LayerStep& at = step.at;
    const HostRanking ready(step, ranking);
    const bool derived = ranking.source == Ranking::Source::derived;
    const offload::LayerView& view = derived ? ranking.columns : at.cache.store;
    const index::ColumnSearch search = ready.search(plan.limit, plan.k);
    const bool by_softmax = !search.per_query_head() && search.rule == index::GroupRule::softmax;
    const bool with_tail = !derived || !ranking.tail_weights.empty();
    Selection selection;
    selection.positions.resize(static_cast<std::size_t>(plan.positions()));
    selection.kept = kept_scores(at, ranking);
    index::SearchResult result;
    result.positions = selection.positions.data();
    result.kept = selection.kept;
    TailScores tail;
    tail.max.assign(static_cast<std::size_t>(at.query_heads), -std::numeric_limits<float>::infinity());
    tail.sum.resize(tail.max.size());
    if (with_tail && (ranking.with_alpha || by_softmax)) {
      tail = score_tail(HostTail(at.backend, at.cache, at.stream), ready.key_weights().data(), at.query_heads,
                        at.backend.threads());
      add_sinks(sinks_on_host(at.backend, at.cache, at.query_heads, at.stream), tail.max, tail.sum);
      result.max = tail.max.data();
      result.sum = tail.sum.data();
    }
    if (ranking.with_alpha) {
      selection.alpha.resize(tail.max.size());
      index::search_with_alpha(view, search, at.backend.threads(), tail.max.data(), tail.sum.data(), result.positions,
                               selection.alpha.data(), selection.kept);
    } else {
      index::search_columns(view, search, at.backend.threads(), result);
    }
    selection.positions = as_positions(std::move(selection.positions), ranking);
    return selection;
  }

  static void record(const Step& step, const gpu::Attended& what, const Selection& selection) {
    const LayerStep& at = step.at;
    StepTrace& trace = *step.trace;
    trace.lists = what.lists;
    trace.k = what.k;
    trace.ranges[0] = what.ranges[0];
    trace.ranges[1] = what.ranges[1];
    trace.positions.resize(static_cast<std::size_t>(what.lists) * static_cast<std::size_t>(what.k));
    trace.alpha = selection.alpha;
    if (!trace.positions.empty()) {
      at.backend.to_host(trace.positions.data(), what.positions, trace.positions.size() * sizeof(std::int32_t),
                         at.stream);
    }
    if (selection.device_alpha != nullptr) {
      trace.alpha = copy_to_host(at.backend, selection.device_alpha, at.query_heads, at.stream);
    }
  }
};

}  // namespace

void Attender::attend_with_rest(const Step&, const SelectionPlan&, const Selection&, const Ranking&, Rest rest) const {
  fail("--attn-rest {}: needs an attender that estimates it by the scores of every position; use --attn-rest none",
       name(rest.kind));
}

void require_rest(const gpu::Backend& backend, Rest rest) {
  if (!rest.by_scores() || backend.estimates_rest() || backend.name() == "cpu") return;
  fail("--attn-rest {}: is made by the CPU and by CUDA, and the device is {}; use --device cpu or --attn-rest none",
       name(rest.kind), backend.name());
}

SharedAttender local_attender() {
  static const SharedAttender here = std::make_shared<LocalAttender>();
  return here;
}

}  // namespace hayloft::runtime
