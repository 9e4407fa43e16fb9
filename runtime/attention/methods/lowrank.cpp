#include <cmath>
#include <memory>

#include "index/derived/projections.h"
#include "offload/error.h"
#include "runtime/attention/method.h"
#include "runtime/attention/methods/derived_state.h"

// SparQ's ablation of its own step 1 (arXiv 2312.04985, figure 7a): in place of the r components in which the query is
// largest, r random orthonormal projections R of every key, drawn once. Approximate logits (q R) . (K R) / tau, then
// SparQ's steps 2 and 3. At equal r it reads as many bytes as SparQ on f16 columns, near the memory.
//
// tau is what makes the approximate logits spread as the exact ones do. Over keys without a preferred direction the
// variance of (q R) . (K R) is |q R|^2 times a key component's, that of q . K is |q|^2 times it; so
// tau = sqrt(d |q R|^2 / |q|^2) (Temperature::coverage), the part of q that the projections cover, in the norm that
// rotations keep where SparQ has the sum of magnitudes. Its expectation over R is sqrt(r), Temperature::rank.
namespace hayloft::runtime {
namespace {

std::uint64_t mixed(std::uint64_t x) {  // splitmix64's finaliser: neighbours become unlike
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The projected keys of every layer. Each head of each layer has its own R, so that a run does not depend on one draw.
class ProjectedKeys : public DerivedState {
 public:
  ProjectedKeys(const AttentionShape& shape, int rank, std::uint64_t seed, const offload::Threads& threads)
      : DerivedState(shape, rank, 1), threads_(threads) {
    for (int layer = 0; layer < shape.layers; ++layer) {
      auto directions = std::make_shared<std::vector<float>>();
      for (int head = 0; head < shape.kv_heads; ++head) {
        const std::uint64_t which = static_cast<std::uint64_t>(layer) << 32 | static_cast<std::uint64_t>(head);
        const std::vector<float> frame = index::random_frame(rank, shape.head_dim, mixed(mixed(seed) + which));
        directions->insert(directions->end(), frame.begin(), frame.end());
      }
      directions_.push_back(std::move(directions));
    }
  }

  std::unique_ptr<MethodState> fork() const override { return std::make_unique<ProjectedKeys>(*this); }

  std::uint64_t bytes() const override {
    std::uint64_t bytes = DerivedState::bytes();
    for (const auto& directions : directions_) bytes += directions->size() * sizeof(float);
    return bytes;
  }

  // The transpose of R for every head of a layer, [Hkv][r][d].
  const std::vector<float>& directions(int layer) const { return *directions_[static_cast<std::size_t>(layer)]; }

 private:
  void extend(int layer, const offload::LayerView& store, index::DerivedColumns& columns) const override {
    index::project_keys(store, directions(layer), threads_, columns);
  }

  const offload::Threads& threads_;
  std::vector<std::shared_ptr<const std::vector<float>>> directions_;
};

// The vector that the keys are multiplied with, for one query head.
struct ProjectedQuery {
  std::vector<float> columns;  // [r] q R / tau
  std::vector<float> row;      // [d] q R R^T / tau, the same for keys that have not been projected
};

ProjectedQuery project(const float* q, const float* directions, int rank, int d, index::Temperature temperature) {
  ProjectedQuery result;
  double all = 0;
  double covered = 0;
  for (int c = 0; c < d; ++c) all += double{q[c]} * q[c];
  std::vector<double> row(static_cast<std::size_t>(d));
  for (int j = 0; j < rank; ++j) {
    const float* const direction = directions + j * d;
    double share = 0;
    for (int c = 0; c < d; ++c) share += double{q[c]} * direction[c];
    for (int c = 0; c < d; ++c) row[static_cast<std::size_t>(c)] += share * direction[c];
    covered += share * share;
    result.columns.push_back(static_cast<float>(share));
  }
  double tau = std::sqrt(static_cast<double>(temperature == index::Temperature::rank ? rank : d));
  if (temperature == index::Temperature::coverage && covered > 0) tau = std::sqrt(d * covered / all);
  for (float& x : result.columns) x = static_cast<float>(x / tau);
  for (const double x : row) result.row.push_back(static_cast<float>(x / tau));
  return result;
}

class LowRank : public Method {
 public:
  explicit LowRank(const MethodOptions& options) : Method(options, {.rest = rest_of(options)}) {}

  std::int64_t window(std::int64_t tokens, int layer) const override { return sparq_window(options_, tokens, layer); }

  std::string state_key() const override { return fmt::format("lowrank r={} seed={}", options_.rank, options_.seed); }
  std::unique_ptr<MethodState> make_state(const AttentionShape& shape, gpu::Backend& backend) const override {
    return std::make_unique<ProjectedKeys>(shape, options_.rank, options_.seed, backend.threads());
  }
  std::uint64_t state_bytes(const AttentionShape& shape, std::int64_t tokens) const override {
    return DerivedState::bytes_of(shape, options_.rank, 1, tokens) +
           static_cast<std::uint64_t>(shape.layers * shape.kv_heads) * static_cast<std::uint64_t>(options_.rank) *
               static_cast<std::uint64_t>(shape.head_dim) * sizeof(float);
  }

  Ranking ranking(const Step& step, const SelectionPlan&) const override {
    const auto& state = static_cast<const ProjectedKeys&>(*step.state);
    const int layer = step.at.cache.layer;
    const int d = step.at.head_dim();
    Ranking ranking{.source = Ranking::Source::derived, .by = by_, .with_alpha = true};
    ranking.columns = state.columns(layer);
    const std::vector<float> query = query_on_host(step);
    for (int h = 0; h < step.at.query_heads; ++h) {
      const float* const directions =
          state.directions(layer).data() + std::ptrdiff_t{h / step.at.group()} * by_.rank * d;
      const ProjectedQuery p = project(query.data() + std::ptrdiff_t{h} * d, directions, by_.rank, d, by_.temperature);
      ranking.weights.insert(ranking.weights.end(), p.columns.begin(), p.columns.end());
      ranking.tail_weights.insert(ranking.tail_weights.end(), p.row.begin(), p.row.end());
    }
    return ranking;
  }

  Counters count_planned(const gpu::CacheView& cache, const SelectionPlan& plan) const override {
    const StepTerms n(cache, plan);
    const auto r = static_cast<std::uint64_t>(by_.rank);
    Counters counters = count_selection(cache, plan);
    counters.at(Place::near, Kind::index) +=
        n.heads * r * static_cast<std::uint64_t>(cache.stored_tokens()) * sizeof(f16);
    counters.elements = n.heads * sparq_elements(n.S, r, n.k, n.d);
    return counters;
  }
};

}  // namespace

std::unique_ptr<Method> make_lowrank(const MethodOptions& options) {
  return std::make_unique<LowRank>(options);
}

}  // namespace hayloft::runtime
