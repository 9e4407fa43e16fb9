#include "runtime/peers/communicator.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "offload/error.h"
#include "runtime/cluster/local_ranks.h"
#include "runtime/peers/tell.h"

namespace hayloft::runtime::cluster {
namespace {

TEST(LocalRanks, GatherWhatEachGivesInTheirOrder) {
  for (const int count : {1, 2, 3, 4}) {
    run_local_ranks(count, [&](Communicator& ranks) {
      EXPECT_EQ(ranks.ranks(), count);
      for (int round = 0; round < 20; ++round) {
        const std::array<int, 2> own{ranks.rank(), round};
        std::vector<int> all(2 * static_cast<std::size_t>(count));
        ranks.all_gather(Traffic::start, std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
        for (int rank = 0; rank < count; ++rank) {
          EXPECT_EQ(all[2 * static_cast<std::size_t>(rank)], rank);
          EXPECT_EQ(all[2 * static_cast<std::size_t>(rank) + 1], round);
        }
      }
    });
  }
}

TEST(LocalRanks, BroadcastWhatTheFirstHas) {
  run_local_ranks(3, [](Communicator& ranks) {
    int value = 100 + ranks.rank();
    ranks.broadcast(Traffic::token, std::as_writable_bytes(std::span(&value, 1)));
    EXPECT_EQ(value, 100);
  });
}

TEST(LocalRanks, AreToldWhatTheFirstHasToSayAtAnyLength) {
  run_local_ranks(3, [](Communicator& ranks) {
    for (const std::size_t length : {0U, 1U, 504U, 505U, 100000U}) {
      std::string expected;
      for (std::size_t i = 0; i < length; ++i) expected += static_cast<char>(i * 37 % 251);
      std::string text = ranks.rank() == 0 ? expected : "something else";
      const Ledger before = ranks.ledger();
      tell(ranks, Traffic::turn, text);
      EXPECT_EQ(text, expected);
      EXPECT_EQ(ranks.ledger().since(before).of(Traffic::turn).messages, length > 504 ? 2u : 1u);
    }
  });
}

TEST(LocalRanks, TheLedgerCountsWhatARankSendsAndGets) {
  run_local_ranks(4, [](Communicator& ranks) {
    std::vector<std::byte> own(10), all(40);
    ranks.all_gather(Traffic::attention, own, all);
    ranks.all_gather(Traffic::attention, own, all);
    const Ledger before = ranks.ledger();
    ranks.broadcast(Traffic::token, own);
    const Ledger::Entry& attention = ranks.ledger().of(Traffic::attention);
    EXPECT_EQ(attention.messages, 2u);
    EXPECT_EQ(attention.sent, 20u);
    EXPECT_EQ(attention.received, 60u);
    const Ledger::Entry last = ranks.ledger().since(before).total();
    EXPECT_EQ(last.messages, 1u);
    EXPECT_EQ(last.sent, ranks.rank() == 0 ? 10u : 0u);
    EXPECT_EQ(last.received, ranks.rank() == 0 ? 0u : 10u);
  });
  run_local_ranks(1, [](Communicator& ranks) {
    std::vector<std::byte> own(10), all(10);
    ranks.all_gather(Traffic::attention, own, all);
    EXPECT_EQ(ranks.ledger().total().messages, 0u) << "nobody to talk to";
  });
}

TEST(LocalRanks, WhatOneThrowsEndsTheOthers) {
  std::vector<std::string> ends(3);
  const auto work = [&](Communicator& ranks) {
    std::vector<std::byte> own(1), all(3);
    try {
      for (int round = 0;; ++round) {
        if (ranks.rank() == 1 && round == 5) fail("the disk is full");
        ranks.all_gather(Traffic::start, own, all);
      }
    } catch (const Error& error) {
      ends[static_cast<std::size_t>(ranks.rank())] = error.what();
      throw;
    }
  };
  EXPECT_THROW(run_local_ranks(3, work), Error);
  EXPECT_EQ(ends[1], "the disk is full");
  for (const int other : {0, 2}) EXPECT_EQ(ends[static_cast<std::size_t>(other)], "rank 1 is lost: the run ends");
}

}  // namespace
}  // namespace hayloft::runtime::cluster
