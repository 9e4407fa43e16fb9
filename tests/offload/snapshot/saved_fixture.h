#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "tests/offload/snapshot/snapshot_fixture.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::offload {

using test::small_description;
using test::SmallContext;

// A folder for files of small contexts.
class SnapshotTest : public ::testing::Test {
 protected:
  const test::TemporaryFolder folder_;
  const Topology topology_;
  Arena arena_{topology_, ArenaOptions{std::uint64_t{64} << 20, "--host-memory", std::uint64_t{1} << 20, nullptr}};

  std::string digest_of(std::int64_t tokens) {
    SmallContext context(arena_);
    context.grow_to(tokens);
    return context.digest();
  }

  // A finished file of `tokens` tokens, checkpointed every `step`.
  std::filesystem::path saved(std::int64_t tokens, std::int64_t step, const std::string& name = "ctx.hay") {
    const auto part = folder_ / (name + ".part");
    SnapshotWriter writer = SnapshotWriter::create(part, small_description());
    SmallContext context(arena_);
    for (std::int64_t at = 0; at < tokens;) {
      context.grow_to(at = std::min(tokens, at + step));
      context.save(writer);
    }
    writer.finish(folder_ / name);
    return folder_ / name;
  }
};

}  // namespace hayloft::offload
