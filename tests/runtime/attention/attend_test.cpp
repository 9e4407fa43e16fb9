#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/attention/attend_fixture.h"
#include "tests/support/expect_best.h"
#include "tests/support/sparq_oracle.h"

// `hayloft attend` against double-precision attention over the same tensors.
namespace hayloft::runtime {
namespace {

using hayloft::testing::expect_the_best;

constexpr double eps = std::numeric_limits<float>::epsilon();

TEST_F(AttendTest, DenseIsSoftmaxAttentionOverEverythingAndHasNoPositions) {
  make({});
  const AttendOutput output = attend("dense");
  expect_attention_over(output, [&](std::int64_t, int) { return hayloft::testing::range(0, problem_.tokens); });
  EXPECT_EQ(output.lists, 0);
  EXPECT_TRUE(output.positions.empty());
  EXPECT_TRUE(output.alpha.empty());
}

TEST_F(AttendTest, WindowAttendsToSinksAndTheNewestPositions) {
  make({});
  const AttendOutput output = attend("window:k=20:sinks=3");
  std::vector<std::int64_t> expected{0, 1, 2};
  for (std::int64_t t = problem_.tokens - 17; t < problem_.tokens; ++t) expected.push_back(t);
  EXPECT_EQ(output.lists, problem_.kv_heads);
  EXPECT_EQ(output.width, 20);
  EXPECT_EQ(positions(output, 0, 0), expected);
  EXPECT_EQ(positions(output, 2, 3), expected);
  expect_attention_over(output, [&](std::int64_t, int) { return expected; });
}

TEST_F(AttendTest, AWindowNarrowerThanKIsPaddedBehindItsLastPosition) {
  make({});
  const AttendOutput output = attend("window:k=20:window=5:sinks=2");
  EXPECT_EQ(output.width, 20);
  const std::vector<std::int32_t> first(output.positions.begin(), output.positions.begin() + 8);
  EXPECT_EQ(first, (std::vector<std::int32_t>{0, 1, 295, 296, 297, 298, 299, -1}));
}

TEST_F(AttendTest, TopkTakesTheLargestInnerProductsOfEachQueryHead) {
  for (const char* method : {"topk:k=24", "topk:k=24:window=8"}) {
    make({});
    const AttendOutput output = attend(method);
    EXPECT_EQ(output.lists, problem_.query_heads);
    EXPECT_EQ(output.width, 24);
    for (std::int64_t n = 0; n < problem_.queries; ++n) {
      for (int head = 0; head < problem_.query_heads; ++head) {
        const std::vector<std::int64_t> taken = positions(output, n, head);
        ASSERT_EQ(taken.size(), 24u);
        EXPECT_TRUE(std::is_sorted(taken.begin(), taken.end()));
        const std::int64_t limit = problem_.tokens - output.window;
        for (std::int64_t t = limit; t < problem_.tokens; ++t) {
          EXPECT_TRUE(std::binary_search(taken.begin(), taken.end(), t)) << "the window's position " << t;
        }
        std::vector<double> scores;
        double magnitude = 0;  // of a score's products: d of them, rounded and added in f32
        for (std::int64_t t = 0; t < limit; ++t) {
          scores.push_back(hayloft::testing::dot(*cache_, kv_head(head), t, query(n, head)));
          double sum = 0;
          for (int c = 0; c < problem_.head_dim; ++c) {
            sum += std::fabs(query(n, head)[c] * cache_->key(kv_head(head), t, c));
          }
          magnitude = std::max(magnitude, sum);
        }
        expect_the_best(scores, taken, limit, (problem_.head_dim + 4) * eps * magnitude);
      }
    }
    expect_attention_over(output, [&](std::int64_t n, int head) { return positions(output, n, head); });
  }
}

TEST_F(AttendTest, FaissFindsTheSamePositions) {
  make({});
  MethodOptions options;
  options.faiss = true;
  EXPECT_EQ(attend("topk:k=24").positions, attend("topk:k=24", options).positions);
}

TEST_F(AttendTest, TopkMaySelectPerKvHead) {
  make({});
  MethodOptions options;
  options.per = index::SelectPer::kv_head;
  const AttendOutput output = attend("topk:k=24", options);
  EXPECT_EQ(output.lists, problem_.kv_heads);
  expect_attention_over(output, [&](std::int64_t n, int head) { return positions(output, n, head); });
}

// SparQ's step 1 for one query head, in double: softmax over all of S of q[i1] . K[:, i1] / tau.
struct Approximate {
  std::vector<double> p;      // [S]
  double relative_error = 0;  // of every p, had it been computed in f32
};

Approximate approximate(const RandomCache& cache, int kv_head, const float* q, const std::vector<int>& components,
                        index::Temperature temperature) {
  const int d = cache.shape().head_dim;
  const double tau = hayloft::testing::sparq_oracle_temperature(q, d, components, temperature);
  Approximate result;
  double magnitude = 0;
  for (std::int64_t t = 0; t < cache.tokens(); ++t) {
    double s = 0;
    double products = 0;
    for (const int c : components) {
      s += q[c] * cache.key(kv_head, t, c) / tau;
      products += std::fabs(q[c] * cache.key(kv_head, t, c)) / tau;
    }
    result.p.push_back(s);
    magnitude = std::max(magnitude, products);
  }
  const auto [low, high] = std::minmax_element(result.p.begin(), result.p.end());
  const double range = *high - *low;
  const double largest = *high;
  double sum = 0;
  for (double& s : result.p) sum += s = std::exp(s - largest);
  for (double& s : result.p) s /= sum;
  // r products of a weight rounded three times (tau's own sum, root and quotient), added in f32; exp is good to 2e-7
  // and its argument to half an ulp of the range; the normaliser sums S terms. Numerator and denominator: twice.
  const double score_error = (static_cast<double>(components.size()) + 8) * eps / 2 * magnitude;
  result.relative_error = 2 * (score_error + 2e-7 + eps / 2 * range) + static_cast<double>(cache.tokens()) * eps / 2;
  return result;
}

TEST_F(AttendTest, SparqIsTheReferenceOfItsPaper) {
  constexpr int rank = 8;
  constexpr int k = 40;
  using index::Temperature;
  for (const int kv_heads : {1, 2, 4}) {
    for (const bool mean_value : {true, false}) {
      for (const auto& [window, temperature] :
           {std::pair{0, Temperature::coverage}, {10, Temperature::coverage}, {10, Temperature::rank}}) {
        SCOPED_TRACE(fmt::format("g = {}, mean value {}, window {}, temperature {}", 4 / kv_heads, mean_value, window,
                                 static_cast<int>(temperature)));
        make({.kv_heads = kv_heads});
        MethodOptions options;
        options.rank = rank;
        options.k = Budget{k, 0};
        options.window = window;
        options.temperature = temperature;
        options.mean_value = mean_value;
        const AttendOutput output = attend("sparq", options);
        EXPECT_EQ(output.lists, kv_heads);
        EXPECT_EQ(output.width, k);
        const int d = problem_.head_dim;
        const int group = problem_.query_heads / kv_heads;
        const std::int64_t S = problem_.tokens;
        for (std::int64_t n = 0; n < problem_.queries; ++n) {
          for (int kv = 0; kv < kv_heads; ++kv) {
            const std::vector<int> components =
                hayloft::testing::sparq_oracle_components(query(n, kv * group), group, d, rank);
            const std::vector<std::int64_t> taken = positions(output, n, kv * group);
            ASSERT_EQ(taken.size(), static_cast<std::size_t>(k));
            for (std::int64_t t = S - window; t < S; ++t)
              EXPECT_TRUE(std::binary_search(taken.begin(), taken.end(), t));

            std::vector<double> shared(static_cast<std::size_t>(S), 0.0);
            double tolerance = 0;
            for (int head = kv * group; head < (kv + 1) * group; ++head) {
              const Approximate step1 = approximate(*cache_, kv, query(n, head), components, temperature);
              double mass = 0;
              for (std::int64_t t = 0; t < S; ++t) {
                shared[static_cast<std::size_t>(t)] += step1.p[static_cast<std::size_t>(t)];
                tolerance = std::max(tolerance, group * step1.relative_error * step1.p[static_cast<std::size_t>(t)]);
              }
              for (const std::int64_t t : taken) mass += step1.p[static_cast<std::size_t>(t)];
              const std::size_t row = static_cast<std::size_t>(n * problem_.query_heads + head);
              const double alpha_error = mass * step1.relative_error + eps;
              EXPECT_NEAR(output.alpha[row], mass, alpha_error);

              const auto exact = hayloft::testing::attention(*cache_, kv, query(n, head), taken);
              for (int c = 0; c < d; ++c) {
                double mean = 0;
                double largest = 0;
                for (std::int64_t t = 0; t < S; ++t) {
                  mean += cache_->value(kv, t, c) / static_cast<double>(S);
                  largest = std::max(largest, std::fabs(cache_->value(kv, t, c)));
                }
                const double y3 = exact.y[static_cast<std::size_t>(c)];
                const double y = mean_value ? mass * y3 + (1 - mass) * mean : y3;
                // Either part may be off by its own error, and the share between them by alpha's.
                const double error = exact.tolerance + alpha_error * 2 * largest + 4 * eps * largest;
                ASSERT_NEAR(output.y[row * static_cast<std::size_t>(d) + static_cast<std::size_t>(c)], y, error)
                    << "query " << n << " head " << head << " component " << c;
              }
            }
            expect_the_best(shared, taken, S - window, tolerance);
          }
        }
      }
    }
  }
}

TEST_F(AttendTest, EveryMethodOverEverythingIsDense) {
  make({});
  const AttendOutput dense = attend("dense");
  const std::string k = std::to_string(problem_.tokens);
  for (const std::string& method : {"sparq:r=32:k=" + k, "topk:k=" + k, "oracle:k=" + k, "flexgen:k=" + k,
                                    "lowrank:r=32:k=" + k, "pages:page=16:k=" + k}) {
    const AttendOutput output = attend(method);
    EXPECT_EQ(positions(output, 0, 0), hayloft::testing::range(0, problem_.tokens)) << method;
    expect_attention_over(output, [&](std::int64_t, int) { return hayloft::testing::range(0, problem_.tokens); });
    for (const float alpha : output.alpha) {
      EXPECT_NEAR(alpha, 1, static_cast<double>(problem_.tokens) * eps) << "a sum of S shares in f32";
    }
  }
}

TEST_F(AttendTest, ElementsEqualThePapersFormulasAndBytesTheLayout) {
  make({});
  const std::uint64_t S = 300, d = 32, Hkv = 2, Hq = 4, k = 40, r = 8;
  const std::uint64_t row = 2 * 2 * d;  // K and V, two bytes each
  struct Case {
    const char* method;
    std::uint64_t elements, link_columns, link_rows, link_dense, near_columns, near_index, scored, fetched;
  };
  const std::uint64_t pages = S / 16, paged = k / 16 * 16 + S % 16;  // what is behind the last whole page is attended
  const Case cases[] = {
      {"dense", Hkv * (2 * S * d + 2 * d), 0, 0, Hkv * S * row, 0, 0, Hkv * S, Hkv * S},
      {"sparq:r=8:k=40", Hkv * (S * r + 2 * k * d + 4 * d), Hkv * r * 2 * S, Hkv * k * row, 0, 0, 0, Hkv * S, Hkv * k},
      {"topk:k=40", Hkv * (S * d + 2 * (Hq / Hkv) * k * d + 2 * d), 0, Hq * k * row, 0, Hkv * d * 2 * S, 0, Hkv * S,
       Hq * k},
      {"window:k=40", Hkv * (2 * k * d + 2 * d), 0, Hkv * k * row, 0, 0, 0, Hkv * k, Hkv * k},
      {"flexgen:k=40", Hkv * (S * d + k * d + 2 * d), Hkv * d * 2 * S, Hkv * k * row, 0, 0, 0, Hkv * S, Hkv * k},
      {"oracle:k=40", Hkv * (S * d + 2 * k * d + 4 * d), 0, Hkv * k * row, 0, Hkv * d * 2 * S, 0, Hkv * S, Hkv * k},
      {"lowrank:r=8:k=40", Hkv * (S * r + 2 * k * d + 4 * d), 0, Hkv * k * row, 0, 0, Hkv * r * 2 * S, Hkv * S,
       Hkv * k},
      {"pages:page=16:k=40", Hkv * (2 * pages * d + 2 * paged * d + 2 * d), 0, Hkv * paged * row, 0, 0,
       Hkv * pages * 2 * d * 2, Hkv * pages, Hkv * paged},
  };
  for (const Case& c : cases) {
    const AttendOutput output = attend(c.method);
    ASSERT_EQ(output.counters.size(), 3u);
    for (Counters counters : output.counters) {
      EXPECT_EQ(counters.elements, c.elements) << c.method;
      EXPECT_EQ(counters.positions_scored, c.scored) << c.method;
      EXPECT_EQ(counters.rows_fetched, c.fetched) << c.method;
      EXPECT_EQ(counters.at(Place::link, Kind::columns), c.link_columns) << c.method;
      EXPECT_EQ(counters.at(Place::link, Kind::rows), c.link_rows) << c.method;
      EXPECT_EQ(counters.at(Place::link, Kind::dense), c.link_dense) << c.method;
      EXPECT_EQ(counters.at(Place::near, Kind::columns), c.near_columns) << c.method;
      EXPECT_EQ(counters.total(Place::device), 0u) << c.method << ": there is no tail";
      EXPECT_EQ(counters.total(Place::link), c.link_columns + c.link_rows + c.link_dense) << c.method;
      EXPECT_EQ(counters.at(Place::near, Kind::index), c.near_index) << c.method;
      EXPECT_EQ(counters.total(Place::near), c.near_columns + c.near_index) << c.method;
    }
  }
}

}  // namespace
}  // namespace hayloft::runtime
