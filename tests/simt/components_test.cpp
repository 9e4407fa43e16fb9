#include "gpu/cuda/kernels/select/components.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>

#include "index/scan/sparq_query.h"
#include "tests/simt/stream_fixture.h"

// The device's choice of components and planes is the host's, to the bit, whatever the numbers are.
namespace hayloft::simt {
namespace {

using gpu::TailView;
using gpu::cuda::ComponentChoice;
constexpr int kv_heads = 3;

class ComponentsTest : public StreamTest {
 protected:
  template <class T>
  T* upload(const std::vector<T>& values) {
    T* const data = on_device<T>(values.size());
    EXPECT_EQ(cudaMemcpyAsync(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    return data;
  }

  // q f32 [Hkv][group][d], spread f32 [Hkv][d] or empty.
  void expect_like_host(const std::vector<float>& q, int group, int head_dim, const std::vector<float>& spread,
                        int bits, int rank) {
    SCOPED_TRACE(::testing::Message() << "d=" << head_dim << " g=" << group << " bits=" << bits << " r=" << rank);
    if (bits > 0) rank = index::plane_rank(head_dim, bits);
    const auto all = static_cast<std::size_t>(kv_heads * rank);
    const auto heads = static_cast<std::size_t>(group);
    ComponentChoice choice;
    choice.rank = rank;
    choice.bits = bits;
    if (!spread.empty()) choice.spread = upload(spread);
    auto* const components = on_device<std::int32_t>(all);
    auto* const planes = on_device<std::int32_t>(all);
    auto* const weights = on_device<float>(all * heads);
    gpu::cuda::choose_components(upload(q), kv_heads, group, head_dim, choice, {}, components, planes, weights, stream);
    const std::vector<std::int32_t> chosen = to_host(components, all);
    const std::vector<std::int32_t> read = to_host(planes, all);
    const std::vector<float> weighted = to_host(weights, all * heads);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);

    std::vector<std::int32_t> expected(static_cast<std::size_t>(rank));
    std::vector<std::uint8_t> expected_planes(expected.size());
    for (int head = 0; head < kv_heads; ++head) {
      const float* const own = q.data() + head * group * head_dim;
      const float* const of_head = spread.empty() ? nullptr : spread.data() + head * head_dim;
      if (bits > 0) {
        index::plane_components(own, group, head_dim, of_head, bits, expected.data(), expected_planes.data());
      } else {
        index::sparq_components(own, group, head_dim, of_head, rank, expected.data());
      }
      for (int j = 0; j < rank; ++j) {
        const auto at = static_cast<std::size_t>(head * rank + j), own_at = static_cast<std::size_t>(j);
        ASSERT_EQ(chosen[at], expected[own_at]) << head << " " << j;
        if (bits == 0) continue;
        ASSERT_EQ(read[at], expected_planes[own_at]) << head << " " << j;
        for (int h = 0; h < group && read[at] == 0; ++h) {
          EXPECT_EQ(weighted[static_cast<std::size_t>((head * group + h) * rank + j)], 0.0f);
        }
      }
    }
  }

  bool scores_the_tail_as_its_own_kernel_does(int group, int head_dim, int rank);

  // Returns so many numbers, of which `kinds` are different, so that there are ties.
  std::vector<float> numbers(std::size_t count, const std::vector<float>& kinds) {
    std::vector<float> values(count);
    for (float& value : values) value = kinds[random_() % kinds.size()];
    return values;
  }
  std::vector<float> normal(std::size_t count, float scale) {
    std::normal_distribution<float> distribution(0, scale);
    std::vector<float> values(count);
    for (float& value : values) value = distribution(random_);
    return values;
  }

  std::mt19937 random_{7};
};

TEST_F(ComponentsTest, PlanesGoWhereTheHostSendsThem) {
  for (const int d : {8, 80, 128, 256, 264, 512}) {
    for (const int group : {1, 4, 7}) {
      const auto n = static_cast<std::size_t>(kv_heads * d);
      const std::vector<float> q = normal(n * static_cast<std::size_t>(group), 1);
      std::vector<float> spread = normal(n, 3);
      for (float& s : spread) s = std::fabs(s);
      for (const int bits : {1, 2, 16, 32, 64, 2 * d, 4 * d}) expect_like_host(q, group, d, spread, bits, 0);
      expect_like_host(q, group, d, {}, 32, 0);
      for (const int rank : {1, 5, d}) {
        expect_like_host(q, group, d, spread, 0, rank);
        expect_like_host(q, group, d, {}, 0, rank);
      }
    }
  }
}

// Scores the tail where components are chosen, and by a kernel of its own; returns whether the former was done.
bool ComponentsTest::scores_the_tail_as_its_own_kernel_does(int group, int head_dim, int rank) {
  const std::int64_t tokens = 300, capacity = 320, stride = 4;
  const int scored = kv_heads - 1;  // KV heads
  ComponentChoice choice;
  choice.rank = rank;
  const auto heads = static_cast<std::size_t>(kv_heads * group);
  const float* const q = upload(normal(heads * static_cast<std::size_t>(head_dim), 1));
  std::vector<f16> rows(static_cast<std::size_t>(kv_heads * capacity * 2 * head_dim));
  for (f16& value : rows) value = f16{static_cast<std::uint16_t>(0x3000 + random_() % 0x0c00 + (random_() & 0x8000))};
  TailView tail;
  tail.rows = upload(rows);
  tail.capacity = capacity;
  tail.first = 9;
  tail.tokens = tokens;
  auto* const components = on_device<std::int32_t>(static_cast<std::size_t>(kv_heads * rank));
  auto* const weights = on_device<float>(heads * static_cast<std::size_t>(rank));
  const auto count = static_cast<std::size_t>(scored * group * stride);
  const std::vector<float> none(count);
  gpu::cuda::PartialSoftmax with{upload(none), upload(none), stride}, alone{upload(none), upload(none), stride};
  const bool done = gpu::cuda::choose_components(q, kv_heads, group, head_dim, choice, {tail, scored, with}, components,
                                                 nullptr, weights, stream);
  gpu::cuda::sum_tail(tail, head_dim, components, weights, rank, group, 0, scored, alone, stream);
  for (const auto& [a, b] : {std::pair(with.max, alone.max), std::pair(with.sum, alone.sum)}) {
    const std::vector<float> at_once = to_host(a, count), later = to_host(b, count);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(at_once, done ? later : none) << "d=" << head_dim << " g=" << group << " r=" << rank;
    EXPECT_NE(later, none);
  }
  return done;
}

TEST_F(ComponentsTest, TheTailIsScoredBesidesAsByItsOwnKernel) {
  for (const int d : {64, 256, 512}) {
    for (const int group : {1, 4, 7}) EXPECT_TRUE(scores_the_tail_as_its_own_kernel_does(group, d, 16));
  }
  EXPECT_TRUE(scores_the_tail_as_its_own_kernel_does(16, 512, 512));
  EXPECT_FALSE(scores_the_tail_as_its_own_kernel_does(17, 512, 512)) << "whose weights do not fit a block";
}

TEST_F(ComponentsTest, TiesZerosAndNumbersAtTheEndsOfTheirRangeGoToTheSmallerComponentAsWell) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float least = std::numeric_limits<float>::denorm_min();
  constexpr float largest = std::numeric_limits<float>::max();
  const std::vector<std::vector<float>> kinds{{0},
                                              {1},
                                              {0, 1, 2},
                                              {0.5f, 1, 2, 4, 8},
                                              {0, least, 2 * least, 3 * least, 7 * least, 8 * least},
                                              {1, largest, infinity},
                                              {0, 1, std::numeric_limits<float>::quiet_NaN()}};
  for (const auto& of_query : kinds) {
    for (const auto& of_spread : {std::vector<float>{1}, std::vector<float>{0, 0.5f, 1, 2}}) {
      const std::vector<float> q = numbers(kv_heads * 2 * 64, of_query);
      const std::vector<float> spread = numbers(kv_heads * 64, of_spread);
      for (const int bits : {1, 7, 32, 100, 256}) expect_like_host(q, 2, 64, spread, bits, 0);
    }
  }
}

}  // namespace
}  // namespace hayloft::simt
