#include <cstring>

#include "index/scan/attention_mass.h"
#include "runtime/attention/methods/heavy_hitters.h"
#include "tests/support/method_fixture.h"

namespace hayloft::testing {
namespace {

using runtime::HeavyHitters;
using runtime::Kind;
using runtime::Place;

// H2O in double, by its definition: what is kept of one KV head, with what attention it has gathered.
class ReferenceHead {
 public:
  ReferenceHead(const RandomCache& cache, int head) : cache_(cache), head_(head) {}

  // Position t, and behind it nothing yet, for queries [g][d] that sit at `query`.
  void take_in(std::int64_t t) { mass_.emplace_back(t, 0.0); }

  void gather(const float* q, int group, std::int64_t at) {
    const int d = cache_.shape().head_dim;
    for (int h = 0; h < group; ++h) {
      std::vector<double> p;
      double sum = 0;
      for (const auto& [t, mass] : mass_) {
        if (t > at) break;
        p.push_back(std::exp(dot(cache_, head_, t, q + h * d) / std::sqrt(static_cast<double>(d))));
        sum += p.back();
      }
      for (std::size_t i = 0; i < p.size(); ++i) mass_[i].second += p[i] / sum;
    }
  }

  void evict(std::int64_t k, std::int64_t recent) {
    while (static_cast<std::int64_t>(mass_.size()) > k) {
      const auto lightest = std::min_element(mass_.begin(), mass_.end() - recent,
                                             [](const auto& a, const auto& b) { return a.second < b.second; });
      mass_.erase(lightest);
    }
  }

  std::vector<std::int64_t> positions() const {
    std::vector<std::int64_t> positions;
    for (const auto& [t, mass] : mass_) positions.push_back(t);
    return positions;
  }

 private:
  const RandomCache& cache_;
  int head_;
  std::vector<std::pair<std::int64_t, double>> mass_;
};

// A prompt of random keys and queries, all of it in the tail, read chunk by chunk and then decoded token by token.
class H2OTest : public MethodTest {
 protected:
  static constexpr int d = 32, heads = 2, group = 2, prompt = 150, decoded = 10;

  H2OTest() {
    make({.kv_heads = heads, .head_dim = d, .tail = prompt + decoded, .seed = 12}, group);
    queries = normal(static_cast<std::size_t>((prompt + decoded) * query_heads * d), 13, 2);
  }

  gpu::CacheView view_at(std::int64_t tokens) {
    gpu::CacheView view = cache->view();
    view.tail.tokens = tokens;
    return view;
  }
  const float* queries_at(std::int64_t t) const { return queries.data() + t * query_heads * d; }

  void read(runtime::MethodState& state, int begin, int end, int chunk) {
    for (int at = begin; at < end; at += chunk) {
      const int T = std::min(chunk, end - at);
      ASSERT_EQ(state.wants_queries(0, T), T);
      state.see_queries(view_at(at + T), queries_at(at), T);
    }
  }

  Output step(const runtime::Method& method, runtime::MethodState& state, std::int64_t position) {
    q.assign(queries_at(position), queries_at(position + 1));
    Output output;
    output.y.resize(q.size());
    const gpu::CacheView before = view_at(position);
    state.sync_with_cache({&before, 1}, {});
    const gpu::CacheView view = view_at(position + 1);
    take_step(method, &state, view, *runtime::local_attender(), output);
    return output;
  }

  std::unique_ptr<runtime::MethodState> make_state(const runtime::Method& method) {
    return method.make_state({1, query_heads, heads, d}, *backend);
  }

  std::vector<float> queries;  // [prompt + decoded][Hq][d]
};

TEST_F(H2OTest, MassIsTheSumOfEveryQuerysSoftmax) {
  // 300 queries, the i-th of which sees i + 41 keys.
  constexpr std::int64_t n = 300, keys = 340, stride = 352;
  const std::vector<float> k = normal(keys * d, 1);
  const std::vector<float> weights = normal(n * d, 2, 0.5f);
  std::vector<f16> columns(d * stride);
  for (std::int64_t t = 0; t < keys; ++t) {
    for (int c = 0; c < d; ++c) columns[static_cast<std::size_t>(c * stride + t)] = to_f16(k[t * d + c]);
  }
  std::vector<std::int64_t> visible;
  for (std::int64_t i = 0; i < n; ++i) visible.push_back(i + 41);
  std::vector<double> mass(keys, 1.0);
  index::add_attention_mass({columns.data(), stride, d, weights.data(), n, visible.data()}, threads, mass);

  std::vector<double> expected(keys, 1.0);
  for (std::int64_t i = 0; i < n; ++i) {
    std::vector<double> p;
    double sum = 0;
    for (std::int64_t t = 0; t < visible[static_cast<std::size_t>(i)]; ++t) {
      double s = 0;
      for (int c = 0; c < d; ++c) s += weights[i * d + c] * to_float(columns[static_cast<std::size_t>(c * stride + t)]);
      p.push_back(std::exp(s));
      sum += p.back();
    }
    for (std::size_t t = 0; t < p.size(); ++t) expected[t] += p[t] / sum;
  }
  // Logits below 20 of 32 products in f32, and exp: every share is off by some 1e-5 of itself.
  for (std::size_t t = 0; t < keys; ++t) EXPECT_NEAR(mass[t], expected[t], 2e-5 * expected[t]) << t;
}

TEST_F(H2OTest, KeepsWhatItsDefinitionKeepsWhateverTheChunk) {
  for (const int chunk : {1, 7, 64, 150}) {
    SCOPED_TRACE(chunk);
    const auto made = method("h2o:k=24:recent=0.25");
    const auto state = make_state(*made);
    std::vector<ReferenceHead> reference;
    for (int head = 0; head < heads; ++head) reference.emplace_back(*cache, head);
    const auto expect_kept = [&](std::int64_t tokens) {
      const auto positions = static_cast<HeavyHitters&>(*state).positions(0);
      std::vector<std::int64_t> expected;
      for (const ReferenceHead& head : reference) {
        const auto kept = head.positions();
        expected.insert(expected.end(), kept.begin(), kept.end());
      }
      EXPECT_EQ(std::vector<std::int64_t>(positions.begin(), positions.end()), expected) << "of " << tokens;
    };
    for (int at = 0; at < prompt; at += chunk) {
      const int end = std::min(at + chunk, prompt);
      read(*state, at, end, chunk);
      for (int head = 0; head < heads; ++head) {
        for (int t = at; t < end; ++t) reference[head].take_in(t);
        for (int t = at; t < end; ++t) reference[head].gather(queries_at(t) + head * group * d, group, t);
        reference[head].evict(24, 6);
      }
      expect_kept(end);
    }
    for (int t = prompt; t < prompt + decoded; ++t) {
      const Output output = step(*made, *state, t);
      for (int head = 0; head < heads; ++head) {
        reference[head].take_in(t);
        reference[head].evict(24, 6);
        reference[head].gather(queries_at(t) + head * group * d, group, t);
      }
      expect_kept(t + 1);
      EXPECT_EQ(output.trace.k, 24);
      expect_consistent(output, false);
    }
  }
}

TEST_F(H2OTest, WhatIsEvictedStaysAway) {
  const auto made = method("h2o:k=16");
  const auto state = make_state(*made);
  const auto& kept = static_cast<const HeavyHitters&>(*state);
  read(*state, 0, prompt, 50);
  const auto before = kept.positions(0);
  for (int t = prompt; t < prompt + decoded; ++t) {
    step(*made, *state, t);
    const auto now = kept.positions(0);
    for (int head = 0; head < heads; ++head) {
      for (int i = 0; i < 16; ++i) {
        const std::int32_t p = now[static_cast<std::size_t>(head * 16 + i)];
        EXPECT_TRUE(p >= prompt || std::binary_search(before.begin() + head * 16, before.begin() + (head + 1) * 16, p));
      }
    }
  }
}

TEST_F(H2OTest, AsManyAsThereAreIsDense) {
  const auto made = method("h2o:k=1000");
  const auto state = make_state(*made);
  read(*state, 0, prompt, 64);
  const Output output = step(*made, *state, prompt);
  EXPECT_EQ(attended(output, 0), range(0, prompt + 1));
  expect_consistent(output, false);
}

TEST_F(H2OTest, ASharesCountGrowsWithTheSequence) {
  const auto made = method("h2o:k=10%");
  const auto state = make_state(*made);
  read(*state, 0, prompt, 64);
  EXPECT_EQ(static_cast<HeavyHitters&>(*state).kept(0), 15);
  EXPECT_EQ(step(*made, *state, prompt).trace.k, 16) << "a tenth of 151, rounded up";
}

TEST_F(H2OTest, NothingRecentButTheNewestTokenItself) {
  const auto made = method("h2o:k=4:recent=0");
  const auto state = make_state(*made);
  read(*state, 0, prompt, 64);
  const Output output = step(*made, *state, prompt);
  EXPECT_EQ(attended(output, 0).back(), prompt);
}

TEST_F(H2OTest, ForksGoTheirOwnWays) {
  const auto made = method("h2o:k=24");
  const auto state = make_state(*made);
  read(*state, 0, prompt, 64);
  const auto fork = state->fork();
  const std::vector<float> first = step(*made, *state, prompt).y;
  for (int t = prompt + 1; t < prompt + decoded; ++t) step(*made, *state, t);
  EXPECT_EQ(step(*made, *fork, prompt).y, first);
}

TEST_F(H2OTest, WhatWasSavedGoesOnWhereItWas) {
  const auto made = method("h2o:k=24");
  const runtime::AttentionShape shape{1, query_heads, heads, d};
  const auto state = make_state(*made);
  read(*state, 0, prompt, 64);
  const std::vector<std::byte> saved = state->save();
  const auto loaded = made->load_state(shape, *backend, saved);
  EXPECT_EQ(loaded->save(), saved);
  for (int t = prompt; t < prompt + decoded; ++t) EXPECT_EQ(step(*made, *loaded, t).y, step(*made, *state, t).y);
}

TEST_F(H2OTest, WhatWasSavedIsRefusedWhereItIsDamagedOrOfAnotherModel) {
  const auto made = method("h2o:k=24");
  const runtime::AttentionShape shape{1, query_heads, heads, d};
  const auto state = make_state(*made);
  read(*state, 0, 60, 64);
  const std::vector<std::byte> saved = state->save();
  const auto load = [&](const std::vector<std::byte>& bytes) { made->load_state(shape, *backend, bytes); };
  for (std::size_t size = 0; size < saved.size(); size += 7) {
    EXPECT_THROW(load({saved.begin(), saved.begin() + static_cast<std::ptrdiff_t>(size)}), Error) << size;
  }
  std::vector<std::byte> longer = saved;
  longer.push_back({});
  EXPECT_THROW(load(longer), Error);
  EXPECT_THROW(made->load_state({2, query_heads, heads, d}, *backend, saved), Error);

  constexpr std::size_t name = 4, seen = 21, kept = 29, positions = 37;
  const auto with = [&](std::size_t at, auto value) {
    std::vector<std::byte> bytes = saved;
    std::memcpy(bytes.data() + at, &value, sizeof value);
    return bytes;
  };
  EXPECT_THROW(load(with(name, 'x')), Error);
  EXPECT_THROW(load(with(seen, std::int64_t{23})), Error) << "fewer than it kept";
  EXPECT_THROW(load(with(kept, std::int64_t{-1})), Error);
  EXPECT_THROW(load(with(kept, std::int64_t{1} << 60)), Error);
  EXPECT_THROW(load(with(positions, std::int32_t{-1})), Error);
  EXPECT_THROW(load(with(positions + 4 * 23, std::int32_t{60})), Error) << "a position that it has not seen";
  EXPECT_THROW(load(with(positions + 4, std::int32_t{0})), Error) << "not ascending";
  EXPECT_THROW(load(with(positions + 4 * 24, std::nan(""))), Error) << "mass";
}

TEST_F(H2OTest, AContextThatItDidNotWatchIsRefused) {
  const auto made = method("h2o:k=24");
  const gpu::CacheView view = view_at(prompt);
  const auto none = make_state(*made);
  EXPECT_THROW(none->sync_with_cache({&view, 1}, {}), Error);
  const auto gap = make_state(*made);
  read(*gap, 0, 50, 50);
  read(*gap, 60, prompt, 50);
  EXPECT_THROW(gap->sync_with_cache({&view, 1}, {}), Error);
  const auto whole = make_state(*made);
  read(*whole, 0, prompt, 50);
  EXPECT_NO_THROW(whole->sync_with_cache({&view, 1}, {}));
  step(*made, *whole, prompt);
  EXPECT_THROW(step(*made, *whole, prompt + 2), Error) << "another method decoded in between";
}

TEST_F(H2OTest, CountsAsThePaperDoesAndReadsItsOwnRows) {
  const auto made = method("h2o:k=24");
  const auto state = make_state(*made);
  read(*state, 0, prompt, 64);
  const Output output = step(*made, *state, prompt);
  EXPECT_EQ(output.counters.elements, heads * (2 * 24 * d + 2 * d + 2 * (prompt + 1)));
  EXPECT_EQ(output.counters.at(Place::near, Kind::rows), heads * 24 * 4 * d);
  EXPECT_EQ(output.counters.total(Place::link), 0u);
  EXPECT_EQ(output.counters.rows_fetched, heads * 24);
}

}  // namespace
}  // namespace hayloft::testing
