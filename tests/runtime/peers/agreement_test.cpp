#include "runtime/peers/agreement.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/cluster/local_ranks.h"

namespace hayloft::runtime::cluster {
namespace {

// Returns what each of the ranks throws as a SharedError; empty where it goes on.
std::vector<std::string> thrown(int count, const std::function<void(Communicator&)>& work) {
  std::vector<std::string> messages(static_cast<std::size_t>(count));
  run_local_ranks(count, [&](Communicator& ranks) {
    try {
      work(ranks);
    } catch (const SharedError& error) {
      messages[static_cast<std::size_t>(ranks.rank())] = error.what();
    }
  });
  return messages;
}

TEST(Agreement, RanksThatHaveTheSameGoOn) {
  for (const std::string& message : thrown(3, [](Communicator& ranks) {
         require_same(ranks, std::vector<Fact>{{"weights", "abc"}, {"text", ""}});
       })) {
    EXPECT_EQ(message, "");
  }
}

TEST(Agreement, ARankWithAnotherFactIsNamedOnAll) {
  for (const std::string& message : thrown(4, [](Communicator& ranks) {
         require_same(
             ranks, std::vector<Fact>{{"version of hayloft", "0.1"}, {"weights", ranks.rank() == 2 ? "other" : "abc"}});
       })) {
    EXPECT_EQ(message.rfind("rank 2 has another weights than rank 0 (", 0), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

TEST(Agreement, WhatFailsOnOneRankIsSaidOnAll) {
  for (const std::string& message : thrown(3, [](Communicator& ranks) {
         together(ranks, [&] {
           if (ranks.rank() == 1) fail("no such model");
         });
       })) {
    EXPECT_EQ(message, "rank 1: no such model");
  }
}

TEST(Agreement, WhatFailsOnAllIsSaidOnceWithoutARank) {
  for (const std::string& message :
       thrown(3, [](Communicator& ranks) { together(ranks, [] { fail("no such model"); }); })) {
    EXPECT_EQ(message, "no such model");
  }
  for (const std::string& message : thrown(2, [](Communicator& ranks) { together(ranks, [] {}); })) {
    EXPECT_EQ(message, "");
  }
}

TEST(Agreement, ALongMessageIsCut) {
  const std::string text(2000, 'x');
  for (const std::string& message :
       thrown(2, [&](Communicator& ranks) { together(ranks, [&] { throw Error(text); }); })) {
    EXPECT_EQ(text.rfind(message, 0), 0u);
    EXPECT_GT(message.size(), 400u);
  }
}

}  // namespace
}  // namespace hayloft::runtime::cluster
