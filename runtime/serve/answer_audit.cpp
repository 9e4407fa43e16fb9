#include "runtime/serve/answer_audit.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include "runtime/fidelity/audit.h"

namespace hayloft::runtime::serve {
namespace {

constexpr std::size_t kWindow = 24;  // tokens of a quote
constexpr std::size_t kAround = 80;  // tokens before and behind a quote
constexpr std::size_t kSinks = 4;
constexpr double kPeak = 0.01;   // of a head: less is what it spreads over everything
constexpr double kLooked = 0.1;  // of a head on one token: less, step after step, is where it rests

}  // namespace

// The mass of exact attention by place, summed over the query heads of the sampled steps.
struct AnswerAuditor::Places {
  std::mutex mutex;
  std::vector<double> mass;    // [tokens]
  std::vector<double> looked;  // [tokens] what of it exceeds kLooked
  double total = 0;

  // Returns by what the first `tokens` are put in order: by what was looked at, if anything was.
  std::span<const double> looks(std::size_t tokens) const {
    const auto first = std::span(looked).first(tokens);
    const bool any = tokens > kSinks && std::ranges::any_of(first.subspan(kSinks), [](double x) { return x > 0; });
    return any ? first : std::span(mass).first(tokens);
  }

  void add(const StepSample& sample, const offload::Threads& threads) {
    const StepQuery step = sample.query();
    const Scores scores = exact_scores(step);
    const RankedPositions exact = rank_positions(step, scores, 1, index::SelectPer::kv_head, threads);
    const auto tokens = static_cast<std::size_t>(step.tokens());
    const auto group = static_cast<std::size_t>(step.group());
    const std::lock_guard lock(mutex);
    if (mass.size() < tokens) mass.resize(tokens), looked.resize(tokens);
    for (int head = 0; head < step.kv_heads(); ++head) {
      const std::vector<float> logits = score_positions(step, scores, exact.tail, head, threads);
      for (std::size_t g = 0; g < group; ++g) {
        const std::size_t query = static_cast<std::size_t>(head) * group + g;
        for (std::size_t at = 0; at < tokens; ++at) {
          const double weight = std::exp(logits[g * tokens + at] - exact.max[query]) / exact.sum[query];
          if (weight >= kPeak) mass[at] += weight;
          looked[at] += std::max(0.0, weight - kLooked);
        }
        total += 1;
      }
    }
  }
};

std::vector<Quote> heaviest_places(std::span<const double> looks, std::span<const double> mass, double total,
                                   int count) {
  std::vector<Quote> quotes;
  if (mass.size() < kSinks + kWindow || total <= 0) return quotes;
  std::vector<double> until(mass.size() + 1);  // of all before
  for (std::size_t i = 0; i < mass.size(); ++i) until[i + 1] = until[i] + looks[i];
  const auto held = [&](std::size_t at) { return until[at + kWindow] - until[at]; };
  std::vector<std::size_t> taken;
  while (static_cast<int>(taken.size()) < count) {
    std::size_t best = mass.size();
    for (std::size_t at = kSinks; at + kWindow <= mass.size(); ++at) {
      const bool overlaps =
          std::ranges::any_of(taken, [&](std::size_t other) { return at < other + kWindow && other < at + kWindow; });
      if (!overlaps && (best == mass.size() || held(at) > held(best))) best = at;
    }
    if (best == mass.size() || held(best) <= 0) break;
    taken.push_back(best);
    const std::span<const double> window = mass.subspan(best, kWindow);
    const double share = std::accumulate(window.begin(), window.end(), 0.0) / total;
    quotes.push_back({static_cast<std::int64_t>(best), static_cast<std::int64_t>(kWindow), share, {}, {}, {}});
  }
  return quotes;
}

std::vector<double> map_of(std::span<const double> mass, double total, int parts) {
  std::vector<double> map(std::min(mass.size(), static_cast<std::size_t>(std::max(parts, 0))));
  if (map.empty() || total <= 0) return map;
  for (std::size_t at = kSinks; at < mass.size(); ++at) map[at * map.size() / mass.size()] += mass[at] / total;
  return map;
}

AnswerAuditor::AnswerAuditor(Session& session, const gpu::Backend& backend, int quotes, int map)
    : quotes_(quotes), map_(map), places_(std::make_shared<Places>()) {
  AuditOptions options;
  options.rate = 0.2;
  const bool wanted = quotes > 0 || map > 0;
  options.time_share = wanted ? 1 : 0.3;  // few samples show few places
  auditor_ =
      std::make_shared<Auditor>(backend, options, [places = places_, wanted](StepSample& sample, gpu::Backend& host) {
        if (wanted) places->add(sample, host.threads());
        return sample.measure(host);
      });
  session.add_observer(auditor_);
}

AnswerAuditor::~AnswerAuditor() = default;

AnswerAudit AnswerAuditor::finish(const Session& session, const Tokenizer& tokenizer, std::int64_t quotable,
                                  std::span<const std::int32_t> text_tokens) {
  auditor_->finish();
  const AuditReport report = auditor_->report();
  AnswerAudit audit;
  audit.attended_share = session.attended_share();
  audit.predicted = session.predicted_error();
  audit.steps = session.steps();
  for (const auto& of_place : session.counters().bytes) {
    for (const std::uint64_t bytes : of_place) audit.read_bytes += bytes;
  }
  audit.samples = report.measured;
  RunningStats recall, mass;
  for (const auto& [layer, cells] : report.layers) {
    for (const AuditCell& cell : cells) {
      if (cell.recall.count > 0) recall.add(cell.recall.mean());
      if (cell.mass.count > 0) mass.add(cell.mass.mean());
    }
  }
  audit.recall = recall.mean();
  audit.mass = mass.mean();
  audit.least_mass = mass.min;

  const std::lock_guard lock(places_->mutex);
  const std::size_t until = std::min(
      {places_->mass.size(), text_tokens.size(), static_cast<std::size_t>(std::max<std::int64_t>(quotable, 0))});
  const std::span<const double> looks = places_->looks(until);
  audit.quotes = heaviest_places(looks, std::span(places_->mass).first(until), places_->total, quotes_);
  for (Quote& quote : audit.quotes) {
    const std::span<const std::int32_t> part =
        text_tokens.subspan(static_cast<std::size_t>(quote.position), static_cast<std::size_t>(quote.tokens));
    quote.text = tokenizer.decode({part.begin(), part.end()}, false, true);
    if (map_ == 0) continue;
    const auto text_from = [&](std::size_t begin, std::size_t end) {
      const std::span<const std::int32_t> around = text_tokens.subspan(begin, end - begin);
      return tokenizer.decode({around.begin(), around.end()}, false, begin > 0);
    };
    const auto begin = static_cast<std::size_t>(quote.position);
    const std::size_t end = begin + static_cast<std::size_t>(quote.tokens);
    quote.before = text_from(begin - std::min(begin, kAround), begin);
    quote.after = text_from(end, std::min(end + kAround, text_tokens.size()));
  }
  audit.map = map_of(looks, places_->total, map_);
  audit.mapped = static_cast<std::int64_t>(until);
  return audit;
}

}  // namespace hayloft::runtime::serve
