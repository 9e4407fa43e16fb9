#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "tests/gpu/cuda/backends.h"

// A decode step's attention on CUDA against the CPU backend.
namespace hayloft::testing {

struct Heads {
  int kv_heads = 2;
  int group = 2;
  int head_dim = 64;

  int query_heads() const { return kv_heads * group; }
};

class Decode : public CudaTest {
 protected:
  // `lists` ascending lists of k of the store's positions.
  static std::vector<std::int32_t> random_lists(const SharedCache& cache, int lists, int k, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<std::int32_t> positions;
    for (int list = 0; list < lists; ++list) {
      std::set<std::int32_t> chosen;
      while (static_cast<int>(chosen.size()) < k) {
        chosen.insert(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(cache.values().shape().stored)));
      }
      positions.insert(positions.end(), chosen.begin(), chosen.end());
    }
    return positions;
  }

  // The positions that a query head attends to.
  static std::vector<std::int64_t> attended(const gpu::Attended& what, const std::vector<std::int32_t>& lists,
                                            int query_heads, int query_head) {
    std::vector<std::int64_t> positions;
    if (what.lists > 0) {
      const auto list = lists.begin() + query_head * what.lists / query_heads * what.k;
      positions.assign(list, list + what.k);
    }
    for (const gpu::Attended::Range& r : what.ranges) {
      const std::vector<std::int64_t> more = range(r.begin, r.end);
      positions.insert(positions.end(), more.begin(), more.end());
    }
    return positions;
  }

  // Into the tail, on both sides.
  void put(SharedCache& cache, int head, std::int64_t token, int component, f16 value) {
    const gpu::CacheView view = cache.on_cpu();
    const std::int64_t row = head * view.tail.capacity + view.tail.first + token;
    const std::int64_t at = row * 2 * view.head_dim + component;
    view.tail.rows[at] = value;
    cuda->to_device(cache.on_cuda().tail.rows + at, &value, sizeof value, cuda->stream());
  }

  std::vector<float> on_cpu(SharedCache& cache, const std::vector<float>& q, int query_heads, gpu::Attended what,
                            const std::vector<std::int32_t>& lists, const std::vector<float>& alpha) {
    std::vector<float> out(q.size());
    what.positions = lists.data();
    what.alpha = alpha.empty() ? nullptr : alpha.data();
    cpu->attend(cache.on_cpu(), q.data(), query_heads, what, out.data(), {});
    return out;
  }

  static std::vector<float> on_cuda(gpu::Backend& backend, SharedCache& cache, const std::vector<float>& q,
                                    int query_heads, gpu::Attended what, const std::vector<std::int32_t>& lists,
                                    const std::vector<float>& alpha) {
    const gpu::Stream stream = backend.stream();
    const gpu::Buffer device_q = upload(backend, q);
    const gpu::Buffer device_lists = upload(backend, lists);
    const gpu::Buffer device_alpha = upload(backend, alpha);
    const gpu::Buffer out = backend.allocate(q.size() * sizeof(float), stream);
    what.positions = device_lists.as<std::int32_t>();
    what.alpha = alpha.empty() ? nullptr : device_alpha.as<float>();
    backend.attend(cache.on_cuda(), device_q.as<float>(), query_heads, what, out.as<float>(), stream);
    return download<float>(backend, out);
  }

  // Either backend may be off by what tests/support/cpu_cache.h derives for f32, in either direction, and alpha and the
  // mean value add a rounding of the largest value each, of which the mean's sum over the tail is the largest.
  void expect_alike(gpu::Backend& backend, SharedCache& cache, const Heads& heads, const gpu::Attended& what,
                    const std::vector<std::int32_t>& lists = {}, const std::vector<float>& alpha = {}) {
    const std::vector<float> q = random_query(heads.query_heads(), heads.head_dim, 77);
    const std::vector<float> expected = on_cpu(cache, q, heads.query_heads(), what, lists, alpha);
    const std::vector<float> actual = on_cuda(backend, cache, q, heads.query_heads(), what, lists, alpha);
    double tolerance = 0;
    for (int head = 0; head < heads.query_heads(); ++head) {
      tolerance = std::max(tolerance, attention(cache.values(), head / heads.group, q.data() + head * heads.head_dim,
                                                attended(what, lists, heads.query_heads(), head))
                                          .tolerance);
    }
    constexpr double largest_value = 6;  // of all the normal variates drawn here
    constexpr double eps = std::numeric_limits<float>::epsilon();
    if (!alpha.empty()) tolerance += largest_value * 80 * eps;
    EXPECT_TRUE(near(actual, expected, 2 * tolerance));
  }
};

}  // namespace hayloft::testing
