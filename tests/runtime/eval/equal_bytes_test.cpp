#include "runtime/eval/equal_bytes.h"

#include <gtest/gtest.h>

#include "offload/error.h"
#include "runtime/attention/counters.h"

namespace hayloft::runtime::eval {
namespace {

constexpr std::int64_t S = 65536;
constexpr int d = 128;

MethodOptions method(const std::string& text) {
  return parse_method(text, {});
}

MethodOptions at(const std::string& text, int bits, const ReadShape& shape = {S, d, 1, offload::ColumnFormat::f16}) {
  const EqualBytes equal = at_equal_bytes({method(text)}, {bits}, shape);
  EXPECT_EQ(equal.methods.size(), 1u) << text;
  return equal.methods.empty() ? MethodOptions() : equal.methods.front();
}

// Bits of every position that one KV head's step reads besides k rows, by the papers' count of elements (of 16 bits)
// less what does not grow with S.
double bits_beyond_rows(std::uint64_t elements, std::int64_t k) {
  return 16.0 * static_cast<double>(elements - 2 * static_cast<std::uint64_t>(k) * d) / S;
}

TEST(EqualBytes, ComponentsFollowTheFormatOfTheColumns) {
  EXPECT_EQ(at("sparq:k=128", 64).rank, 4);
  EXPECT_EQ(at("sparq:k=128", 64, {S, d, 1, offload::ColumnFormat::int8}).rank, 8);
  EXPECT_EQ(at("sparq:k=128", 64, {S, d, 1, offload::ColumnFormat::int4}).rank, 16);
  EXPECT_EQ(at("sparq:k=128", 64, {S, d, 1, offload::ColumnFormat::planes}).rank, 16);
  EXPECT_EQ(at("planes:k=128", 64, {S, d, 1, offload::ColumnFormat::planes}).bits, 64);
  EXPECT_EQ(at("planes:k=128", 4096, {S, d, 1, offload::ColumnFormat::planes}).bits, 4 * d);
  EXPECT_EQ(at("lowrank:k=128", 64, {S, d, 1, offload::ColumnFormat::int4}).rank, 4);
  EXPECT_EQ(at("sparq:k=128", 4096, {S, d, 1, offload::ColumnFormat::int4}).rank, d);
}

TEST(EqualBytes, TheSameIsReadOfEveryPosition) {
  constexpr int bits = 64;
  const MethodOptions sparq = at("sparq:k=128", bits);
  EXPECT_NEAR(bits_beyond_rows(sparq_elements(S, static_cast<std::uint64_t>(sparq.rank), 128, d), 128), bits, 0.2);
  const MethodOptions window = at("window:k=128", bits);
  const auto k = static_cast<std::uint64_t>(window.k.at(0).of(S));
  EXPECT_EQ(k, 128u + S * bits / (32 * d));
  EXPECT_NEAR(bits_beyond_rows(window_elements(k, d), 128), bits, 0.1);
  const MethodOptions pages = at("pages:k=128", bits);
  const auto attended = static_cast<std::uint64_t>(pages.k.at(0).of(S));
  EXPECT_EQ(pages.page, 64);
  EXPECT_NEAR(bits_beyond_rows(pages_elements(S / 64, attended, d), 128), bits, 0.1);
  EXPECT_EQ(at("pages:k=128", 300).page, 16);
  EXPECT_EQ(at("pages:k=128", 300).k.at(0).of(S), 128 + S * (300 - 256) / (32 * d));
}

TEST(EqualBytes, ListsAreWhatCentroidsAndQueryHeadsLeave) {
  // 1,024 lists of 64 keys: centroids take 32 d 1,024 / S = 64 bits, a list 16 d / 1,024 = 2 bits.
  EXPECT_EQ(at("ann:IVF1024,Flat:k=128", 128).probes, 32);
  EXPECT_EQ(at("ann:IVF1024,Flat:k=128", 512, {S, d, 4, offload::ColumnFormat::f16}).probes, 32);
}

TEST(EqualBytes, WhatReadsEveryKeyStaysAsItIsOnce) {
  const std::vector<MethodOptions> asked{method("dense"), method("topk:k=64"), method("sparq:k=64")};
  const EqualBytes equal = at_equal_bytes(asked, {128, 32, 64}, {S, d, 1, offload::ColumnFormat::f16});
  ASSERT_EQ(equal.methods.size(), 5u);
  EXPECT_EQ(equal.methods[0], asked[0]);
  EXPECT_EQ(equal.methods[1], asked[1]);
  EXPECT_EQ(equal.methods[2].rank, 2);
  EXPECT_EQ(equal.methods[4].rank, 8);
  EXPECT_TRUE(equal.left_out.empty());
}

TEST(EqualBytes, WhatCannotBeHadIsSaid) {
  const EqualBytes equal = at_equal_bytes(
      {method("sparq"), method("pages"), method("ann:HNSW32,Flat"), method("window:window=64")}, {8}, {S, d, 1, {}});
  EXPECT_TRUE(equal.methods.empty());
  ASSERT_EQ(equal.left_out.size(), 4u);
  EXPECT_EQ(equal.left_out[0], "sparq at 8 bits: one component takes 16 bits");
  EXPECT_EQ(equal.left_out[1], "pages at 8 bits: bounds of pages of 64 tokens take 64 bits");
  EXPECT_EQ(equal.left_out[3].substr(0, 21), "window at 8 bits: win");
  EXPECT_THROW(at_equal_bytes({method("sparq")}, {0}, {S, d, 1, {}}), Error);
}

}  // namespace
}  // namespace hayloft::runtime::eval
