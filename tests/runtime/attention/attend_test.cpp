#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "gpu/make_backend.h"
#include "runtime/attention/attend_file.h"
#include "runtime/checkpoint/safetensors.h"
#include "tests/support/cpu_cache.h"
#include "tests/support/expect_best.h"
#include "tests/support/refusal.h"
#include "tests/support/sparq_oracle.h"
#include "tests/support/temporary_folder.h"

// `hayloft attend` against double-precision attention over the same tensors.
namespace hayloft::runtime {
namespace {

using hayloft::testing::CacheShape;
using hayloft::testing::expect_the_best;
using hayloft::testing::RandomCache;
using test::refuses;

constexpr double eps = std::numeric_limits<float>::epsilon();

struct Problem {
  int query_heads = 4;
  int kv_heads = 2;
  int head_dim = 32;
  std::int64_t tokens = 300;  // with blocks of 64: the last one is ragged
  int block_tokens = 64;
  std::int64_t queries = 3;
};

class AttendTest : public ::testing::Test {
 protected:
  void make(const Problem& problem) {
    problem_ = problem;
    CacheShape shape;
    shape.kv_heads = problem.kv_heads;
    shape.head_dim = problem.head_dim;
    shape.block_tokens = problem.block_tokens;
    shape.stored = problem.tokens;
    shape.seed = 7;
    cache_.emplace(shape);
    q_ = hayloft::testing::normal(static_cast<std::size_t>(problem.queries * problem.query_heads * problem.head_dim), 8,
                                  2);
    write("F32", [](double x) { return raw(static_cast<float>(x)); });
  }

  template <class T>
  static std::string raw(T value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  }

  // The problem's tensors as a .safetensors file; `encode` gives an element's bytes in the dtype.
  void write(const std::string& dtype, const std::function<std::string(double)>& encode) {
    const Problem& p = problem_;
    std::string data;
    std::string header;
    const auto add = [&](const char* name, std::vector<std::int64_t> shape, auto&& element) {
      const std::size_t begin = data.size();
      for (std::int64_t a = 0; a < shape[0]; ++a) {
        for (std::int64_t b = 0; b < shape[1]; ++b) {
          for (int c = 0; c < p.head_dim; ++c) data += encode(element(a, b, c));
        }
      }
      header += (header.empty() ? "{" : ",") + nlohmann::json(name).dump() + ":" +
                nlohmann::json{{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, data.size()}}}.dump();
    };
    add("q", {p.queries, p.query_heads, p.head_dim}, [&](std::int64_t n, std::int64_t h, int c) {
      return q_[static_cast<std::size_t>((n * p.query_heads + h) * p.head_dim + c)];
    });
    add("k", {p.kv_heads, p.tokens, p.head_dim},
        [&](std::int64_t h, std::int64_t t, int c) { return cache_->key(static_cast<int>(h), t, c); });
    add("v", {p.kv_heads, p.tokens, p.head_dim},
        [&](std::int64_t h, std::int64_t t, int c) { return cache_->value(static_cast<int>(h), t, c); });
    header += "}";
    folder_.write("qkv.safetensors", raw(static_cast<std::uint64_t>(header.size())) + header + data);
  }

  AttendOutput attend(std::string_view method, MethodOptions defaults = {}) {
    return attend_file(folder_ / "qkv.safetensors", parse_method(method, defaults), *backend_, arena_,
                       {problem_.block_tokens});
  }

  const float* query(std::int64_t n, int head) const {
    return q_.data() + (n * problem_.query_heads + head) * problem_.head_dim;
  }
  int kv_head(int query_head) const { return query_head * problem_.kv_heads / problem_.query_heads; }

  // The positions of query n that apply to a query head, without padding.
  static std::vector<std::int64_t> positions(const AttendOutput& output, std::int64_t n, int query_head) {
    const int list = query_head * output.lists / output.query_heads;
    std::vector<std::int64_t> positions;
    for (std::int64_t i = 0; i < output.width; ++i) {
      const std::int32_t p = output.positions[static_cast<std::size_t>((n * output.lists + list) * output.width + i)];
      if (p >= 0) positions.push_back(p);
    }
    return positions;
  }

  void expect_attention_over(const AttendOutput& output,
                             const std::function<std::vector<std::int64_t>(std::int64_t n, int head)>& over) {
    for (std::int64_t n = 0; n < problem_.queries; ++n) {
      for (int head = 0; head < problem_.query_heads; ++head) {
        const auto expected = hayloft::testing::attention(*cache_, kv_head(head), query(n, head), over(n, head));
        for (int c = 0; c < problem_.head_dim; ++c) {
          const std::size_t at = static_cast<std::size_t>((n * problem_.query_heads + head) * problem_.head_dim + c);
          ASSERT_NEAR(output.y[at], expected.y[static_cast<std::size_t>(c)], expected.tolerance)
              << "query " << n << " head " << head << " component " << c;
        }
      }
    }
  }

  Problem problem_;
  std::optional<RandomCache> cache_;
  std::vector<float> q_;
  test::TemporaryFolder folder_;
  offload::Topology topology_;
  offload::Threads threads_{2};
  std::unique_ptr<gpu::Backend> backend_ = gpu::make_cpu_backend(threads_);
  offload::Arena arena_{topology_, {.budget_bytes = std::uint64_t{1} << 30}};
};

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

TEST_F(AttendTest, EveryFloatDtypeGivesTheSameAnswer) {
  make({});
  for (float& x : q_) x = std::round(x * 8) / 8;  // exact in every dtype, and K and V are f16 already
  write("F32", [](double x) { return raw(static_cast<float>(x)); });
  const AttendOutput single = attend("sparq:k=40");
  write("F64", [](double x) { return raw(x); });
  EXPECT_EQ(attend("sparq:k=40").y, single.y);
  write("F16", [](double x) { return raw(to_f16(static_cast<float>(x)).bits); });
  EXPECT_EQ(attend("sparq:k=40").y, single.y);
  write("BF16", [](double x) {
    return raw(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(x)) >> 16));
  });
  const AttendOutput brain = attend("sparq:k=40");  // K and V lose bits on the way
  write("F32", [](double x) {
    return raw(std::bit_cast<float>(std::bit_cast<std::uint32_t>(static_cast<float>(x)) & 0xffff0000u));
  });
  EXPECT_EQ(brain.y, attend("sparq:k=40").y);
}

TEST_F(AttendTest, BlocksDoNotChangeWhatIsAttended) {
  make({});
  const AttendOutput small = attend("sparq:k=40");
  problem_.block_tokens = 4096;
  const AttendOutput large = attend("sparq:k=40");
  EXPECT_EQ(small.positions, large.positions);
  EXPECT_EQ(small.counters[0].bytes, large.counters[0].bytes);
}

TEST_F(AttendTest, TheOutputFileHoldsTheTensorsThatThereAre) {
  make({});
  write_attend_output(folder_ / "y.safetensors", attend("sparq:k=40"));
  const SafetensorsFile sparq(folder_ / "y.safetensors");
  EXPECT_EQ(sparq.at("y").dtype, "F32");
  EXPECT_EQ(sparq.at("y").shape, (std::vector<std::int64_t>{3, 4, 32}));
  EXPECT_EQ(sparq.at("positions").dtype, "I32");
  EXPECT_EQ(sparq.at("positions").shape, (std::vector<std::int64_t>{3, 2, 40}));
  EXPECT_EQ(sparq.at("alpha").shape, (std::vector<std::int64_t>{3, 4}));

  write_attend_output(folder_ / "dense.safetensors", attend("dense"));
  const SafetensorsFile dense(folder_ / "dense.safetensors");
  EXPECT_EQ(dense.tensors().size(), 1u);
}

TEST_F(AttendTest, TheJsonHoldsTheCountersOfEveryQuery) {
  make({});
  const auto json = nlohmann::json::parse(attend_json(attend("sparq:r=8:k=40")));
  EXPECT_EQ(json["schema"], "hayloft.attend/1");
  EXPECT_EQ(json["r"], 8);
  EXPECT_EQ(json["k"], 40);
  EXPECT_EQ(json["window"], 10);
  ASSERT_EQ(json["counters"].size(), 3u);
  EXPECT_EQ(json["counters"][2]["bytes"]["link"]["rows"], 2 * 40 * 128);
  EXPECT_EQ(json["counters"][2]["rows_fetched"], 80);
}

TEST_F(AttendTest, OptionsThatTheTensorsCannotMeetAreRefusedByName) {
  make({});
  EXPECT_TRUE(refuses([&] { attend("topk:k=301"); }, {"--attn-k 301", "300"}));
  EXPECT_TRUE(refuses([&] { attend("sparq:k=301"); }, {"--attn-k 301", "300"}));
  EXPECT_TRUE(refuses([&] { attend("sparq:r=33"); }, {"--attn-r 33", "32"}));
  EXPECT_TRUE(refuses([&] { attend("lowrank:r=33"); }, {"--attn-r 33", "32"}));
  EXPECT_TRUE(refuses([&] { attend("h2o:k=40"); }, {"h2o", "0 of its 300 tokens"}));
  EXPECT_NO_THROW(attend("topk:k=300"));
}

TEST_F(AttendTest, TensorsThatMakeNoSenseAreRefusedByName) {
  make({});
  const auto refused = [&](std::initializer_list<std::string> parts) {
    return refuses([&] { attend("dense"); }, parts);
  };
  write("I32", [](double x) { return raw(static_cast<std::int32_t>(x)); });
  EXPECT_TRUE(refused({"qkv.safetensors", "q", "I32"}));

  q_[5] = NAN;
  write("F32", [](double x) { return raw(static_cast<float>(x)); });
  EXPECT_TRUE(refused({"qkv.safetensors", "q", "nan", "query 0"}));
  q_[5] = 0;
  int element = 0;
  const int third_key = static_cast<int>(q_.size()) + 2;
  write("F32", [&](double x) { return raw(element++ == third_key ? 70000.f : static_cast<float>(x)); });
  EXPECT_TRUE(refused({"qkv.safetensors", "k", "70000", "[0, 0, 2]", "65504"}));

  const auto write_tensors = [&](std::vector<std::int64_t> q, std::vector<std::int64_t> k,
                                 std::vector<std::int64_t> v) {
    const std::vector<float> zeros(4096, 0.0f);
    std::vector<TensorToWrite> tensors;
    const auto add = [&](const char* name, const std::vector<std::int64_t>& shape) {
      if (shape.empty()) return;
      const auto n =
          static_cast<std::size_t>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
      tensors.push_back({name, "F32", shape, std::as_bytes(std::span(zeros).first(n))});
    };
    add("q", q);
    add("k", k);
    add("v", v);
    write_safetensors(folder_ / "qkv.safetensors", tensors);
  };
  write_tensors({1, 4, 8}, {2, 16, 8}, {});
  EXPECT_TRUE(refused({"qkv.safetensors", "v"}));
  write_tensors({4, 8}, {2, 16, 8}, {2, 16, 8});
  EXPECT_TRUE(refused({"q", "[4, 8]", "[N, Hq, d]"}));
  write_tensors({1, 4, 8}, {2, 0, 8}, {2, 0, 8});
  EXPECT_TRUE(refused({"k", "[2, 0, 8]"}));
  write_tensors({1, 4, 8}, {2, 16, 8}, {2, 15, 8});
  EXPECT_TRUE(refused({"[2, 16, 8]", "[2, 15, 8]"}));
  write_tensors({1, 4, 16}, {2, 16, 8}, {2, 16, 8});
  EXPECT_TRUE(refused({"[1, 4, 16]", "[2, 16, 8]", "head dimensions"}));
  write_tensors({1, 3, 8}, {2, 16, 8}, {2, 16, 8});
  EXPECT_TRUE(refused({"3 query heads", "2 KV heads"}));
  write_tensors({1, 4, 12}, {2, 16, 12}, {2, 16, 12});
  EXPECT_TRUE(refused({"12"})) << "not a multiple of 8";
}

}  // namespace
}  // namespace hayloft::runtime
