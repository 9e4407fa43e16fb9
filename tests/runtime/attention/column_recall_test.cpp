#include "runtime/attention/column_recall.h"

#include <gtest/gtest.h>

#include "offload/error.h"

namespace hayloft::runtime {
namespace {

using offload::ColumnFormat;

ColumnRecall some_recall() {
  ColumnRecall recall;
  recall.tokens = 1536;
  recall.queries = 8;
  recall.k = 128;
  recall.settings = {{{ColumnFormat::f16, 8}, {0.4f, 0.9f}},
                     {{ColumnFormat::f16, 32}, {0.6f, 0.95f}},
                     {{ColumnFormat::planes, 64}, {0.3f, 0.7f}}};
  recall.chosen = ColumnSetting{ColumnFormat::f16, 32};
  return recall;
}

TEST(ColumnRecall, IsTheSameAgainOnceSaved) {
  ColumnRecall recall = some_recall();
  EXPECT_EQ(load_column_recall(save_column_recall(recall)), recall);
  recall.chosen.reset();
  EXPECT_EQ(load_column_recall(save_column_recall(recall)), recall);
}

TEST(ColumnRecall, RefusesBytesThatAreCutOffOrOutOfRange) {
  const std::vector<std::byte> sound = save_column_recall(some_recall());
  for (std::size_t bytes = 0; bytes < sound.size(); ++bytes) {
    EXPECT_THROW(load_column_recall(std::span(sound).first(bytes)), Error) << bytes;
  }
  ColumnRecall recall = some_recall();
  recall.settings[0].recall[0] = 1.5f;
  EXPECT_THROW(load_column_recall(save_column_recall(recall)), Error);
  recall = some_recall();
  recall.settings[0].setting.columns = static_cast<ColumnFormat>(99);
  EXPECT_THROW(load_column_recall(save_column_recall(recall)), Error);
}

TEST(ColumnRecall, JudgesASettingByTheLargestMeasuredThatIsNoLarger) {
  const ColumnRecall recall = some_recall();
  EXPECT_TRUE(recall.blind({ColumnFormat::f16, 8}, 0));
  EXPECT_TRUE(recall.blind({ColumnFormat::f16, 31}, 0));
  EXPECT_FALSE(recall.blind({ColumnFormat::f16, 32}, 0));
  EXPECT_FALSE(recall.blind({ColumnFormat::f16, 100}, 0));
  EXPECT_FALSE(recall.blind({ColumnFormat::f16, 8}, 1));
  EXPECT_TRUE(recall.blind({ColumnFormat::f16, 4}, 0)) << "fewer than the fewest: by the fewest";
  EXPECT_TRUE(recall.blind({ColumnFormat::planes, 64}, 0));
}

TEST(ColumnRecall, CallsNothingBlindThatWasNotMeasured) {
  const ColumnRecall recall = some_recall();
  EXPECT_FALSE(recall.blind({ColumnFormat::int4, 8}, 0));
  EXPECT_FALSE(recall.blind({ColumnFormat::f16, 8}, 2)) << "a layer that is not there";
}

TEST(ColumnRecall, CountsBitsByFormat) {
  EXPECT_EQ((ColumnSetting{ColumnFormat::f16, 16}.bits()), 256);
  EXPECT_EQ((ColumnSetting{ColumnFormat::int8, 16}.bits()), 128);
  EXPECT_EQ((ColumnSetting{ColumnFormat::int4, 16}.bits()), 64);
  EXPECT_EQ((ColumnSetting{ColumnFormat::planes, 64}.bits()), 64);
}

}  // namespace
}  // namespace hayloft::runtime
