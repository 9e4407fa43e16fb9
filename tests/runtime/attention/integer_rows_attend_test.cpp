#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gpu/make_backend.h"
#include "runtime/attention/attend.h"

// Tests what every method makes of a store whose rows are integers: the same, to the bit, as of one with the f16 rows
// that those integers stand for.
namespace hayloft::runtime::integer_rows {
namespace {

constexpr int kv_heads = 2, group = 2, d = 48, B = 64;
constexpr std::int64_t S = 700, queries = 3;  // the last block is not full

struct Tensors {
  std::vector<float> q, k, v;

  AttendTensors view() const {
    const auto bytes = [](const std::vector<float>& x) { return std::as_bytes(std::span(x)); };
    return {"test",
            {"F32", {queries, kv_heads * group, d}, bytes(q)},
            {"F32", {kv_heads, S, d}, bytes(k)},
            {"F32", {kv_heads, S, d}, bytes(v)}};
  }
};

// One component of K in eight lies far from zero.
Tensors some_tensors() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  Tensors tensors;
  tensors.q.resize(queries * kv_heads * group * d);
  tensors.k.resize(kv_heads * S * d);
  tensors.v.resize(tensors.k.size());
  for (float& x : tensors.q) x = 2 * normal(random);
  for (std::size_t i = 0; i < tensors.k.size(); ++i) tensors.k[i] = normal(random) + (i % 8 == 5 ? 20.0f : 0.0f);
  for (float& x : tensors.v) x = normal(random);
  return tensors;
}

class IntegerRowsTest : public ::testing::TestWithParam<offload::RowFormat> {
 protected:
  // The tensors whose f16 rows a store of integer rows stands for.
  Tensors stood_for() {
    const offload::Store store =
        make_store(tensors_.view(), arena_, {B, offload::ColumnFormat::f16, GetParam()}, threads_);
    const offload::LayerView view = store.layer(0);
    Tensors result = tensors_;
    std::vector<f16> row(2 * d);
    for (int head = 0; head < kv_heads; ++head) {
      for (std::int64_t t = 0; t < S; ++t) {
        const f16* const at = view.row(head, t, row.data());
        for (int c = 0; c < d; ++c) {
          result.k[static_cast<std::size_t>((head * S + t) * d + c)] = to_float(at[c]);
          result.v[static_cast<std::size_t>((head * S + t) * d + c)] = to_float(at[d + c]);
        }
      }
    }
    return result;
  }

  AttendOutput run(const Tensors& tensors, const std::string& method, offload::ColumnFormat columns,
                   offload::RowFormat rows) {
    return attend(tensors.view(), parse_method(method, {}), *backend_, arena_, {B, columns, rows});
  }

  Tensors tensors_ = some_tensors();
  offload::Topology topology_;
  offload::Threads threads_{2};
  std::unique_ptr<gpu::Backend> backend_ = gpu::make_cpu_backend(threads_);
  offload::Arena arena_{topology_, {}};
};

TEST_P(IntegerRowsTest, WhatIsExactIsThatOfTheRowsTheyStandFor) {
  const Tensors plain = stood_for();
  ASSERT_NE(plain.k, tensors_.k);
  for (const std::string method :
       {"dense", "window:k=50", "topk:k=40", "topk:k=40:select=kv-head", "topk:k=40:engine=faiss", "pages:k=64:page=16",
        "ann:k=40", "ann:IVF4,Flat:k=40", "ann:HNSW8,Flat:k=40", "lowrank:r=16:k=40"}) {
    SCOPED_TRACE(method);
    // Over f16 columns of what was given, an exact search has to look into the rows.
    const AttendOutput integers = run(tensors_, method, offload::ColumnFormat::f16, GetParam());
    const AttendOutput halves = run(plain, method, offload::ColumnFormat::int4, offload::RowFormat::f16);
    EXPECT_EQ(integers.positions, halves.positions);
    if (method.starts_with("lowrank")) continue;  // whose mean of V is of what was given
    EXPECT_EQ(integers.y, halves.y);
  }
}

TEST_P(IntegerRowsTest, ColumnsAndSumsAreOfWhatWasGiven) {
  const auto share_of_bytes = [](const AttendOutput& few, const AttendOutput& many) {
    const auto rows = [](const AttendOutput& output) {
      return static_cast<double>(output.counters.front().at(Place::link, Kind::rows));
    };
    return rows(few) / rows(many);
  };
  for (const std::string method : {"sparq:r=12:k=40", "planes:bits=24:k=40"}) {
    SCOPED_TRACE(method);
    const auto columns = offload::ColumnFormat::planes;
    const AttendOutput integers = run(tensors_, method, columns, GetParam());
    const AttendOutput halves = run(tensors_, method, columns, offload::RowFormat::f16);
    EXPECT_EQ(integers.positions, halves.positions);
    EXPECT_EQ(integers.alpha, halves.alpha);
    EXPECT_NE(integers.y, halves.y);
    const double row = GetParam() == offload::RowFormat::int8 ? 2 * d + 8 : d + 8;  // scales: 2 of int8, 4 of int4
    EXPECT_DOUBLE_EQ(share_of_bytes(integers, halves), row / (4 * d));
    double error = 0, size = 0;
    for (std::size_t i = 0; i < halves.y.size(); ++i) {
      error += std::pow(integers.y[i] - halves.y[i], 2);
      size += std::pow(halves.y[i], 2);
    }
    // V of a group is off by 1/2 of 1/8 (1/128) of its largest element, which in 48 normal ones is 2.3 of them, and
    // scores by as much: some tenths (hundredths) of the output at most.
    EXPECT_LT(std::sqrt(error / size), GetParam() == offload::RowFormat::int8 ? 0.03 : 0.5);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, IntegerRowsTest,
                         ::testing::Values(offload::RowFormat::int8, offload::RowFormat::int4),
                         [](const auto& format) { return offload::name(format.param); });

}  // namespace
}  // namespace hayloft::runtime::integer_rows
