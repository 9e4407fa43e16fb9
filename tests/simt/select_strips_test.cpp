#include <bit>
#include <functional>
#include <limits>

#include "tests/gpu/cuda/select_fixture.h"
#include "tests/simt/device/control.h"
#include "tests/support/refusal.h"

// Selection by bounds of strips: the positions and alphas of the selection by all logits, to the bit, whatever the
// scores are, where the device keeps columns and a strip's bound can say something.
namespace hayloft::testing {
namespace {

constexpr float nan_key = std::numeric_limits<float>::quiet_NaN();
constexpr float infinite_key = std::numeric_limits<float>::infinity();

class SelectStrips : public CudaSelect {
 protected:
  void SetUp() override {
    CudaSelect::SetUp();
    if (!IsSkipped()) keep(gpu::column_cache_rest);
  }
  void keep(std::uint64_t bytes) {
    cuda = make_cuda({.memory_bytes = std::uint64_t{1} << 30, .column_cache_bytes = bytes});
  }

  static SelectCase of(int group, GroupRule rule = GroupRule::softmax, ColumnFormat format = ColumnFormat::f16) {
    SelectCase c{
        {.kv_heads = 2, .head_dim = 16, .block_tokens = 256, .stored = 1300, .tail = 9, .seed = 5, .columns = format},
        group,
        4,
        5};
    c.rule = rule;
    return c;
  }

  // Keys of the store by position and component, where the columns have them as they are.
  using Keys = std::function<float(std::int64_t, int)>;
  static void set_columns(const gpu::CacheView& view, const Keys& key) {
    const offload::BlockLayout& layout = *view.store.layout;
    for (std::int64_t t = 0; t < view.store.tokens; ++t) {
      const std::byte* const block = view.store.blocks[static_cast<std::size_t>(t / layout.block_tokens)];
      for (int head = 0; head < layout.kv_heads; ++head) {
        for (int i = 0; i < layout.head_dim; ++i) {
          auto* const column = const_cast<std::byte*>(layout.column(block, head, i));
          reinterpret_cast<f16*>(column)[t % layout.block_tokens] = to_f16(key(t, i));
        }
      }
    }
  }

  static std::vector<std::uint32_t> bits(const std::vector<float>& values) {
    std::vector<std::uint32_t> all;
    for (const float value : values) all.push_back(std::bit_cast<std::uint32_t>(value));
    return all;
  }

  // Selects by strips twice, with columns from the host and from the device, and by logits. Returns the latter.
  Selection expect_same_by_strips(SharedCache& cache, const SelectCase& c, const std::vector<float>& q,
                                  bool by_strips = true) {
    gpu::CacheView untold = cache.on_cuda();
    untold.store.serials = {};  // blocks that nothing tells apart are not kept
    std::int64_t before = simt::launches("rank_strips");
    const Selection expected = select(*cuda, untold, q, c.args());
    EXPECT_EQ(simt::launches("rank_strips"), before);
    for (int turn = 0; turn < 2; ++turn) {
      before = simt::launches("rank_strips");
      const Selection actual = select(*cuda, cache.on_cuda(), q, c.args());
      EXPECT_EQ(simt::launches("rank_strips") > before, by_strips);
      EXPECT_EQ(actual.positions, expected.positions);
      EXPECT_EQ(bits(actual.alpha), bits(expected.alpha));
    }
    return expected;
  }

  void expect_same_of(const char* what, const SelectCase& c, const Keys& key, bool like_cpu = true) {
    SCOPED_TRACE(::testing::Message() << what << " group " << c.group << " k " << c.k << " limit " << c.limit
                                      << " rule " << static_cast<int>(c.rule));
    SharedCache cache(*cuda, c.cache);
    set_columns(cache.on_cuda(), key);
    const std::vector<float> q(static_cast<std::size_t>(c.group * c.cache.kv_heads * c.cache.head_dim), 0.25f);
    const Selection by_logits = expect_same_by_strips(cache, c, q);
    if (like_cpu) {
      EXPECT_EQ(select(*cpu, cache.on_cpu(), q, c.args()).positions, by_logits.positions);
    }
  }
};

TEST_F(SelectStrips, EveryGroupRuleAndFormatSelectsAsByLogits) {
  for (const ColumnFormat format : {ColumnFormat::f16, ColumnFormat::int8, ColumnFormat::int4}) {
    for (const GroupRule rule : {GroupRule::softmax, GroupRule::logits}) {
      for (const int group : {1, 2, 3, 4, 7, 8, 9, 16, 17}) {
        SCOPED_TRACE(::testing::Message() << offload::name(format) << " group " << group);
        const SelectCase c = of(group, rule, format);
        SharedCache cache(*cuda, c.cache);
        expect_same_by_strips(cache, c, random_query(2 * group, 16, static_cast<std::uint32_t>(group)), group <= 16);
      }
    }
  }
}

TEST_F(SelectStrips, EveryNumberOfPositionsBelowEveryLimitIsSelectedAsByLogits) {
  for (const std::int64_t limit : {1300, 1281, 1280, 700, 256, 255}) {
    for (const int k : {1, 4, static_cast<int>(limit)}) {
      SelectCase c = of(4, k % 2 == 0 ? GroupRule::logits : GroupRule::softmax, ColumnFormat::int4);
      c.limit = limit;
      c.k = k;
      SCOPED_TRACE(::testing::Message() << "limit " << limit << " k " << k);
      SharedCache cache(*cuda, c.cache);
      expect_same_by_strips(cache, c, random_query(8, 16, 3), limit / 32 >= 8 * k);
    }
  }
}

TEST_F(SelectStrips, LongStoresInBlocksOfEverySizeSelectAsByLogits) {
  for (const int block : {512, 4096}) {
    SelectCase c = of(4, GroupRule::softmax, ColumnFormat::int4);
    c.cache.block_tokens = block;
    c.cache.stored = 40000;
    c.k = 150;
    for (const float scale : {0.1f, 1.0f, 4.0f}) {
      c.cache.key_scale = scale;
      SharedCache cache(*cuda, c.cache);
      expect_same_by_strips(cache, c, random_query(8, 16, 4));
    }
  }
}

TEST_F(SelectStrips, ScoresMadeToMisleadSelectAsByLogits) {
  const auto spread = [](std::int64_t t, int i) {
    return static_cast<float>((t * 7919 + i * 104729) % 1009) / 1009.0f;
  };
  for (const GroupRule rule : {GroupRule::softmax, GroupRule::logits}) {
    for (const int group : {1, 4}) {
      SelectCase c = of(group, rule);
      c.limit = 1290;
      expect_same_of("all equal", c, [](std::int64_t, int) { return 0.5f; });
      expect_same_of("one spike in each strip", c,
                     [](std::int64_t t, int) { return t % 32 == (t / 32 * 5) % 32 ? 4.0f + t / 32 % 7 : 0.0f; });
      expect_same_of("the same spike in each strip", c, [](std::int64_t t, int) { return t % 32 == 31 ? 8.0f : 0.0f; });
      expect_same_of("rising", c, [](std::int64_t t, int) { return static_cast<float>(t) / 64; });
      expect_same_of("falling", c, [](std::int64_t t, int) { return -static_cast<float>(t) / 64; });
      expect_same_of("far below the largest", c, [](std::int64_t t, int) { return t == 3 ? 900.0f : -900.0f; });
      expect_same_of("zeros of both signs", c, [](std::int64_t t, int) { return t % 3 == 0 ? -0.0f : 0.0f; });
      expect_same_of("some are no number", c,
                     [&](std::int64_t t, int i) { return t % 97 == 5 ? nan_key : spread(t, i); });
      expect_same_of("none is a number", c, [](std::int64_t, int) { return nan_key; });
      expect_same_of("some are infinite", c,
                     [&](std::int64_t t, int i) { return t % 101 == 7 ? infinite_key : spread(t, i); });
      expect_same_of("some are infinitely small", c,
                     [&](std::int64_t t, int i) { return t % 2 == 1 ? -infinite_key : spread(t, i); });
      expect_same_of("all are infinitely small", c, [](std::int64_t, int) { return -infinite_key; });
      // Where terms are infinite of both signs the CPU has other places for what is no number.
      expect_same_of(
          "both infinities meet", c,
          [&](std::int64_t t, int i) {
            return t % 50 == 9 ? (i % 2 == 0 ? infinite_key : -infinite_key) : spread(t, i);
          },
          false);
    }
  }
}

TEST_F(SelectStrips, LogitsAreKeptWhereTheCacheHasRoomForFewColumns) {
  keep(std::uint64_t{20} << 10);
  const SelectCase c = of(4);
  SharedCache cache(*cuda, c.cache);
  expect_same_by_strips(cache, c, random_query(8, 16, 3), false);
}

// A block has 64 KiB of shared memory, as of compute capability 7.5.
class SelectOnASmallCard : public CudaSelect {
 protected:
  void SetUp() override {
    simt::device().shared_bytes = std::size_t{64} << 10;
    CudaSelect::SetUp();
  }
};

TEST_F(SelectOnASmallCard, TablesOfManyComponentsAreThoseOfFewerQueryHeadsOrRefused) {
  SelectCase c{
      {.head_dim = 512, .block_tokens = 256, .stored = 300, .tail = 5, .columns = ColumnFormat::int8}, 16, 440, 25};
  expect_like_cpu(c);
  c.rank = 512;
  SharedCache cache(*cuda, c.cache);
  const std::vector<float> q = random_query(16 * c.cache.kv_heads, 512, 1);
  EXPECT_TRUE(test::refuses([&] { select(*cuda, cache.on_cuda(), q, c.args()); },
                            {"512 components", "has 65536", "take a lower r"}));
}

TEST_F(SelectOnASmallCard, LogitsAreKeptWhereTablesOfStripsDoNotFit) {
  cuda = make_cuda({.memory_bytes = std::uint64_t{1} << 30, .column_cache_bytes = gpu::column_cache_rest});
  for (const int group : {1, 4}) {
    expect_like_cpu(*cuda,
                    {{.head_dim = 512, .block_tokens = 256, .stored = 1300, .tail = 9, .columns = ColumnFormat::int8},
                     group,
                     440,
                     5});
  }
}

}  // namespace
}  // namespace hayloft::testing
