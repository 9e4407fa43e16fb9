#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "tests/support/cpu_cache.h"
#include "tests/support/sparq_oracle.h"

namespace hayloft::testing {

// SparQ Attention, appendix B (arXiv 2312.04985), in double, for one KV head and its group. Scores of all positions, in
// the store by the keys its columns hold; choosing and attending follow from them.
struct SparqScores {
  std::vector<int> components;             // i1
  std::vector<std::vector<double>> share;  // s-hat: the approximate softmax over all positions, [g][S]
  std::vector<double> score;               // what the positions are ranked by, [S]
  double score_error = 0;                  // of an f32 evaluation of `score`

  // bits: planes read in place of `rank` whole components; 0: none.
  SparqScores(const RandomCache& cache, int head, const float* q, int group, int rank, index::GroupRule rule,
              index::Temperature temperature = index::Temperature::coverage, int bits = 0) {
    constexpr double eps = std::numeric_limits<float>::epsilon();
    const int d = cache.shape().head_dim;
    const std::int64_t S = cache.tokens();
    std::vector<int> planes(static_cast<std::size_t>(d), offload::plane_count);
    if (bits > 0) {
      choose_planes(cache, head, q, group, bits, planes);
      rank = static_cast<int>(components.size());
    } else {
      components = sparq_oracle_components(q, group, d, rank);
    }

    score.assign(static_cast<std::size_t>(S), 0.0);
    double relative_error = 0;
    for (int h = 0; h < group; ++h) {
      const double tau = sparq_oracle_temperature(q + h * d, d, components, temperature);
      std::vector<double> s(static_cast<std::size_t>(S));
      double error = 0;
      for (std::int64_t t = 0; t < S; ++t) {
        double sum = 0;
        double size = 0;
        double rounding = 0;  // of the weights of planes
        for (const int i : components) {
          const int read = planes[static_cast<std::size_t>(i)];
          const double key = cache.searched_key(head, t, i, read);
          sum += q[h * d + i] * key;
          size += std::fabs(q[h * d + i] * key);
          rounding += (1 << read) - 1;
        }
        s[static_cast<std::size_t>(t)] = sum / tau;
        error = std::max(error, (rank + 4) * eps / 2 * size / tau);
        if (cache.shape().columns != offload::ColumnFormat::planes || t >= cache.shape().stored) continue;
        // index/scan/columns/plane_weights.h: half a unit of each level, of what is at most the sum of |w| half.
        double reach = 0;
        for (const int i : components) reach += std::fabs(q[h * d + i]) * cache.half_range(head, t, i);
        error = std::max(error, (rank + 4) * eps * (size + reach) / tau +
                                    rounding / 2 * reach / tau / (d <= 256 ? 30720 : 28672) * 1.01);
      }
      const double largest = *std::max_element(s.begin(), s.end());
      const double smallest = *std::min_element(s.begin(), s.end());
      std::vector<double> p(s.size());
      double sum = 0;
      for (std::size_t t = 0; t < s.size(); ++t) sum += p[t] = std::exp(s[t] - largest);
      for (double& x : p) x /= sum;
      for (std::size_t t = 0; t < s.size(); ++t) score[t] += rule == index::GroupRule::softmax ? p[t] : s[t];
      share.push_back(p);
      // A logit's error is a share's relative error, twice because the normaliser has it too.
      relative_error = std::max(relative_error, 2 * error + 1e-6 + eps * (largest - smallest));
      if (rule == index::GroupRule::logits) score_error += error;
    }
    if (rule == index::GroupRule::softmax) {
      score_error = relative_error * *std::max_element(score.begin(), score.end());
    }
    share_error = relative_error;
  }

  void choose_planes(const RandomCache& cache, int head, const float* q, int group, int bits,
                     std::vector<int>& planes) {
    const int d = cache.shape().head_dim, most = index::plane_rank(d, bits);
    std::vector<std::int32_t> chosen(static_cast<std::size_t>(most));
    std::vector<std::uint8_t> read(chosen.size());
    index::plane_components(q, group, d, cache.stored().spread.data() + head * d, bits, chosen.data(), read.data());
    for (std::size_t j = 0; j < chosen.size() && read[j] > 0; ++j) {
      components.push_back(chosen[j]);
      planes[static_cast<std::size_t>(chosen[j])] = read[j];
    }
  }

  double share_error = 0;  // relative, of an f32 evaluation of a sum of shares
};

// The list is k ascending positions of [0, limit), and nothing outside it beats anything inside it by more than f32
// can tell.
inline void expect_top(const std::vector<double>& score, double error, std::int64_t limit, const std::int32_t* list,
                       int k) {
  double worst_inside = std::numeric_limits<double>::infinity();
  for (int i = 0; i < k; ++i) {
    ASSERT_TRUE(list[i] >= 0 && list[i] < limit);
    if (i > 0) {
      ASSERT_LT(list[i - 1], list[i]);
    }
    worst_inside = std::min(worst_inside, score[static_cast<std::size_t>(list[i])]);
  }
  const std::set<std::int32_t> chosen(list, list + k);
  for (std::int64_t t = 0; t < limit; ++t) {
    if (!chosen.contains(static_cast<std::int32_t>(t))) {
      ASSERT_LE(score[static_cast<std::size_t>(t)], worst_inside + 2 * error) << "position " << t;
    }
  }
}

}  // namespace hayloft::testing
