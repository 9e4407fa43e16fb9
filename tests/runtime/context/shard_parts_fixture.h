#pragma once

#include <unistd.h>

#include <string>
#include <vector>

#include "offload/snapshot/shards.h"
#include "tests/runtime/context/saved_shards_fixture.h"
#include "tests/support/refusal.h"

namespace hayloft::runtime {

using offload::SnapshotWriter;
using test::refuses;

struct Killed {};

// Readings of ranks that are ended before their end, and go on.
class ShardPartsTest : public SavedShardsTest {
 protected:
  using SavedShardsTest::SavedShardsTest;
  ShardPartsTest() = default;
  using Read = std::function<IngestResult(const IngestOptions& options)>;

  Read saving(const std::string& what) {
    return [this, what](const IngestOptions& own) { return ingest(source, arena, what, context, own); };
  }
  Read appending(const std::string& what) {
    return [this, what](const IngestOptions& own) { return append_to(source, arena, what, context, own); };
  }
  Read updating(const std::string& what) {
    return [this, what](const IngestOptions& own) { return update(source, arena, what, context, own); };
  }

  // Returns the result of rank 0.
  IngestResult run(int count, const Read& read) {
    IngestResult result;
    cluster::run_local_ranks(count, [&](Communicator& ranks) {
      const IngestResult own = read(of(ranks));
      if (ranks.rank() == 0) result = own;
    });
    return result;
  }

  // The rank is gone before the call of this number, from 0 on, by which it would have changed its file. Whether all
  // came to their end.
  bool survives(int count, int killed, int call, const Read& read) {
    try {
      cluster::run_local_ranks(count, [&](Communicator& ranks) {
        IngestOptions own = of(ranks);
        int left = ranks.rank() == killed ? call : -1;
        const auto counted = [&left] {
          if (left-- == 0) throw Killed();
        };
        own.calls.write = [&](int descriptor, const void* data, std::size_t bytes, off_t offset) {
          counted();
          return ::pwrite(descriptor, data, bytes, offset);
        };
        own.calls.sync = [&](int) {
          counted();
          return 0;
        };
        read(own);
      });
    } catch (const Killed&) {
      return false;
    }
    return true;
  }

  fs::path part(int rank, int count) const { return offload::growing_shard_path(context, {rank, count}); }
  std::uint64_t sequence(int rank, int count) const {
    if (!fs::exists(part(rank, count))) return 0;
    return SnapshotWriter::open_to_append(part(rank, count)).sequence();
  }
  void expect_whole(const std::string& expected, int count) {
    EXPECT_EQ(digest(context), expected);
    EXPECT_EQ(shards(context).size(), static_cast<std::size_t>(count)) << "something is left";
  }
  std::string anew(const std::string& what) {
    const fs::path path = folder.path() / "anew.hay";
    fs::remove(path);
    ingest(source, arena, what, path, options);
    return digest(path);
  }
  void remove_context() {
    for (const fs::path& shard : shards(context)) fs::remove(shard);
    fs::remove(context);
  }
  std::string first(std::size_t near) const { return text.substr(0, text.find(". ", near) + 1); }
  std::string rest(std::size_t near) const { return text.substr(text.find(". ", near) + 1); }
};

}  // namespace hayloft::runtime
