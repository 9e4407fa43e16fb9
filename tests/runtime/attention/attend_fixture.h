#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "gpu/make_backend.h"
#include "runtime/attention/attend_file.h"
#include "tests/support/cpu_cache.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime {

using hayloft::testing::CacheShape;
using hayloft::testing::RandomCache;

struct Problem {
  int query_heads = 4;
  int kv_heads = 2;
  int head_dim = 32;
  std::int64_t tokens = 300;  // with blocks of 64: the last one is ragged
  int block_tokens = 64;
  std::int64_t queries = 3;
};

// Random tensors in a file, and attention over them in double.
class AttendTest : public ::testing::Test {
 protected:
  void make(const Problem& problem) {
    problem_ = problem;
    CacheShape shape;
    shape.kv_heads = problem.kv_heads;
    shape.head_dim = problem.head_dim;
    shape.block_tokens = problem.block_tokens;
    shape.stored = problem.tokens;
    shape.seed = 7;
    cache_.emplace(shape);
    q_ = hayloft::testing::normal(static_cast<std::size_t>(problem.queries * problem.query_heads * problem.head_dim), 8,
                                  2);
    write("F32", [](double x) { return raw(static_cast<float>(x)); });
  }

  template <class T>
  static std::string raw(T value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  }

  // The problem's tensors as a .safetensors file; `encode` gives an element's bytes in the dtype.
  void write(const std::string& dtype, const std::function<std::string(double)>& encode) {
    const Problem& p = problem_;
    std::string data;
    std::string header;
    const auto add = [&](const char* name, std::vector<std::int64_t> shape, auto&& element) {
      const std::size_t begin = data.size();
      for (std::int64_t a = 0; a < shape[0]; ++a) {
        for (std::int64_t b = 0; b < shape[1]; ++b) {
          for (int c = 0; c < p.head_dim; ++c) data += encode(element(a, b, c));
        }
      }
      header += (header.empty() ? "{" : ",") + nlohmann::json(name).dump() + ":" +
                nlohmann::json{{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, data.size()}}}.dump();
    };
    add("q", {p.queries, p.query_heads, p.head_dim}, [&](std::int64_t n, std::int64_t h, int c) {
      return q_[static_cast<std::size_t>((n * p.query_heads + h) * p.head_dim + c)];
    });
    add("k", {p.kv_heads, p.tokens, p.head_dim},
        [&](std::int64_t h, std::int64_t t, int c) { return cache_->key(static_cast<int>(h), t, c); });
    add("v", {p.kv_heads, p.tokens, p.head_dim},
        [&](std::int64_t h, std::int64_t t, int c) { return cache_->value(static_cast<int>(h), t, c); });
    header += "}";
    folder_.write("qkv.safetensors", raw(static_cast<std::uint64_t>(header.size())) + header + data);
  }

  AttendOutput attend(std::string_view method, MethodOptions defaults = {}) {
    return attend_file(folder_ / "qkv.safetensors", parse_method(method, defaults), *backend_, arena_,
                       {problem_.block_tokens});
  }

  const float* query(std::int64_t n, int head) const {
    return q_.data() + (n * problem_.query_heads + head) * problem_.head_dim;
  }
  int kv_head(int query_head) const { return query_head * problem_.kv_heads / problem_.query_heads; }

  // The positions of query n that apply to a query head, without padding.
  static std::vector<std::int64_t> positions(const AttendOutput& output, std::int64_t n, int query_head) {
    const int list = query_head * output.lists / output.query_heads;
    std::vector<std::int64_t> positions;
    for (std::int64_t i = 0; i < output.width; ++i) {
      const std::int32_t p = output.positions[static_cast<std::size_t>((n * output.lists + list) * output.width + i)];
      if (p >= 0) positions.push_back(p);
    }
    return positions;
  }

  void expect_attention_over(const AttendOutput& output,
                             const std::function<std::vector<std::int64_t>(std::int64_t n, int head)>& over) {
    for (std::int64_t n = 0; n < problem_.queries; ++n) {
      for (int head = 0; head < problem_.query_heads; ++head) {
        const auto expected = hayloft::testing::attention(*cache_, kv_head(head), query(n, head), over(n, head));
        for (int c = 0; c < problem_.head_dim; ++c) {
          const std::size_t at = static_cast<std::size_t>((n * problem_.query_heads + head) * problem_.head_dim + c);
          ASSERT_NEAR(output.y[at], expected.y[static_cast<std::size_t>(c)], expected.tolerance)
              << "query " << n << " head " << head << " component " << c;
        }
      }
    }
  }

  Problem problem_;
  std::optional<RandomCache> cache_;
  std::vector<float> q_;
  test::TemporaryFolder folder_;
  offload::Topology topology_;
  offload::Threads threads_{2};
  std::unique_ptr<gpu::Backend> backend_ = gpu::make_cpu_backend(threads_);
  offload::Arena arena_{topology_, {.budget_bytes = std::uint64_t{1} << 30}};
};

}  // namespace hayloft::runtime
