#include <algorithm>
#include <cmath>
#include <numeric>

#include "index/scan/softmax.h"
#include "runtime/cluster/part.h"
#include "tests/gpu/cuda/select_fixture.h"
#include "tests/support/shards.h"

// A search of a part of the positions on the device, whose finds are ranked among those of other parts.
namespace hayloft::testing {
namespace {

class CudaSelectParts : public CudaTest {
 protected:
  struct Found {
    std::vector<std::int32_t> positions;  // [Hkv][k]
    std::vector<float> logits;            // [Hq][k]
    std::vector<float> all[2];            // max and sum, [Hq]
    std::vector<float> attended[2];
    std::vector<std::int32_t> first;  // positions when it was asked whether to find anew
  };

  Found search(const gpu::CacheView& view, const std::vector<float>& q, int query_heads, gpu::SparqSelect args,
               const Found* ranked_by = nullptr, bool when_asked = false) const {
    const gpu::Stream stream = cuda->stream();
    const auto n = static_cast<std::size_t>(query_heads), k = static_cast<std::size_t>(args.k);
    const gpu::Buffer queries = upload(*cuda, q);
    const gpu::Buffer positions = cuda->allocate(static_cast<unsigned>(view.kv_heads) * k * sizeof(float), stream);
    const gpu::Buffer logits = cuda->allocate(n * k * sizeof(float), stream);
    std::vector<float> sums(6 * n);
    if (ranked_by != nullptr) {
      std::ranges::copy(ranked_by->all[0], sums.begin() + static_cast<std::ptrdiff_t>(4 * n));
      std::ranges::copy(ranked_by->all[1], sums.begin() + static_cast<std::ptrdiff_t>(5 * n));
    }
    const gpu::Buffer softmaxes = upload(*cuda, sums);
    float* const at = softmaxes.as<float>();
    args.part = {logits.as<float>(), {at, at + n}, {at + 2 * n, at + 3 * n}};
    if (ranked_by != nullptr) args.part.ranked_by = {at + 4 * n, at + 5 * n};
    std::vector<std::int32_t> first;
    const std::function<bool()> again = [&] {
      first = download<std::int32_t>(*cuda, positions);
      return true;
    };
    if (when_asked) args.part.again = &again;
    cuda->select_sparq(view, queries.as<float>(), query_heads, args, positions.as<std::int32_t>(), nullptr, stream);
    Found found{download<std::int32_t>(*cuda, positions), download<float>(*cuda, logits), {}, {}, first};
    sums = download<float>(*cuda, softmaxes);
    for (std::size_t i = 0; i < 2; ++i) {
      const auto from = [&](std::size_t part) { return sums.begin() + static_cast<std::ptrdiff_t>(part * n); };
      found.all[i].assign(from(i), from(i + 1));
      found.attended[i].assign(from(2 + i), from(3 + i));
    }
    return found;
  }

  // Positions and alpha of a search of everything there is.
  std::pair<std::vector<std::int32_t>, std::vector<float>> whole(const gpu::CacheView& view,
                                                                 const std::vector<float>& q, int query_heads,
                                                                 const gpu::SparqSelect& args) const {
    const gpu::Buffer queries = upload(*cuda, q);
    const gpu::Buffer positions =
        cuda->allocate(static_cast<unsigned>(view.kv_heads * args.k) * sizeof(float), cuda->stream());
    const gpu::Buffer alpha = cuda->allocate(static_cast<unsigned>(query_heads) * sizeof(float), cuda->stream());
    cuda->select_sparq(view, queries.as<float>(), query_heads, args, positions.as<std::int32_t>(), alpha.as<float>(),
                       cuda->stream());
    return {download<std::int32_t>(*cuda, positions), download<float>(*cuda, alpha)};
  }

  static SelectCase tested(ColumnFormat format, int group) {
    SelectCase tested{.cache = {.kv_heads = 2,
                                .head_dim = 32,
                                .block_tokens = 128,
                                .stored = 5 * 128,
                                .tail = 70,
                                .seed = 5,
                                .columns = format},
                      .group = group,
                      .k = 40,
                      .limit = 4 * 128 + 33};
    if (in_planes(format)) tested.bits = 24;
    return tested;
  }
};

TEST_F(CudaSelectParts, OfAllPositionsFindsAndWeighsWhatASearchDoes) {
  for (const ColumnFormat format : all_formats) {
    for (const int group : {1, 3}) {
      SCOPED_TRACE(::testing::Message() << offload::name(format) << " group " << group);
      const SelectCase all = tested(format, group);
      SharedCache cache(*cuda, all.cache);
      const int query_heads = 2 * group;
      const std::vector<float> q = random_query(query_heads, 32, 3);
      const auto [positions, alpha] = whole(cache.on_cuda(), q, query_heads, all.args());
      const Found found = search(cache.on_cuda(), q, query_heads, all.args());
      EXPECT_EQ(found.positions, positions);
      EXPECT_EQ(search(cache.on_cuda(), q, query_heads, all.args(), &found).positions, positions);
      for (std::size_t h = 0; h < static_cast<std::size_t>(query_heads); ++h) {
        double mass = double{found.attended[1][h]} * std::exp(found.attended[0][h] - found.all[0][h]);
        for (std::size_t i = 0; i < 40; ++i) mass += std::exp(double{found.logits[h * 40 + i]} - found.all[0][h]);
        // Each sum of some hundred numbers is off by as many roundings at most, and exponentials by 1e-6.
        EXPECT_NEAR(mass / found.all[1][h], alpha[h], 700 * eps + 2e-6);
      }
    }
  }
}

TEST_F(CudaSelectParts, WithColumnsOnTheDeviceFindsAndTellsTheSame) {
  cuda = make_cuda({.memory_bytes = std::uint64_t{1} << 30, .column_cache_bytes = gpu::column_cache_rest});
  for (const GroupRule rule : {GroupRule::softmax, GroupRule::logits}) {
    SelectCase c = tested(ColumnFormat::int4, 3);
    c.cache.block_tokens = 256;
    c.cache.stored = 1300;
    c.limit = 1201;
    c.k = 4;
    c.rule = rule;
    SharedCache cache(*cuda, c.cache);
    const gpu::CacheView untold = without_cache(cache.on_cuda());
    const std::vector<float> q = random_query(6, 32, 3);
    Found others = search(untold, q, 6, c.args());
    for (std::size_t h = 0; h < 6; ++h) others.all[1][h] *= h % 2 == 0 ? 1e4f : 2.0f;
    const Found expected = search(untold, q, 6, c.args(), &others, true);
    for (int turn = 0; turn < 2; ++turn) {
      const Found found = search(cache.on_cuda(), q, 6, c.args(), &others, true);
      EXPECT_EQ(found.positions, expected.positions);
      EXPECT_EQ(found.first, expected.first);
      EXPECT_EQ(found.logits, expected.logits);
      for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(found.all[i], expected.all[i]);
        EXPECT_EQ(found.attended[i], expected.attended[i]);
      }
    }
  }
}

TEST_F(CudaSelectParts, FindsAnewWhatItIsAskedForWithoutReadingColumnsAgain) {
  for (const ColumnFormat format : all_formats) {
    const SelectCase all = tested(format, 3);
    SharedCache cache(*cuda, all.cache);
    const std::vector<float> q = random_query(6, 32, 6);
    const Found own = search(cache.on_cuda(), q, 6, all.args());
    Found others = own;
    for (std::size_t h = 0; h < 6; ++h) others.all[1][h] *= static_cast<float>(1 + h * h);
    const Found at_once = search(cache.on_cuda(), q, 6, all.args(), &others);
    const Found asked = search(cache.on_cuda(), q, 6, all.args(), &others, true);
    EXPECT_NE(at_once.positions, own.positions);
    EXPECT_EQ(asked.first, own.positions);
    EXPECT_EQ(asked.positions, at_once.positions);
    EXPECT_EQ(asked.logits, at_once.logits);
  }
}

// Each of several parts finds, once it knows the softmaxes over all of them, what of the whole's best it has.
TEST_F(CudaSelectParts, TogetherFindWhatOneSearchFinds) {
  for (const ColumnFormat format : all_formats) {
    for (const int group : {1, 3}) {
      const SelectCase all = tested(format, group);
      SharedCache cache(*cuda, all.cache);
      const int query_heads = 2 * group;
      const std::vector<float> q = random_query(query_heads, 32, 4);
      const auto [positions, alpha] = whole(cache.on_cuda(), q, query_heads, all.args());
      for (const int ranks : {2, 3}) {
        SCOPED_TRACE(::testing::Message() << offload::name(format) << " group " << group << " of " << ranks);
        std::vector<std::vector<std::pair<double, std::int32_t>>> ranked(2);  // by KV head: score, position
        Found sums;
        for (std::vector<float>* one : {&sums.all[0], &sums.all[1]})
          one->assign(static_cast<std::size_t>(query_heads), 0);
        std::ranges::fill(sums.all[0], -std::numeric_limits<float>::infinity());
        for (const bool again : {false, true}) {
          for (int rank = 0; rank < ranks; ++rank) {
            const ShardOfCache shard(cache.on_cuda(), {rank, ranks});
            const runtime::cluster::Part part(shard.view());
            gpu::SparqSelect args = all.args();
            args.limit = part.own(args.limit);
            const Found found = search(part.cache(), q, query_heads, args, again ? &sums : nullptr);
            for (std::size_t h = 0; h < static_cast<std::size_t>(query_heads) && !again; ++h) {
              index::merge_sums(sums.all[0][h], sums.all[1][h], found.all[0][h], found.all[1][h]);
            }
            for (std::size_t i = 0; i < found.positions.size() && again; ++i) {
              const std::size_t head = i / 40;
              double score = 0;
              for (std::size_t h = head * static_cast<std::size_t>(group);
                   h < (head + 1) * static_cast<std::size_t>(group); ++h) {
                const double share =
                    double{found.logits[h * 40 + i % 40]} - sums.all[0][h] - std::log(double{sums.all[1][h]});
                score += group == 1 ? share : std::exp(share);
              }
              ranked[head].emplace_back(-score, static_cast<std::int32_t>(part.whole(found.positions[i])));
            }
          }
        }
        std::vector<std::int32_t> best;
        for (auto& list : ranked) {
          std::ranges::sort(list);
          for (std::size_t i = 0; i < 40; ++i) best.push_back(list[i].second);
          std::sort(best.end() - 40, best.end());
        }
        EXPECT_EQ(best, positions);
      }
    }
  }
}

}  // namespace
}  // namespace hayloft::testing
