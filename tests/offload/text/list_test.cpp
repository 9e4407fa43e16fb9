#include "offload/text/list.h"

#include <gtest/gtest.h>

namespace hayloft {
namespace {

using Pieces = std::vector<std::string_view>;

TEST(List, IsSplitAtItsCommas) {
  EXPECT_EQ(split_list("64k"), (Pieces{"64k"}));
  EXPECT_EQ(split_list("64k,256k,1M"), (Pieces{"64k", "256k", "1M"}));
  EXPECT_EQ(split_list("sparq:r=8:k=64", ':'), (Pieces{"sparq", "r=8", "k=64"}));
}

TEST(List, EmptyPiecesCount) {
  EXPECT_EQ(split_list(""), (Pieces{""}));
  EXPECT_EQ(split_list("64,,8"), (Pieces{"64", "", "8"}));
  EXPECT_EQ(split_list("64,"), (Pieces{"64", ""}));
}

}  // namespace
}  // namespace hayloft
