#include <cmath>
#include <cstring>
#include <limits>

#include "tests/gpu/cuda/backends.h"

// Tests that a part which one kernel does has the bits of the operations that it consists of.
namespace hayloft::testing {
namespace {

class LayerStepsTest : public CudaTest {
 protected:
  static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  struct Added {
    std::vector<float> y, normed;
    std::vector<std::int32_t> flag;
  };
  Added add(int rows, int n, bool norm, bool finite, bool at_once) {
    const auto count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(n);
    std::vector<float> y = normal(count, 1);
    if (!finite) y[count - 1] = std::numeric_limits<float>::infinity();
    const gpu::Buffer to = upload(*cuda, y), x = upload(*cuda, normal(count, 2));
    const gpu::Buffer weight = upload(*cuda, normal(static_cast<std::size_t>(n), 3));
    const gpu::Buffer normed = upload(*cuda, std::vector<float>(count));
    const gpu::Buffer flag = upload(*cuda, std::vector<std::int32_t>{7});
    gpu::AddAndNorm what{to.as<float>(), x.as<float>(), rows, n, flag.as<std::int32_t>(), 3};
    what.eps = 1e-5f;
    what.normed = normed.as<float>();
    if (norm) what.weight = weight.as<float>();
    at_once ? cuda->add_and_norm(what, cuda->stream()) : cuda->gpu::Backend::add_and_norm(what, cuda->stream());
    return {download<float>(*cuda, to), download<float>(*cuda, normed), download<std::int32_t>(*cuda, flag)};
  }

  struct Shape {
    int d, T, pairs;
    bool queries, norms, turned;
  };
  struct Entered {
    std::vector<f16> tail;
    std::vector<float> q;
  };
  Entered enter(const Shape& shape, bool at_once) {
    const int kv_heads = 2, query_heads = 6;
    const std::int64_t capacity = 40;
    const auto values = [&](int heads, std::uint32_t seed) {
      return upload(*cuda, normal(static_cast<std::size_t>(shape.T * heads * shape.d), seed));
    };
    const gpu::Buffer q = values(query_heads, 4), k = values(kv_heads, 5), v = values(kv_heads, 6);
    const gpu::Buffer weights = upload(*cuda, normal(static_cast<std::size_t>(3 * shape.d), 7));
    std::vector<float> frequencies(static_cast<std::size_t>(shape.d) / 2);
    for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] = std::pow(0.9f, static_cast<float>(i));
    const gpu::Buffer table = upload(*cuda, frequencies);
    const gpu::Buffer tail =
        upload(*cuda, std::vector<f16>(static_cast<std::size_t>(kv_heads * capacity * 2 * shape.d), f16{0x1234}));
    gpu::CacheView cache;
    cache.kv_heads = kv_heads;
    cache.head_dim = shape.d;
    cache.tail = {tail.as<f16>(), capacity, 5, 10, 1000003};
    gpu::NewHeads heads;
    if (shape.queries) heads.q = q.as<float>();
    heads.query_heads = query_heads;
    heads.k = k.as<float>();
    heads.v = v.as<float>();
    heads.T = shape.T;
    if (shape.norms) {
      heads.q_norm = weights.as<float>();
      heads.k_norm = weights.as<float>() + shape.d;
      heads.v_norm = weights.as<float>() + 2 * shape.d;
    }
    heads.eps = 1e-6f;
    if (shape.turned) heads.rope = {table.as<float>(), shape.pairs, 1.25f};
    at_once ? cuda->enter(cache, heads, cuda->stream()) : cuda->gpu::Backend::enter(cache, heads, cuda->stream());
    return {download<f16>(*cuda, tail), download<float>(*cuda, q)};
  }
};

TEST_F(LayerStepsTest, ASumItsFlagAndItsNormAreThoseOfOneAfterTheOther) {
  for (const int n : {5, 128, 1000, 4097, 5001}) {
    for (const int rows : {1, 3}) {
      for (const bool norm : {true, false}) {
        for (const bool finite : {true, false}) {
          const Added once = add(rows, n, norm, finite, true), each = add(rows, n, norm, finite, false);
          EXPECT_TRUE(same_bits(once.y, each.y)) << n << " by " << rows;
          EXPECT_TRUE(same_bits(once.normed, each.normed)) << n << " by " << rows;
          EXPECT_EQ(once.flag, each.flag);
          EXPECT_EQ(once.flag[0], finite ? 7 : 3);
        }
      }
    }
  }
}

TEST_F(LayerStepsTest, HeadsEnterAsIfNormedTurnedAndAppendedOneAfterTheOther) {
  const Shape shapes[] = {{8, 1, 0, true, false, true},   {64, 3, 16, true, true, true},
                          {128, 1, 0, true, true, true},  {80, 2, 20, false, true, true},
                          {256, 1, 0, true, true, false}, {512, 16, 64, true, true, true},
                          {64, 17, 0, true, true, true},  {24, 1, 0, true, false, false}};
  for (const Shape& shape : shapes) {
    const Entered once = enter(shape, true), each = enter(shape, false);
    EXPECT_EQ(once.tail, each.tail) << shape.d;
    EXPECT_TRUE(same_bits(once.q, each.q)) << shape.d;
  }
}

}  // namespace
}  // namespace hayloft::testing
