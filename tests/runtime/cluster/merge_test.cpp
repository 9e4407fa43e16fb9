#include "runtime/cluster/merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "runtime/cluster/candidates.h"
#include "runtime/cluster/local_ranks.h"

namespace hayloft::runtime::cluster {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

const offload::Threads& threads() {
  static const offload::Threads two{2};
  return two;
}

TEST(MergeAttention, PartsBecomeTheAttentionOverAll) {
  constexpr int d = 8, queries = 5, keys = 40;
  std::mt19937 random(1);
  std::normal_distribution<double> normal(0, 4);
  std::vector<double> scores(queries * keys), values(keys * d);
  for (double& x : scores) x = static_cast<float>(normal(random));
  for (double& x : values) x = static_cast<float>(normal(random));
  for (const int count : {1, 2, 3, 4}) {
    run_local_ranks(count, [&](Communicator& ranks) {
      AttentionParts own(queries, d);
      for (int query = 0; query < queries; ++query) {
        double max = -infinity, sum = 0;
        std::vector<double> weighted(d);
        for (int key = ranks.rank(); key < keys; key += count) max = std::max(max, scores[query * keys + key]);
        for (int key = ranks.rank(); key < keys; key += count) {
          const double p = std::exp(scores[query * keys + key] - max);
          sum += p;
          for (int i = 0; i < d; ++i) weighted[i] += p * values[key * d + i];
        }
        own.max()[query] = static_cast<float>(max);
        own.sum()[query] = static_cast<float>(sum);
        for (int i = 0; i < d; ++i) own.weighted()[query * d + i] = static_cast<float>(weighted[i]);
      }
      std::vector<float> out(queries * d);
      merge_attention(ranks, own, threads(), out.data());
      EXPECT_EQ(ranks.ledger().of(Traffic::attention).sent, count == 1 ? 0 : AttentionParts::bytes(queries, d));
      for (int query = 0; query < queries; ++query) {
        double sum = 0;
        for (int key = 0; key < keys; ++key) sum += std::exp(scores[query * keys + key]);
        for (int i = 0; i < d; ++i) {
          double y = 0;
          for (int key = 0; key < keys; ++key) y += std::exp(scores[query * keys + key]) / sum * values[key * d + i];
          // The error of each rank: a rounding of what it gives, of exp (2e-7) twice, of two products and sums; of
          // values below 16.
          EXPECT_NEAR(out[query * d + i], y, count * 16 * 1e-6);
        }
      }
    });
  }
}

TEST(MergeAttention, ARankThatHasNothingChangesNothing) {
  run_local_ranks(3, [](Communicator& ranks) {
    AttentionParts own(1, 2);
    own.max()[0] = ranks.rank() == 1 ? 3.0f : -infinity;
    own.sum()[0] = ranks.rank() == 1 ? 2.0f : 0.0f;
    own.weighted()[0] = ranks.rank() == 1 ? 1.0f : 0.0f;
    float out[2];
    merge_attention(ranks, own, threads(), out);
    EXPECT_EQ(out[0], 0.5f);
    EXPECT_EQ(out[1], 0.0f);
  });
  run_local_ranks(2, [](Communicator& ranks) {
    AttentionParts own(1, 1);
    own.max()[0] = -infinity;
    float out = 1;
    merge_attention(ranks, own, threads(), &out);
    EXPECT_EQ(out, 0.0f) << "nothing was attended anywhere";
  });
}

float first(int, std::span<const float> logits) {
  return logits.front();
}

TEST(GatheredCandidates, FindsWhatOneSearchOverAllPositionsFinds) {
  constexpr int lists = 3, k = 7, positions = 60;
  std::mt19937 random(2);
  std::vector<float> scores(lists * positions);
  for (float& score : scores) score = static_cast<float>(random() % 12);  // with ties in plenty
  const auto best = [&](int list, int rank, int count) {
    std::vector<std::int32_t> all;
    for (int at = rank; at < positions; at += count) all.push_back(at);
    std::ranges::stable_sort(all,
                             [&](int a, int b) { return scores[list * positions + a] > scores[list * positions + b]; });
    all.resize(k);
    std::ranges::sort(all);
    return all;
  };
  for (const int count : {1, 2, 3, 4}) {
    run_local_ranks(count, [&](Communicator& ranks) {
      Candidates own(lists, 1, k);
      for (int list = 0; list < lists; ++list) {
        const std::vector<std::int32_t> mine = best(list, ranks.rank(), count);
        for (int i = 0; i < k; ++i) {
          own.positions[list * k + i] = mine[i];
          own.logits[list * k + i] = scores[list * positions + mine[i]];
        }
      }
      const Candidates all = GatheredCandidates(ranks, own).best(own.k, first, threads());
      for (int list = 0; list < lists; ++list) {
        const std::vector<std::int32_t> expected = best(list, 0, 1);
        for (int i = 0; i < k; ++i) {
          EXPECT_EQ(all.positions[list * k + i], expected[i]);
          EXPECT_EQ(all.logits[list * k + i], scores[list * positions + expected[i]]);
        }
      }
      if (count > 1) {
        EXPECT_EQ(ranks.ledger().of(Traffic::candidates).sent, Candidates::bytes(lists, 1, k));
      }
    });
  }
}

TEST(GatheredCandidates, RanksWithFewPositionsAndNaNComeLast) {
  run_local_ranks(2, [](Communicator& ranks) {
    Candidates own(1, 1, 3);
    if (ranks.rank() == 0) {
      own.positions = {4, -1, -1};
      own.logits = {nan, 0, 0};
    } else {
      own.positions = {2, 3, 9};
      own.logits = {-5, nan, -infinity};
    }
    const Candidates all = GatheredCandidates(ranks, own).best(own.k, first, threads());
    EXPECT_EQ(all.positions, (std::vector<std::int32_t>{2, 3, 9})) << "of the two with NaN the smaller position";
  });
}

TEST(GatheredCandidates, HeadsThatShareAListRankByTheScoreThatIsAskedFor) {
  run_local_ranks(2, [](Communicator& ranks) {
    Candidates own(1, 2, 2);
    own.positions = ranks.rank() == 0 ? std::vector<std::int32_t>{0, 1} : std::vector<std::int32_t>{2, 3};
    own.logits = ranks.rank() == 0 ? std::vector<float>{1, 5, 1, -9} : std::vector<float>{2, 0, 2, 7};
    const auto sum = [](int, std::span<const float> logits) { return logits[0] + logits[1]; };
    const Candidates all = GatheredCandidates(ranks, own).best(own.k, sum, threads());
    EXPECT_EQ(all.positions, (std::vector<std::int32_t>{2, 3}));
    EXPECT_EQ(all.logits, (std::vector<float>{2, 0, 2, 7}));
  });
}

}  // namespace
}  // namespace hayloft::runtime::cluster
