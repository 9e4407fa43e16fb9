#include "runtime/decode/prefill_read.h"

#include <gtest/gtest.h>

#include "offload/error.h"

namespace hayloft::runtime {
namespace {

constexpr std::uint64_t one = std::uint64_t{1} << 40;

PrefillRead some_read() {
  return {{1000, 1000, {{4, 4 * one}, {4, 4 * one}}, {{3, 3}, {3, 1}}},
          {1000, 200, {{4, 4 * one}, {4, 3 * one}}, {{3, 0}, {3, 0}}}};
}

TEST(PrefillReadLine, SaysWhatWasReadAndTheWorstHead) {
  EXPECT_EQ(prefill_read_line(some_read()),
            "60.0% of the keys read, 93.8% of the attention mass caught (least 75.0%, global layer 1 head 1)");
  EXPECT_EQ(prefill_read_line({}), "");
  EXPECT_EQ(prefill_read_line({{10, 10, {{2, 2 * one}}, {}}}),
            "100.0% of the keys read, 100.0% of the attention mass caught");
  EXPECT_TRUE(left_out(some_read()));
  EXPECT_FALSE(left_out({{10, 10, {}, {}}}));
}

TEST(PrefillReadTable, HasALineForEachLayer) {
  EXPECT_EQ(prefill_read_table(some_read()),
            "global layer  keys read  heads that read all  mass caught  least of a head\n"
            "------------  ---------  -------------------  -----------  ---------------\n"
            "0                100.0%               1 of 2       100.0%           100.0%\n"
            "1                 20.0%               0 of 2        87.5%            75.0%\n");
}

TEST(PrefillReadBytes, AreTheSameAgainAndRefusedWhereTheyAreNot) {
  const std::vector<std::byte> sound = save_prefill_read(some_read());
  EXPECT_EQ(save_prefill_read(load_prefill_read(sound)), sound);
  for (std::size_t bytes = 0; bytes < sound.size(); ++bytes) {
    EXPECT_THROW(load_prefill_read(std::span(sound).first(bytes)), Error) << bytes;
  }
  PrefillRead more = some_read();
  more[0].attended = 1001;
  EXPECT_THROW(load_prefill_read(save_prefill_read(more)), Error);
  more = some_read();
  more[1].heads[0].caught = 5 * one;
  EXPECT_THROW(load_prefill_read(save_prefill_read(more)), Error);
  more = some_read();
  more[1].choices[1].whole = 4;
  EXPECT_THROW(load_prefill_read(save_prefill_read(more)), Error);
}

}  // namespace
}  // namespace hayloft::runtime
