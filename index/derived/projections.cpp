#include "index/derived/projections.h"

#include <cmath>
#include <numbers>
#include <random>

#include "index/scan/exact_search.h"

namespace hayloft::index {
namespace {

constexpr std::int64_t quant_group = 64;    // score_columns begins at its multiples
constexpr std::int64_t piece_tokens = 512;  // of one head, at a time

// The standard fixes the numbers of mt19937_64 but not those of its distributions.
class Normal {
 public:
  explicit Normal(std::uint64_t seed) : bits_(seed) {}
  double operator()() {  // Box and Muller
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  double uniform() { return (static_cast<double>(bits_() >> 11) + 0.5) * 0x1p-53; }  // never 0
  std::mt19937_64 bits_;
};

double dot(const double* a, const double* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

std::vector<float> random_frame(int rank, int dim, std::uint64_t seed) {
  Normal normal(seed);
  std::vector<double> frame(static_cast<std::size_t>(rank) * static_cast<std::size_t>(dim));
  for (double& x : frame) x = normal();
  for (int j = 0; j < rank; ++j) {
    double* const v = frame.data() + j * dim;
    for (int pass = 0; pass < 2; ++pass) {  // Gram and Schmidt, twice: what rounding left over the second takes out
      for (int i = 0; i < j; ++i) {
        const double* const u = frame.data() + i * dim;
        const double share = dot(u, v, dim);
        for (int c = 0; c < dim; ++c) v[c] -= share * u[c];
      }
    }
    const double length = std::sqrt(dot(v, v, dim));
    for (int c = 0; c < dim; ++c) v[c] /= length;
  }
  return {frame.begin(), frame.end()};
}

void project_keys(const offload::LayerView& view, const std::vector<float>& directions, const offload::Threads& threads,
                  DerivedColumns& keys) {
  const int heads = view.layout->kv_heads;
  const int d = view.layout->head_dim;
  const std::vector<std::int32_t> components = every_component(heads, d);
  while (keys.size() < view.tokens) {
    const std::int64_t first = keys.size();
    const DerivedColumns::Space space = keys.space(view.tokens - first);
    const int columns = space.columns;
    // Directions take the place of query heads.
    ColumnSearch search;
    search.query_heads = heads * columns;
    search.rank = d;
    search.components = components.data();
    search.weights = directions.data();
    search.keys = exact_keys(view);
    const std::int64_t aligned = first / quant_group * quant_group;
    const std::int64_t end = first + space.entries;
    const std::int64_t pieces = (end - aligned + piece_tokens - 1) / piece_tokens;
    threads.parallel_for(heads * pieces, 1, [&](std::int64_t piece_begin, std::int64_t piece_end) {
      std::vector<float> scores(static_cast<std::size_t>(columns * piece_tokens));
      for (std::int64_t i = piece_begin; i < piece_end; ++i) {
        const auto head = static_cast<int>(i / pieces);
        const std::int64_t from = aligned + i % pieces * piece_tokens;
        const std::int64_t to = std::min(from + piece_tokens, end);
        score_columns(view, search, head, from, to, scores.data());
        for (int c = 0; c < columns; ++c) {
          const float* const projected = scores.data() + c * (to - from);
          f16* const column = space.column(head, c);
          for (std::int64_t t = std::max(from, first); t < to; ++t) column[t - first] = to_f16(projected[t - from]);
        }
      }
    });
    keys.commit(space.entries);
  }
}

}  // namespace hayloft::index
