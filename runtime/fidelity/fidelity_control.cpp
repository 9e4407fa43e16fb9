#include "runtime/fidelity/fidelity_control.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "offload/error.h"
#include "offload/text/format.h"
#include "runtime/fidelity/audit_sample.h"
#include "runtime/fidelity/ranking.h"

namespace hayloft::runtime {
namespace {

constexpr double measuring_share = 1.0 / 30;  // of the predicted time of a layer's attention
constexpr double exact_passes = 2.5;          // what scoring every position takes, in steps of dense attention
constexpr double margin = 0.25;               // of what may be missed, that a level must not miss in a sample
constexpr std::int64_t idle_calls = 64;       // until a layer is asked again whether there is anything to choose

// Returns the mass of the KV head that catches least, averaged over its query heads.
double least_mass(const std::vector<double>& mass, int kv_heads) {
  const auto group = static_cast<std::ptrdiff_t>(mass.size()) / kv_heads;
  double least = 1;
  for (auto head = mass.begin(); head != mass.end(); head += group) {
    least = std::min(least, std::accumulate(head, head + group, 0.0) / static_cast<double>(group));
  }
  return least;
}

std::shared_ptr<const MethodLadder> ladder_of(const MethodOptions& method, int head_dim) {
  auto ladder = std::make_shared<const MethodLadder>(method, head_dim);
  if (method.name == "window" && method.window) {
    fail(
        "--fidelity: with --attn-window {} `window` attends to as many positions whatever its k; give --attn-k instead",
        *method.window);
  }
  if (!ladder->shares_state()) {
    fail(
        "--fidelity: --attn {} has read the context with its k in mind and cannot attend to more later; take another "
        "method",
        method.name);
  }
  return ladder;
}

}  // namespace

void check_fidelity(double least) {
  if (!(least > 0 && least <= 1)) {
    fail("--fidelity {}: must be a share of the attention mass above 0 and up to 1, as in 99% or 0.99", least);
  }
}

void LevelChoice::add(int needed) {
  needed_.push_back(std::min(needed, exact_level_));
  if (static_cast<int>(needed_.size()) > kept) needed_.pop_front();
}

bool LevelChoice::decided() const {
  return static_cast<int>(needed_.size()) >= enough || std::ranges::find(needed_, exact_level_) != needed_.end();
}

int LevelChoice::level() const {
  return decided() ? *std::ranges::max_element(needed_) : exact_level_;
}

// One step, on which levels are tried.
class FidelityControl::Probe {
 public:
  Probe(const Step& step, const Method& by, MethodScratch& scratch)
      : step_(step),
        at_{step.at.backend, step.at.stream,      step.at.layer, step.at.cache,
            step.at.store,   step.at.query_heads, step.at.T,     scratch},
        sample_(step, by),
        query_(sample_.query()),
        scores_(exact_scores(query_)),
        ranking_(rank_positions(query_, scores_, 1, index::SelectPer::kv_head, at_.backend.threads())) {}

  bool whole(const StepTrace& trace) const {
    return trace.lists == 0 && trace.ranges[0].begin == 0 && trace.ranges[0].end == query_.tokens();
  }
  double mass(const StepTrace& trace) const {
    return whole(trace) ? 1 : least_mass(caught_mass(query_, scores_, ranking_, trace), query_.kv_heads());
  }
  double mass(const Method& method) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(at_.query_elements()) * sizeof(float);
    if (out_.bytes() < bytes) out_ = at_.backend.allocate(bytes, at_.stream);
    StepTrace trace;
    method.attend({at_, step_.q, out_.as<float>(), step_.attender, step_.state, &trace});
    return mass(trace);
  }
  offload::ColumnFormat columns() const { return at_.cache.store.layout->columns; }

 private:
  const Step& step_;
  LayerStep at_;  // with scratch of its own
  StepSample sample_;
  StepQuery query_;
  Scores scores_;
  RankedPositions ranking_;
  gpu::Buffer out_;
};

FidelityControl::FidelityControl(const MethodOptions& method, int head_dim, double least)
    : least_(least), enough_(1 - (1 - least) * (1 - margin)), ladder_(ladder_of(method, head_dim)) {
  check_fidelity(least);
  levels_ = {ladder_->exact_level()};
  method_ = make_leveled(ladder_, levels_);
  report_.asked = least;
}

bool FidelityControl::wants(int layer, std::int64_t position) {
  Layer& state = layers_.try_emplace(layer, ladder_->exact_level()).first->second;
  return state.calls++ >= state.next || position >= state.grown;
}

std::int64_t FidelityControl::unwanted_from(std::int64_t position) const {
  std::int64_t tokens = layers_.empty() ? 0 : std::numeric_limits<std::int64_t>::max();
  for (const auto& [number, layer] : layers_) {
    tokens = std::min({tokens, layer.next - layer.calls, layer.grown - position});
  }
  return std::max<std::int64_t>(0, tokens);
}

void FidelityControl::passed_over(std::int64_t tokens) {
  for (auto& [number, layer] : layers_) layer.calls += tokens;
}

void FidelityControl::see(const Step& step, const Method& by) {
  const LayerStep& at = step.at;
  Layer& layer = layers_.at(at.layer);
  layer.global_layer = at.cache.layer;
  layer.grown = at.tokens() + at.tokens() / 8;
  const int worthwhile = ladder_->worthwhile(at.cache, at.query_heads);
  layer.selects = worthwhile > 0;
  if (worthwhile == 0) {
    layer.next = layer.calls + idle_calls;
    return;
  }
  Probe probe(step, by, scratch_);
  const int live = layer.choice.level();
  const double caught = probe.mass(*step.trace);
  ++report_.samples;
  if (!probe.whole(*step.trace)) {
    report_.measured.add(caught);
    report_.by_layer[at.layer].add(caught);
  }
  // Levels in [low, high) are to be tried, `next` first: mostly all is as it was, or nothing but exact attention will
  // do.
  int low = 0;
  int high = worthwhile;  // the lowest that is known to be enough; here that is exact attention
  int next = worthwhile - 1;
  if (live < worthwhile) {  // which has been tried by the step itself
    if (caught >= least_) {
      high = live;
      next = live - 1;
    } else {
      low = live + 1;
      next = low;
    }
  }
  int tried = 0;
  while (low < high) {
    const int level = tried == 0 ? next : (low + high) / 2;
    ++tried;
    if (probe.mass(ladder_->judged_at(level, probe.columns(), at.cache.layer)) >= enough_) {
      high = level;
    } else {
      low = level + 1;
    }
  }
  layer.choice.add(high < worthwhile ? high : ladder_->exact_level());

  const int level = layer.choice.level();
  const bool untried = level < live && live >= worthwhile;  // the first samples of what is decoded with come at once
  if (!layer.choice.decided() || untried) {
    layer.next = layer.calls;
    return;
  }
  const double dense = ladder_->predicted(ladder_->dense(), at.cache, at.query_heads);
  const double own = ladder_->predicted(by, at.cache, at.query_heads);
  layer.next = layer.calls +
               static_cast<std::int64_t>(std::ceil((exact_passes * dense + tried * own) / (measuring_share * own)));
}

bool FidelityControl::update() {
  std::vector<int> levels = levels_;
  for (const auto& [number, layer] : layers_) {
    const auto at = static_cast<std::size_t>(layer.global_layer);
    if (levels.size() <= at) levels.resize(at + 1, ladder_->exact_level());
    levels[at] = layer.choice.level();
  }
  if (levels == levels_) return false;
  levels_ = std::move(levels);
  method_ = make_leveled(ladder_, levels_);
  return true;
}

std::string FidelityControl::take_note() {
  if (noted_) return {};
  const FidelityReport now = report();
  const bool settled = std::ranges::all_of(
      layers_, [](const auto& each) { return !each.second.selects || each.second.choice.decided(); });
  if (!settled || now.exact_layers == 0) return {};
  noted_ = true;
  return fmt::format(
      "fidelity: {} of {} layers take dense attention: nothing faster catches {:g}% of their attention mass",
      now.exact_layers, layers_.size(), least_ * 100);
}

FidelityReport FidelityControl::report() const {
  FidelityReport report = report_;
  for (const auto& [number, layer] : layers_) {
    if (!layer.selects) continue;
    ++report.layers;
    if (layer.choice.decided() && layer.choice.level() == ladder_->exact_level()) ++report.exact_layers;
  }
  return report;
}

std::string fidelity_line(const FidelityReport& report) {
  std::string line = fmt::format("fidelity: {:g}% asked; ", report.asked * 100);
  if (report.measured.count == 0) return line + "every measured step attended to everything";
  line += fmt::format("{:.2f}% of the attention mass caught on average by {} sampled steps of single layers",
                      report.measured.mean() * 100, report.measured.count);
  const auto least = std::ranges::min_element(report.by_layer, {}, [](const auto& each) { return each.second.mean(); });
  line += fmt::format(", least in layer {}: {:.2f}%", least->first, least->second.mean() * 100);
  if (report.measured.mean() < report.asked) line += "; that is below what was asked";
  return line;
}

}  // namespace hayloft::runtime
