#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <vector>

#include "gpu/cpu/attention.h"
#include "gpu/cpu/pieces.h"
#include "gpu/cpu/rows.h"
#include "gpu/make_backend.h"
#include "offload/host/arena.h"
#include "offload/host/threads.h"
#include "offload/store/store.h"
#include "tests/support/cpu_cache.h"

// Attention of several sequences at once against that of each alone, to the bit.
namespace hayloft::gpu {
namespace {

using hayloft::testing::normal;

constexpr int kv_heads = 2, group = 3, query_heads = kv_heads * group, d = 48;

std::vector<f16> random_rows(std::int64_t tokens, std::uint32_t seed) {
  std::vector<f16> rows;
  for (const float x : normal(static_cast<std::size_t>(tokens * kv_heads * 2 * d), seed)) rows.push_back(to_f16(x));
  return rows;
}

struct Sequence {
  offload::Store store;
  std::vector<f16> tail = {};
  std::int64_t tail_tokens = 0;
  std::vector<float> q = {};
  Attended what = {};
  std::vector<std::int32_t> positions = {};
  std::vector<float> alpha = {};
  std::vector<TailOrigin> origins = {};

  CacheView view() {
    CacheView view;
    view.kv_heads = kv_heads;
    view.head_dim = d;
    view.store = store.layer(0);
    view.tail = {tail.data(), tail_tokens, 0, tail_tokens, view.store.tokens};
    view.origins = origins;
    return view;
  }
  std::int64_t tokens() const { return store.tokens(0) + tail_tokens; }
};

struct Shape {
  offload::RowFormat rows;
  int block_tokens;
};

class AttendTogether : public ::testing::TestWithParam<Shape> {
 protected:
  offload::Store empty() {
    offload::StoreShape shape{1, kv_heads, d, GetParam().block_tokens};
    shape.rows = GetParam().rows;
    return offload::Store(arena_, shape);
  }

  // So many tokens in full blocks, and a last one that is not full.
  void fill(offload::Store& store, std::int64_t tokens, int last = 0) {
    const int B = GetParam().block_tokens;
    for (std::int64_t done = 0; done < tokens + last;) {
      const int n = done + B <= tokens ? B : last;
      if (n == 0) break;
      const std::vector<f16> rows = random_rows(n, ++seed_);
      offload::BlockWriter block = store.start_block();
      for (int head = 0; head < kv_heads; ++head) {
        offload::fill_block(store.layout(), block.data(), head, rows.data() + head * n * 2 * d, 2 * d, n);
      }
      store.commit(0, std::move(block), n);
      done += n;
      if (n < B) break;
    }
  }

  Sequence& add(const offload::Store& store, std::int64_t own_tokens, std::int64_t tail_tokens) {
    Sequence& added = sequences_.emplace_back(Sequence{store.fork()});
    fill(added.store, own_tokens);
    added.tail = random_rows(tail_tokens, ++seed_);
    added.tail_tokens = tail_tokens;
    added.q = normal(query_heads * d, ++seed_);
    added.what.ranges[0] = {0, added.tokens()};
    return added;
  }
  // Adds a sequence that goes on from the first `common` of another's newest tokens, in a tail of its own.
  Sequence& add_fork(const Sequence& from, std::int64_t common, std::int64_t tail_tokens) {
    const std::int64_t tail_from = from.tail_tokens;
    const std::vector<f16> rows = from.tail;
    const std::int64_t end = from.store.tokens(0) + common;
    const std::vector<TailOrigin> origins = from.origins;
    Sequence& added = add(from.store, 0, tail_tokens);
    for (int head = 0; head < kv_heads; ++head) {
      std::copy_n(rows.begin() + head * tail_from * 2 * d, common * 2 * d,
                  added.tail.begin() + head * tail_tokens * 2 * d);
    }
    for (const TailOrigin& origin : origins) added.origins.push_back({origin.cache, std::min(origin.end, end)});
    added.origins.push_back(own_origin());
    return added;
  }
  TailOrigin own_origin() { return {++caches_, std::numeric_limits<std::int64_t>::max()}; }

  static void window(Sequence& of, std::int64_t sinks, std::int64_t last) {
    of.what.ranges[0] = {0, sinks};
    of.what.ranges[1] = {of.tokens() - last, of.tokens()};
  }

  // Adds seventeen sequences over three texts.
  void add_all() {
    offload::Store book = empty(), other = empty();
    fill(book, 2608);
    const offload::Store half = book.fork();
    fill(book, 2000);
    offload::Store sealed = book.fork();
    fill(sealed, 0, 8 + GetParam().block_tokens / 4);
    fill(other, 4480);
    add(book, 0, 10);
    add(book, 200, 70);
    add(half, 300, 33);  // goes on otherwise
    add(other, 0, 40);
    add(empty(), 0, 100);
    add(other, 0, 2300);
    add(sealed, 0, 1);
    add(sealed, 0, 50);
    window(add(sealed, 0, 30), 4, 700);
    window(add(sealed, 0, 90), 4, 760);
    Sequence& listed = add(book, 0, 20);
    for (int head = 0; head < kv_heads; ++head) {
      for (int i = 0; i < 150; ++i) listed.positions.push_back(5 + head + 7 * i);
    }
    listed.what.positions = listed.positions.data();
    listed.what.lists = kv_heads;
    listed.what.k = 150;
    listed.what.ranges[0] = {2048, listed.tokens()};
    listed.alpha.assign(query_heads, 0.75f);
    listed.what.alpha = listed.alpha.data();
    Sequence& root = add(other, 0, 2300);
    root.origins = {own_origin()};
    add_fork(root, 2300, 2310);
    Sequence& child = add_fork(root, 2250, 2400);
    add_fork(child, 2390, 2391);
    add_fork(child, 40, 60);
    window(add_fork(root, 2300, 2301), 4, 700);
  }

  offload::Topology topology_;
  offload::Threads threads_{2};
  std::unique_ptr<Backend> backend_ = make_cpu_backend(threads_);
  offload::Arena arena_{topology_, {.budget_bytes = 256 << 20}};
  std::deque<Sequence> sequences_;
  std::uint32_t seed_ = 0;
  std::uint64_t caches_ = 0;
};

TEST_P(AttendTogether, EachGetsTheBitsThatItGetsAlone) {
  add_all();
  std::vector<std::vector<float>> alone;
  for (Sequence& each : sequences_) {
    alone.emplace_back(query_heads * d, -1.0f);
    backend_->attend(each.view(), each.q.data(), query_heads, each.what, alone.back().data(), {});
  }
  for (std::size_t n = 1; n <= sequences_.size(); ++n) {
    for (std::size_t from = 0; from < sequences_.size(); ++from) {
      std::vector<AttendStep> steps;
      std::vector<std::vector<float>> out(n, std::vector<float>(query_heads * d, -2.0f));
      for (std::size_t i = 0; i < n; ++i) {
        Sequence& each = sequences_[(from + i) % sequences_.size()];
        steps.push_back({each.view(), each.q.data(), each.what, out[i].data()});
      }
      backend_->attend_together(steps, query_heads, {});
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_EQ(out[i], alone[(from + i) % alone.size()]) << "number " << i << " of " << n << " from " << from;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, AttendTogether,
                         ::testing::Values(Shape{offload::RowFormat::f16, 16}, Shape{offload::RowFormat::f16, 256},
                                           Shape{offload::RowFormat::int8, 16}, Shape{offload::RowFormat::int4, 64}),
                         [](const auto& shape) {
                           return offload::name(shape.param.rows) + std::to_string(shape.param.block_tokens);
                         });

class SharedRowsTest : public AttendTogether {
 protected:
  // The length of what is read once for several and how often, over all heads, and the rows that are read by one alone.
  struct Reads {
    std::vector<std::pair<std::int64_t, std::size_t>> shared;  // length, by so many
    std::int64_t alone = 0;
  };
  Reads reads() {
    std::vector<AttendStep> steps;
    for (Sequence& each : sequences_) steps.push_back({each.view(), each.q.data(), each.what, nullptr});
    const Pieces pieces = cut_pieces(steps, query_heads);
    Reads reads;
    for (const SharedRows& rows : pieces.shared) reads.shared.emplace_back(rows.end - rows.begin, rows.pieces.size());
    std::ranges::sort(reads.shared);
    for (const std::size_t i : pieces.with_rest) reads.alone += pieces.all[i].end - pieces.all[i].own;
    return reads;
  }
};

TEST_P(SharedRowsTest, BlocksThatSequencesShareAreReadOnce) {
  offload::Store book = empty();
  fill(book, 4480);
  add(book, 0, 10);
  add(book, 64, 3);
  add(book, 0, 500);
  const Reads found = reads();
  const std::vector<std::pair<std::int64_t, std::size_t>> expected{{384, 3},  {384, 3},  {2048, 3},
                                                                   {2048, 3}, {2048, 3}, {2048, 3}};
  EXPECT_EQ(found.shared, expected);
  EXPECT_EQ(found.alone, kv_heads * (10 + 64 + 3 + 500));
}

TEST_P(SharedRowsTest, TailsOfOneOriginAreReadOnceAsFarAsItReaches) {
  offload::Store book = empty();
  fill(book, 4096);
  Sequence& root = add(book, 0, 700);
  root.origins = {own_origin()};
  add_fork(root, 700, 710);
  Sequence& child = add_fork(root, 650, 800);
  const Reads found = reads();
  const std::vector<std::pair<std::int64_t, std::size_t>> expected{{640, 3},  {640, 3},  {2048, 3},
                                                                   {2048, 3}, {2048, 3}, {2048, 3}};
  EXPECT_EQ(found.shared, expected) << "650 in whole tiles";
  EXPECT_EQ(found.alone, kv_heads * (60 + 70 + 160));
  child.origins.clear();
  EXPECT_EQ(reads().shared.front(), std::pair(std::int64_t{672}, std::size_t{2}))
      << "the other two, 700 in whole tiles";
}

TEST_P(SharedRowsTest, NothingIsSharedWithoutCommonBlocks) {
  for (int i = 0; i < 3; ++i) {
    offload::Store book = empty();
    fill(book, 4480);
    add(book, 0, 10);
  }
  EXPECT_TRUE(reads().shared.empty());
}

INSTANTIATE_TEST_SUITE_P(, SharedRowsTest, ::testing::Values(Shape{offload::RowFormat::f16, 64}),
                         [](const auto&) { return std::string("Blocks64"); });

TEST(AttendRows, AQueryHeadGetsTheSameBitsInAnyGroupAndInParts) {
  constexpr int most = 70, stride = 48;
  constexpr std::int64_t n = 200;
  const std::vector<f16> memory = random_rows(n, 1);
  const std::vector<float> q = normal(most * stride, 2);
  std::vector<const f16*> rows;
  for (std::int64_t i = 0; i < n; ++i) rows.push_back(memory.data() + i * 2 * d);
  struct Result {
    std::vector<float> weighted, max, sum;
    explicit Result(int queries)
        : weighted(static_cast<std::size_t>(queries * stride)),
          max(static_cast<std::size_t>(queries), AttentionState{}.max),
          sum(static_cast<std::size_t>(queries)) {}
    QueryGroup group(const float* from) {
      return {from, static_cast<int>(max.size()), d, stride, weighted.data(), max.data(), sum.data()};
    }
  };
  Result alone(0);
  for (int i = 0; i < most; ++i) {
    Result one(1);
    attend_rows(rows.data(), n, one.group(q.data() + i * stride));
    alone.weighted.insert(alone.weighted.end(), one.weighted.begin(), one.weighted.end());
    alone.max.push_back(one.max[0]);
    alone.sum.push_back(one.sum[0]);
  }
  for (int queries = 1; queries <= most; ++queries) {
    Result together(queries);
    const std::int64_t first = queries % 6 * kTileRows;
    attend_rows(rows.data(), first, together.group(q.data()));
    attend_rows(rows.data() + first, n - first, together.group(q.data()));
    for (int i = 0; i < queries; ++i) {
      const auto at = static_cast<std::size_t>(i);
      ASSERT_EQ(together.max[at], alone.max[at]) << i << " of " << queries;
      ASSERT_EQ(together.sum[at], alone.sum[at]) << i << " of " << queries;
      ASSERT_EQ(std::memcmp(together.weighted.data() + at * stride, alone.weighted.data() + at * stride,
                            stride * sizeof(float)),
                0)
          << i << " of " << queries;
    }
  }
}

}  // namespace
}  // namespace hayloft::gpu
