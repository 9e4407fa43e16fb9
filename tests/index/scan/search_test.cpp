#include "index/scan/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "index/scan/columns/plane_weights.h"
#include "tests/index/scan/search_fixture.h"
#include "tests/support/each_target.h"
#include "tests/support/parameter_name.h"

namespace hayloft::index {
namespace {

using namespace hayloft::testing;

const Shape shapes[] = {
    {1, 1, 8, 1, 16, 16},          {2, 1, 8, 8, 16, 1000},       {1, 2, 16, 5, 32, 2999},
    {2, 4, 64, 16, 64, 4097},      {1, 7, 64, 13, 128, 5000},    {1, 8, 80, 30, 512, 3000},
    {2, 4, 128, 16, 1024, 9000},   {1, 16, 128, 33, 2048, 3333}, {1, 4, 128, 128, 4096, 12345},
    {1, 1, 256, 256, 4096, 12288}, {2, 3, 24, 6, 4096, 70},      {1, 20, 32, 32, 256, 2000},
    {1, 3, 512, 512, 1024, 5000},  {1, 2, 64, 31, 1024, 5000},
};

class ColumnSearchShapes : public ::testing::TestWithParam<Shape> {
 protected:
  Shape shape = GetParam();
  HandmadeLayer layer{store_shape(shape), shape.tokens, bell_keys(7)};
  Query query{shape, 11, 2.0f};
};

std::vector<Shape> shapes_in_every_format() {
  std::vector<Shape> all;
  for (const auto format : offload::all_column_formats()) {
    for (Shape shape : shapes) {
      shape.columns = format;
      all.push_back(shape);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, ColumnSearchShapes, ::testing::ValuesIn(shapes_in_every_format()), test::by_value);

// Returns what plane_weights.h says, by its scalar functions.
float plane_score(const HandmadeLayer& layer, const Query& query, int h, std::int64_t t) {
  const int rank = query.shape.rank, head = h / query.shape.group;
  std::vector<float> terms;
  float bound = 0, base = 0;
  const auto each = [&](const auto& use) {
    for (int j = 0; j < rank && query.planes_of(head, j) > 0; ++j) {
      use(query.components[static_cast<std::size_t>(head * rank + j)], query.planes_of(head, j), j);
    }
  };
  each([&](int c, int planes, int j) {
    const float w = query.weights[static_cast<std::size_t>(h * rank + j)];
    terms.push_back(plane_term(w, layer.range(head, t, c), planes, bound, base));
  });
  const PlaneScale scale = plane_scale(bound, base, static_cast<int>(terms.size()));
  int sum = 0;
  each([&](int c, int planes, int j) {
    const int level = 2 * (layer.code(head, t, c) >> (offload::plane_count - planes)) + 1 - (1 << planes);
    sum += plane_weight(terms[static_cast<std::size_t>(j)], scale) * level;
  });
  EXPECT_LT(std::abs(sum), 1 << 15);
  return std::fma(scale.unit, static_cast<float>(sum), scale.base);
}

TEST_P(ColumnSearchShapes, ScoresAreInnerProductsOverTheChosenComponents) {
  const ColumnSearch search = query.search(shape.tokens, 1, GroupRule::softmax, SelectPer::query_head);
  const auto logits = all_logits(layer, search);
  for (int h = 0; h < query.query_heads(); ++h) {
    const int head = h / shape.group;
    for (std::int64_t t = 0; t < shape.tokens; ++t) {
      if (in_planes(shape.columns)) {
        ASSERT_EQ(logits[static_cast<std::size_t>(h)][static_cast<std::size_t>(t)], plane_score(layer, query, h, t))
            << "query head " << h << ", position " << t;
        continue;
      }
      double exact = 0;
      double magnitude = 0;
      for (int j = 0; j < shape.rank; ++j) {
        const double product =
            static_cast<double>(query.weights[static_cast<std::size_t>(h * shape.rank + j)]) *
            layer.column_key(head, t, query.components[static_cast<std::size_t>(head * shape.rank + j)]);
        exact += product;
        magnitude += std::abs(product);
      }
      // r roundings, each relative to a partial sum that is at most the sum of magnitudes.
      ASSERT_NEAR(logits[static_cast<std::size_t>(h)][static_cast<std::size_t>(t)], exact,
                  shape.rank * 0x1p-24 * magnitude)
          << "query head " << h << ", position " << t;
    }
  }
}

TEST_P(ColumnSearchShapes, AListPerQueryHeadIsThatOfRankingEveryScore) {
  const std::int64_t limit = shape.tokens - shape.tokens / 10;
  for (const int k : {1, static_cast<int>(std::min<std::int64_t>(37, limit)), static_cast<int>(limit)}) {
    const ColumnSearch search = query.search(limit, k, GroupRule::softmax, SelectPer::query_head);
    const auto logits = all_logits(layer, search);
    const Found found = find(layer, search);
    for (int h = 0; h < query.query_heads(); ++h) {
      EXPECT_EQ(list_of(found, h, k), rank_all(logits[static_cast<std::size_t>(h)], limit, k))
          << "query head " << h << ", k " << k;
    }
  }
}

TEST_P(ColumnSearchShapes, AListPerKvHeadRanksTheSummedLogits) {
  const std::int64_t limit = shape.tokens - shape.tokens / 10;
  for (const int k : {1, static_cast<int>(std::min<std::int64_t>(37, limit)), static_cast<int>(limit)}) {
    const ColumnSearch search = query.search(limit, k, GroupRule::logits, SelectPer::kv_head);
    const auto logits = all_logits(layer, search);
    const Found found = find(layer, search);
    for (int head = 0; head < shape.kv_heads; ++head) {
      std::vector<float> sum = logits[static_cast<std::size_t>(head * shape.group)];
      for (int h = 1; h < shape.group; ++h) {
        for (std::size_t t = 0; t < sum.size(); ++t) {
          sum[t] += logits[static_cast<std::size_t>(head * shape.group + h)][t];
        }
      }
      EXPECT_EQ(list_of(found, head, k), rank_all(sum, limit, k)) << "KV head " << head << ", k " << k;
    }
  }
}

TEST_P(ColumnSearchShapes, AListPerKvHeadRanksTheSummedSoftmaxes) {
  const std::int64_t limit = shape.tokens - shape.tokens / 10;
  for (const int k : {1, static_cast<int>(std::min<std::int64_t>(37, limit)), static_cast<int>(limit)}) {
    const ColumnSearch search = query.search(limit, k, GroupRule::softmax, SelectPer::kv_head);
    const auto logits = all_logits(layer, search);
    const Found found = find(layer, search);
    for (int head = 0; head < shape.kv_heads; ++head) {
      expect_chosen(list_of(found, head, k), softmax_scores(logits, head * shape.group, shape.group), limit,
                    softmax_error(shape.group));
    }
  }
}

TEST_P(ColumnSearchShapes, ReturnsTheSoftmaxOverOutsideAndStoreAndTheMassOfWhatIsAttended) {
  const std::int64_t limit = shape.tokens - shape.tokens / 10;
  const int k = static_cast<int>(std::min<std::int64_t>(37, limit));
  for (const SelectPer per : {SelectPer::kv_head, SelectPer::query_head}) {
    const ColumnSearch search = query.search(limit, k, GroupRule::softmax, per);
    const auto logits = all_logits(layer, search);
    for (const float outside_max : {-infinity, 0.5f, 30.0f}) {
      const float outside_sum = outside_max == -infinity ? 0.0f : 2.5f;
      const Found found = find(layer, search, offload::Threads(2), outside_max, outside_sum);
      for (int h = 0; h < query.query_heads(); ++h) {
        const auto i = static_cast<std::size_t>(h);
        const float max = std::max(outside_max, *std::max_element(logits[i].begin(), logits[i].end()));
        double sum = outside_sum == 0 ? 0 : outside_sum * std::exp(static_cast<double>(outside_max) - max);
        for (const float s : logits[i]) sum += std::exp(static_cast<double>(s) - max);
        double mass = 0;
        for (const std::int32_t p : list_of(found, per == SelectPer::kv_head ? h / shape.group : h, k)) {
          mass += std::exp(static_cast<double>(logits[i][static_cast<std::size_t>(p)]) - max);
        }
        for (auto t = static_cast<std::size_t>(limit); t < logits[i].size(); ++t) {
          mass += std::exp(static_cast<double>(logits[i][t]) - max);
        }
        EXPECT_EQ(found.max[i], max);
        // exp: 2e-7 and, for differences up to 10 where nearly all of the sum lies, 10 * 2^-23; 20 levels of additions.
        const double error = 2e-7 + 10 * 0x1p-23 + 20 * 0x1p-24;
        EXPECT_NEAR(found.sum[i], sum, error * sum);
        // The outside maximum of 30 makes the differences that large.
        EXPECT_NEAR(found.mass[i], mass, (error + 40 * 0x1p-23) * mass + 1e-30);
      }
    }
  }
}

TEST_P(ColumnSearchShapes, DoesNotDependOnTheNumberOfThreads) {
  const int k = static_cast<int>(std::min<std::int64_t>(37, shape.tokens));
  for (const GroupRule rule : {GroupRule::softmax, GroupRule::logits}) {
    for (const SelectPer per : {SelectPer::kv_head, SelectPer::query_head}) {
      const ColumnSearch search = query.search(shape.tokens, k, rule, per);
      EXPECT_EQ(find(layer, search, offload::Threads(1)), find(layer, search, offload::Threads(5)));
    }
  }
}

TEST_P(ColumnSearchShapes, EveryInstructionSetFindsTheSame) {
  const int k = static_cast<int>(std::min<std::int64_t>(37, shape.tokens));
  for (const auto& [rule, per] :
       {std::pair{GroupRule::softmax, SelectPer::kv_head}, std::pair{GroupRule::logits, SelectPer::kv_head},
        std::pair{GroupRule::softmax, SelectPer::query_head}}) {
    const ColumnSearch search = query.search(shape.tokens, k, rule, per);
    const Found best = find(layer, search);
    const auto best_logits = all_logits(layer, search);
    for (std::int64_t targets = hwy::SupportedTargets(); targets != 0; targets &= targets - 1) {
      test::choose_target(targets & -targets);
      const Found found = find(layer, search);
      const auto logits = all_logits(layer, search);
      test::choose_target(0);
      EXPECT_EQ(logits, best_logits) << hwy::TargetName(targets & -targets);
      EXPECT_EQ(found.positions, best.positions) << hwy::TargetName(targets & -targets);
      EXPECT_EQ(found.max, best.max);
    }
  }
}

// A code of p planes is as far from a key as its cell is wide, and as shrinking moves what stands for it.
TEST_P(ColumnSearchShapes, AScoreIsOffTheExactOneByHalfAScalePerComponentAtMost) {
  constexpr double off_by[] = {1, 0.625, 0.34375, 0.125, 0.0625};  // of half a range, with so many planes
  const ColumnSearch search = query.search(shape.tokens, 1, GroupRule::softmax, SelectPer::query_head);
  const auto logits = all_logits(layer, search);
  for (int h = 0; h < query.query_heads(); ++h) {
    const int head = h / shape.group;
    for (std::int64_t t = 0; t < shape.tokens; ++t) {
      double exact = 0;
      double quantisation = 0;
      double magnitude = 0;
      double reach = 0;
      double levels = 0;
      for (int j = 0; j < shape.rank; ++j) {
        const int planes = query.planes_of(head, j);
        if (planes == 0) continue;
        const int c = query.components[static_cast<std::size_t>(head * shape.rank + j)];
        const double w = query.weights[static_cast<std::size_t>(h * shape.rank + j)];
        exact += w * to_float(layer.view().row(head, t, nullptr)[c]);
        const double key = layer.column_key(head, t, c, planes);
        magnitude += std::abs(w * key);
        if (in_planes(shape.columns)) {
          // Weights are rounded to a 30720th of the sum of |w| half, at most, times a level of 15.
          const double half = to_float(layer.range(head, t, c).half);
          quantisation += std::abs(w) * half * off_by[planes];
          reach += std::abs(w) * half;
          levels += (1 << planes) - 1;
        } else if (is_scaled(shape.columns)) {
          quantisation += std::abs(w) * to_float(layer.scale(head, t, c)) / 2;
        }
      }
      quantisation += 0.5 * levels * reach / plane_units(shape.rank) * (1 + 0x1p-7) + 0x1p-22 * (reach + magnitude);
      // The error that quantise.h says of a key, and r roundings of the sum.
      ASSERT_NEAR(logits[static_cast<std::size_t>(h)][static_cast<std::size_t>(t)], exact,
                  quantisation + shape.rank * 0x1p-24 * magnitude)
          << "query head " << h << ", position " << t;
    }
  }
}

TEST_P(ColumnSearchShapes, TheRowsGiveWhatF16ColumnsGive) {
  const HandmadeLayer f16_layer(
      {.layers = 1, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim, .block_tokens = shape.block_tokens},
      shape.tokens, bell_keys(7));
  const std::int64_t limit = shape.tokens - shape.tokens / 10;
  const int k = static_cast<int>(std::min<std::int64_t>(37, limit));
  for (const auto& [rule, per] :
       {std::pair{GroupRule::softmax, SelectPer::kv_head}, std::pair{GroupRule::logits, SelectPer::kv_head},
        std::pair{GroupRule::softmax, SelectPer::query_head}}) {
    ColumnSearch search = query.search(limit, k, rule, per);
    const auto want_logits = all_logits(f16_layer, search);
    const Found want = find(f16_layer, search);
    search.keys = KeySource::rows;
    EXPECT_EQ(all_logits(layer, search), want_logits);
    const Found found = find(layer, search);
    EXPECT_EQ(found.max, want.max);
    if (rule == GroupRule::softmax && per == SelectPer::kv_head) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        expect_chosen(list_of(found, head, k), softmax_scores(want_logits, head * shape.group, shape.group), limit,
                      softmax_error(shape.group));
      }
    } else {
      EXPECT_EQ(found.positions, want.positions);
    }
  }
}

TEST_P(ColumnSearchShapes, ScoresTheSameBitsFromAnyStartOf64Tokens) {
  const ColumnSearch search = query.search(shape.tokens, 1, GroupRule::softmax, SelectPer::query_head);
  const auto logits = all_logits(layer, search);
  const std::int64_t last = (shape.tokens - 1) / 64 * 64;
  for (const std::int64_t begin : {std::int64_t{0}, last / 128 * 64, last}) {
    for (const std::int64_t end : {begin + 1, std::min(begin + 640, shape.tokens), shape.tokens}) {
      const std::int64_t n = end - begin;
      std::vector<float> out(static_cast<std::size_t>(shape.group * n));
      score_columns(layer.view(), search, 0, begin, end, out.data());
      for (int h = 0; h < shape.group; ++h) {
        for (std::int64_t t = 0; t < n; ++t) {
          ASSERT_EQ(out[static_cast<std::size_t>(h * n + t)],
                    logits[static_cast<std::size_t>(h)][static_cast<std::size_t>(begin + t)])
              << begin << " to " << end;
        }
      }
    }
  }
}

}  // namespace
}  // namespace hayloft::index
