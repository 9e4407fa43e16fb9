#include "runtime/attention/attend_file.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/checkpoint/safetensors.h"
#include "tests/runtime/attention/attend_fixture.h"
#include "tests/support/refusal.h"

// The files that `hayloft attend` reads and writes.
namespace hayloft::runtime {
namespace {

using test::refuses;

TEST_F(AttendTest, EveryFloatDtypeGivesTheSameAnswer) {
  make({});
  for (float& x : q_) x = std::round(x * 8) / 8;  // exact in every dtype, and K and V are f16 already
  write("F32", [](double x) { return raw(static_cast<float>(x)); });
  const AttendOutput single = attend("sparq:k=40");
  write("F64", [](double x) { return raw(x); });
  EXPECT_EQ(attend("sparq:k=40").y, single.y);
  write("F16", [](double x) { return raw(to_f16(static_cast<float>(x)).bits); });
  EXPECT_EQ(attend("sparq:k=40").y, single.y);
  write("BF16", [](double x) {
    return raw(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(x)) >> 16));
  });
  const AttendOutput brain = attend("sparq:k=40");  // K and V lose bits on the way
  write("F32", [](double x) {
    return raw(std::bit_cast<float>(std::bit_cast<std::uint32_t>(static_cast<float>(x)) & 0xffff0000u));
  });
  EXPECT_EQ(brain.y, attend("sparq:k=40").y);
}

TEST_F(AttendTest, BlocksDoNotChangeWhatIsAttended) {
  make({});
  const AttendOutput small = attend("sparq:k=40");
  problem_.block_tokens = 4096;
  const AttendOutput large = attend("sparq:k=40");
  EXPECT_EQ(small.positions, large.positions);
  EXPECT_EQ(small.counters[0].bytes, large.counters[0].bytes);
}

TEST_F(AttendTest, TheOutputFileHoldsTheTensorsThatThereAre) {
  make({});
  write_attend_output(folder_ / "y.safetensors", attend("sparq:k=40"));
  const SafetensorsFile sparq(folder_ / "y.safetensors");
  EXPECT_EQ(sparq.at("y").dtype, "F32");
  EXPECT_EQ(sparq.at("y").shape, (std::vector<std::int64_t>{3, 4, 32}));
  EXPECT_EQ(sparq.at("positions").dtype, "I32");
  EXPECT_EQ(sparq.at("positions").shape, (std::vector<std::int64_t>{3, 2, 40}));
  EXPECT_EQ(sparq.at("alpha").shape, (std::vector<std::int64_t>{3, 4}));

  write_attend_output(folder_ / "dense.safetensors", attend("dense"));
  const SafetensorsFile dense(folder_ / "dense.safetensors");
  EXPECT_EQ(dense.tensors().size(), 1u);
}

TEST_F(AttendTest, TheJsonHoldsTheCountersOfEveryQuery) {
  make({});
  const auto json = nlohmann::json::parse(attend_json(attend("sparq:r=8:k=40")));
  EXPECT_EQ(json["schema"], "hayloft.attend/1");
  EXPECT_EQ(json["r"], 8);
  EXPECT_EQ(json["k"], 40);
  EXPECT_EQ(json["window"], 10);
  ASSERT_EQ(json["counters"].size(), 3u);
  EXPECT_EQ(json["counters"][2]["bytes"]["link"]["rows"], 2 * 40 * 128);
  EXPECT_EQ(json["counters"][2]["rows_fetched"], 80);
}

TEST_F(AttendTest, OptionsThatTheTensorsCannotMeetAreRefusedByName) {
  make({});
  EXPECT_TRUE(refuses([&] { attend("topk:k=301"); }, {"--attn-k 301", "300"}));
  EXPECT_TRUE(refuses([&] { attend("sparq:k=301"); }, {"--attn-k 301", "300"}));
  EXPECT_TRUE(refuses([&] { attend("sparq:r=33"); }, {"--attn-r 33", "32"}));
  EXPECT_TRUE(refuses([&] { attend("lowrank:r=33"); }, {"--attn-r 33", "32"}));
  EXPECT_TRUE(refuses([&] { attend("h2o:k=40"); }, {"h2o", "0 of its 300 tokens"}));
  EXPECT_NO_THROW(attend("topk:k=300"));
  EXPECT_TRUE(refuses([&] { attend("sparq:k=40,20"); }, {"--attn-k 40,20", "of one", "one k"}));
}

// Half of k is drawn: of k = 1 nothing is left whose softmax a draw could stand beside.
TEST_F(AttendTest, ADrawStandsBesideRowsThatAreAttended) {
  make({});
  for (const std::string method : {"topk", "oracle", "sparq"}) {
    EXPECT_TRUE(
        refuses([&] { attend(method + ":k=1:rest=draw"); }, {"--attn-rest draw", "--attn-k 1", "raise it to 2"}));
    EXPECT_NO_THROW(attend(method + ":k=2:rest=draw"));
    EXPECT_NO_THROW(attend(method + ":k=2:window=1:rest=draw"));
  }
}

TEST_F(AttendTest, AutoSaysByWhatItAttended) {
  make({});
  const AttendOutput output = attend("auto:k=40");
  EXPECT_EQ(output.lists, 0) << "300 tokens are attended to densely";
  const auto json = nlohmann::json::parse(attend_json(output));
  EXPECT_EQ(json["attn"], "auto");
  EXPECT_EQ(json["by"], "dense");
  for (const char* const key : {"r", "k", "window"}) EXPECT_TRUE(json[key].is_null()) << key;
  EXPECT_FALSE(nlohmann::json::parse(attend_json(attend("sparq:r=8:k=40"))).contains("by"));
}

TEST_F(AttendTest, TensorsThatMakeNoSenseAreRefusedByName) {
  make({});
  const auto refused = [&](std::initializer_list<std::string> parts) {
    return refuses([&] { attend("dense"); }, parts);
  };
  write("I32", [](double x) { return raw(static_cast<std::int32_t>(x)); });
  EXPECT_TRUE(refused({"qkv.safetensors", "q", "I32"}));

  q_[5] = NAN;
  write("F32", [](double x) { return raw(static_cast<float>(x)); });
  EXPECT_TRUE(refused({"qkv.safetensors", "q", "nan", "query 0"}));
  q_[5] = 0;
  int element = 0;
  const int third_key = static_cast<int>(q_.size()) + 2;
  write("F32", [&](double x) { return raw(element++ == third_key ? 70000.f : static_cast<float>(x)); });
  EXPECT_TRUE(refused({"qkv.safetensors", "k", "70000", "[0, 0, 2]", "65504"}));

  const auto write_tensors = [&](std::vector<std::int64_t> q, std::vector<std::int64_t> k,
                                 std::vector<std::int64_t> v) {
    const std::vector<float> zeros(4096, 0.0f);
    std::vector<TensorToWrite> tensors;
    const auto add = [&](const char* name, const std::vector<std::int64_t>& shape) {
      if (shape.empty()) return;
      const auto n =
          static_cast<std::size_t>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
      tensors.push_back({name, "F32", shape, std::as_bytes(std::span(zeros).first(n))});
    };
    add("q", q);
    add("k", k);
    add("v", v);
    write_safetensors(folder_ / "qkv.safetensors", tensors);
  };
  write_tensors({1, 4, 8}, {2, 16, 8}, {});
  EXPECT_TRUE(refused({"qkv.safetensors", "v"}));
  write_tensors({4, 8}, {2, 16, 8}, {2, 16, 8});
  EXPECT_TRUE(refused({"q", "[4, 8]", "[N, Hq, d]"}));
  write_tensors({1, 4, 8}, {2, 0, 8}, {2, 0, 8});
  EXPECT_TRUE(refused({"k", "[2, 0, 8]"}));
  write_tensors({1, 4, 8}, {2, 16, 8}, {2, 15, 8});
  EXPECT_TRUE(refused({"[2, 16, 8]", "[2, 15, 8]"}));
  write_tensors({1, 4, 16}, {2, 16, 8}, {2, 16, 8});
  EXPECT_TRUE(refused({"[1, 4, 16]", "[2, 16, 8]", "head dimensions"}));
  write_tensors({1, 3, 8}, {2, 16, 8}, {2, 16, 8});
  EXPECT_TRUE(refused({"3 query heads", "2 KV heads"}));
  write_tensors({1, 4, 12}, {2, 16, 12}, {2, 16, 12});
  EXPECT_TRUE(refused({"12"})) << "not a multiple of 8";
}

}  // namespace
}  // namespace hayloft::runtime
