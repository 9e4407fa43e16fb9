#include <algorithm>
#include <iterator>

#include "index/scan/exact_search.h"
#include "tests/gpu/cuda/backends.h"

// More than 4M tokens, where positions times anything leave 32 bits. The store is one block of hay over and over, with
// a block of needles near its beginning and one at its very end, so that it takes next to no memory.
namespace hayloft::testing {
namespace {

class CudaLargeStore : public CudaTest {
 protected:
  static constexpr int d = 128, B = 4096;
  static constexpr std::int64_t blocks = (std::int64_t{1} << 22) / B + 3;
  static constexpr std::int64_t first_needles = 100;  // the block
  static constexpr int needles_of_a_block = 20;
  static constexpr int rank = 2;

  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    arena_ = std::make_unique<offload::Arena>(
        topology_, offload::ArenaOptions{.budget_bytes = std::uint64_t{64} << 20, .listener = cuda->pinning()});
    hay_ = write(false);
    needles_ = write(true);
    blocks_.assign(static_cast<std::size_t>(blocks), hay_.data());
    blocks_[first_needles] = needles_.data();
    blocks_.back() = needles_.data();
    value_sum_.assign(d, 1.0f);
  }

  // Keys of hay are against the query, random by up to half; those of needles along it.
  offload::Extent write(bool with_needles) {
    const auto noise = normal(static_cast<std::size_t>(B) * 2 * d, with_needles ? 2 : 1, 0.1f);
    std::vector<f16> rows(noise.size());
    for (int t = 0; t < B; ++t) {
      const bool needle = with_needles && t % (B / needles_of_a_block) == 7 && t / (B / needles_of_a_block) < 20;
      for (int c = 0; c < 2 * d; ++c) {
        const auto i = static_cast<std::size_t>(t * 2 * d + c);
        rows[i] = to_f16(noise[i] + (c >= d ? 0 : needle ? 4.0f : -1.0f));
      }
    }
    offload::Extent block = arena_->allocate(layout_.block_bytes);
    gpu::CacheView tail;
    tail.kv_heads = 1;
    tail.head_dim = d;
    tail.tail = {rows.data(), B, 0, B, 0};
    cpu->spill(tail, B, layout_, block.data(), {});
    return block;
  }

  gpu::CacheView view() const {
    gpu::CacheView view;
    view.kv_heads = 1;
    view.head_dim = d;
    view.store = {&layout_, blocks_, blocks * B, value_sum_};
    view.tail.position = blocks * B;
    return view;
  }

  // Returns where needles lie, ascending: what selecting that many has to find.
  static std::vector<std::int32_t> needle_positions() {
    std::vector<std::int32_t> positions;
    for (const std::int64_t block : {first_needles, blocks - 1}) {
      for (int i = 0; i < needles_of_a_block; ++i) {
        positions.push_back(static_cast<std::int32_t>(block * B + i * (B / needles_of_a_block) + 7));
      }
    }
    return positions;
  }

  const offload::Topology topology_;
  const offload::BlockLayout layout_{{1, 1, d, B, offload::ColumnFormat::int8}};
  std::unique_ptr<offload::Arena> arena_;
  offload::Extent hay_, needles_;
  std::vector<const std::byte*> blocks_;
  std::vector<float> value_sum_;
  const std::vector<float> q_ = std::vector<float>(d, 1.0f);
};

TEST_F(CudaLargeStore, NeedlesPastFourMillionTokensAreSelectedAndAttendedTo) {
  const std::vector<std::int32_t> expected = needle_positions();
  const auto k = static_cast<int>(expected.size());
  const gpu::CacheView cache = view();
  gpu::SparqSelect select;
  select.rank = rank;
  select.k = k;
  select.limit = blocks * B;
  const gpu::Buffer q = upload(*cuda, q_);
  const gpu::Buffer positions = cuda->allocate(expected.size() * sizeof(std::int32_t), cuda->stream());
  const gpu::Buffer alpha = cuda->allocate(sizeof(float), cuda->stream());
  cuda->select_sparq(cache, q.as<float>(), 1, select, positions.as<std::int32_t>(), alpha.as<float>(), cuda->stream());
  EXPECT_EQ(download<std::int32_t>(*cuda, positions), expected);

  gpu::Attended what;
  what.positions = positions.as<std::int32_t>();
  what.lists = 1;
  what.k = k;
  what.alpha = alpha.as<float>();
  const gpu::Buffer out = cuda->allocate(d * sizeof(float), cuda->stream());
  cuda->attend(cache, q.as<float>(), 1, what, out.as<float>(), cuda->stream());

  std::vector<std::int32_t> cpu_positions(expected.size());
  std::vector<float> cpu_alpha(1), cpu_out(d);
  cpu->select_sparq(cache, q_.data(), 1, select, cpu_positions.data(), cpu_alpha.data(), {});
  EXPECT_EQ(cpu_positions, expected);
  what.positions = cpu_positions.data();
  what.alpha = cpu_alpha.data();
  cpu->attend(cache, q_.data(), 1, what, cpu_out.data(), {});
  // Sums of 4M shares in f32, pairwise in effect: a few tens of roundings. Values are about 0.1, and the mean is tiny.
  EXPECT_TRUE(near(download<float>(*cuda, alpha), cpu_alpha, 0, 1e-5));
  EXPECT_TRUE(near(download<float>(*cuda, out), cpu_out, 1e-6, 1e-4));
}

TEST_F(CudaLargeStore, ARangePastFourMillionTokensIsAttendedTo) {
  const gpu::CacheView cache = view();
  gpu::Attended what;
  what.ranges[0] = {0, 3};
  what.ranges[1] = {blocks * B - 300, blocks * B};
  const gpu::Buffer q = upload(*cuda, q_), out = cuda->allocate(d * sizeof(float), cuda->stream());
  cuda->attend(cache, q.as<float>(), 1, what, out.as<float>(), cuda->stream());
  std::vector<float> expected(d);
  cpu->attend(cache, q_.data(), 1, what, expected.data(), {});
  EXPECT_TRUE(near(download<float>(*cuda, out), expected, 1e-6, 1e-4));
}

TEST_F(CudaLargeStore, ExactSearchFindsNeedlesPastFourMillionTokens) {
  const std::vector<std::int32_t> expected = needle_positions();
  index::ExactSearch search;
  search.query_heads = 1;
  search.k = static_cast<int>(expected.size());
  search.limit = blocks * B;
  std::vector<std::int32_t> positions(expected.size());
  index::search_exact(view().store, q_.data(), search, threads(), {positions.data(), nullptr, nullptr, nullptr});
  EXPECT_EQ(positions, expected);
}

TEST_F(CudaTest, EightThousandPositionsAreSelectedAndAttendedToAsOnTheCpu) {
  constexpr int d = 16, group = 2, k = 8192;
  SharedCache cache(*cuda, {.head_dim = d, .block_tokens = 4096, .stored = 9000, .tail = 20, .seed = 5});
  const std::vector<float> query = random_query(group, d, 6, 2);
  gpu::SparqSelect select;
  select.rank = d;  // so that no choice hangs on rounding but that of the last positions
  select.k = k;
  select.limit = 9000;
  const gpu::Buffer q = upload(*cuda, query), out = cuda->allocate(query.size() * sizeof(float), cuda->stream());
  const gpu::Buffer positions = cuda->allocate(k * sizeof(std::int32_t), cuda->stream());
  const gpu::Buffer alpha = cuda->allocate(group * sizeof(float), cuda->stream());
  cuda->select_sparq(cache.on_cuda(), q.as<float>(), group, select, positions.as<std::int32_t>(), alpha.as<float>(),
                     cuda->stream());
  const std::vector<std::int32_t> chosen = download<std::int32_t>(*cuda, positions);
  std::vector<std::int32_t> expected(k);
  std::vector<float> expected_alpha(group), expected_out(query.size());
  cpu->select_sparq(cache.on_cpu(), query.data(), group, select, expected.data(), expected_alpha.data(), {});
  std::vector<std::int32_t> both;
  std::set_intersection(chosen.begin(), chosen.end(), expected.begin(), expected.end(), std::back_inserter(both));
  EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
  EXPECT_GE(both.size(), static_cast<std::size_t>(k - 2));  // scores of neighbours in rank differ by 1e-4 of themselves

  gpu::Attended what;
  what.lists = 1;
  what.k = k;
  what.positions = positions.as<std::int32_t>();
  cuda->attend(cache.on_cuda(), q.as<float>(), group, what, out.as<float>(), cuda->stream());
  what.positions = chosen.data();
  cpu->attend(cache.on_cpu(), query.data(), group, what, expected_out.data(), {});
  EXPECT_TRUE(near(download<float>(*cuda, out), expected_out, 1e-5, 1e-4));
}

}  // namespace
}  // namespace hayloft::testing
