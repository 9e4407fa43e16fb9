#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "gpu/make_backend.h"
#include "runtime/fidelity/ranking.h"

namespace hayloft::runtime {
namespace {

// 200 tokens of random keys, 160 of them in the store, 40 in the tail; two heads with two query heads each.
class RecallTest : public ::testing::Test {
 protected:
  static constexpr int heads = 2, g = 2, d = 16, B = 32, stored = 160, tail = 40, total = stored + tail;

  RecallTest() {
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    rows.resize(static_cast<std::size_t>(heads * total * 2 * d));
    for (f16& x : rows) x = to_f16(normal(random));
    q.resize(static_cast<std::size_t>(heads * g * d));
    for (float& x : q) x = 2 * normal(random);

    for (int block = 0; block < stored / B; ++block) {
      offload::BlockWriter writer = store.start_block();
      for (int head = 0; head < heads; ++head) {
        offload::fill_block(store.layout(), writer.data(), head, row(head, block * B), 2 * d, B);
      }
      store.commit(0, std::move(writer), B);
    }
    for (int head = 0; head < heads; ++head) {
      tail_rows.insert(tail_rows.end(), row(head, stored), row(head, stored) + tail * 2 * d);
    }
    cache = {0, 1, heads, d, store.layer(0), {tail_rows.data(), tail, 0, tail, stored}};
  }

  const f16* row(int head, int position) const { return rows.data() + (head * total + position) * 2 * d; }

  double logit(int query_head, int position) const {
    double sum = 0;
    for (int i = 0; i < d; ++i) sum += double{q[query_head * d + i]} * to_float(row(query_head / g, position)[i]);
    return sum / std::sqrt(double{d});
  }

  std::vector<int> true_top(int list, int k, index::SelectPer per) const {
    std::vector<double> score(total, 0.0);
    const int first = per == index::SelectPer::kv_head ? list * g : list;
    const int count = per == index::SelectPer::kv_head ? g : 1;
    for (int h = first; h < first + count; ++h) {
      double sum = 0;
      for (int t = 0; t < total; ++t) sum += std::exp(logit(h, t));
      for (int t = 0; t < total; ++t) score[t] += std::exp(logit(h, t)) / sum;
    }
    std::vector<int> order(total);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return score[a] > score[b]; });
    order.resize(static_cast<std::size_t>(k));
    return order;
  }

  double expected(const StepTrace& trace, int k, index::SelectPer per) const {
    const int lists = per == index::SelectPer::kv_head ? heads : heads * g;
    int caught = 0;
    for (int list = 0; list < lists; ++list) {
      std::set<int> attended;
      for (const auto& range : trace.ranges) {
        for (auto t = range.begin; t < range.end; ++t) attended.insert(static_cast<int>(t));
      }
      for (int i = 0; i < trace.k; ++i) attended.insert(trace.positions[static_cast<std::size_t>(list * trace.k + i)]);
      for (const int position : true_top(list, k, per)) caught += static_cast<int>(attended.count(position));
    }
    return static_cast<double>(caught) / (k * lists);
  }

  // The mean over the lists of what recall_of() gives.
  double recall(const StepTrace& trace, std::int64_t k, index::SelectPer per) {
    const HostTail host_tail(*backend, cache, backend->stream());
    const StepQuery step{cache.store, host_tail, q.data(), heads * g};
    const std::vector<double> lists =
        recall_of(rank_positions(step, exact_scores(step), k, per, backend->threads()), trace);
    return std::accumulate(lists.begin(), lists.end(), 0.0) / static_cast<double>(lists.size());
  }

  offload::Topology topology;
  offload::Threads threads{2};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  offload::Arena arena{topology, {.budget_bytes = 16 << 20}};
  offload::Store store{arena, {1, heads, d, B, offload::ColumnFormat::f16}};
  std::vector<f16> rows, tail_rows;
  std::vector<float> q;
  gpu::CacheView cache;
};

TEST_F(RecallTest, IsTheShareOfTheTrueTopKByABruteForceCount) {
  std::mt19937 random(5);
  for (const index::SelectPer per : {index::SelectPer::kv_head, index::SelectPer::query_head}) {
    StepTrace trace;
    trace.lists = per == index::SelectPer::kv_head ? heads : heads * g;
    trace.k = 20;
    for (int list = 0; list < trace.lists; ++list) {  // half of what matters, and some noise
      std::set<int> picked;
      for (const int position : true_top(list, 20, per)) {
        if (position < stored && picked.size() < 10) picked.insert(position);
      }
      while (static_cast<int>(picked.size()) < trace.k) picked.insert(static_cast<int>(random() % stored));
      trace.positions.insert(trace.positions.end(), picked.begin(), picked.end());
    }
    trace.ranges[0] = {stored, total};
    for (const int k : {1, 20, 150, total}) {
      EXPECT_DOUBLE_EQ(recall(trace, k, per), expected(trace, k, per)) << "k = " << k;
    }
  }
}

TEST_F(RecallTest, IsOneWhenEverythingIsAttendedAndZeroWhenNothingIs) {
  StepTrace trace;
  EXPECT_EQ(recall(trace, 30, index::SelectPer::kv_head), 0);
  trace.ranges[0] = {0, total};
  EXPECT_EQ(recall(trace, 30, index::SelectPer::kv_head), 1);
}

}  // namespace
}  // namespace hayloft::runtime
