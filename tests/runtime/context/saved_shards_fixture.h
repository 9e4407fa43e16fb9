#pragma once

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "runtime/cluster/local_ranks.h"
#include "runtime/cluster/rank_attender.h"
#include "runtime/context/saved_shards.h"
#include "runtime/peers/agreement.h"
#include "tests/runtime/context/ingest_fixture.h"

// Contexts of ranks, each on a thread of its own.
namespace hayloft::runtime {

namespace fs = std::filesystem;
using cluster::Communicator;

class SavedShardsTest : public IngestTest {
 protected:
  using IngestTest::IngestTest;
  SavedShardsTest() = default;

  IngestOptions of(Communicator& ranks) const {
    IngestOptions own = options;
    own.session.attend_by(cluster::rank_attender(ranks));
    return own;
  }

  IngestResult save(int count, const fs::path& path) {
    IngestResult result;
    cluster::run_local_ranks(count, [&](Communicator& ranks) {
      const IngestResult own = ingest(source, arena, text, path, of(ranks));
      if (ranks.rank() == 0) result = own;
    });
    return result;
  }

  // Logits of the answer, from each rank.
  std::vector<std::vector<float>> answers(int count, const fs::path& path) {
    std::vector<std::vector<float>> all(static_cast<std::size_t>(count));
    cluster::run_local_ranks(count, [&](Communicator& ranks) {
      const offload::Snapshot part = open_over_ranks(ranks, path);
      all[static_cast<std::size_t>(ranks.rank())] = answer(open_context(source, arena, part, of(ranks).session));
    });
    return all;
  }

  std::vector<fs::path> shards(const fs::path& of) const {
    std::map<std::string, fs::path> found;  // by name
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      const std::string name = entry.path().filename();
      if (name.starts_with(of.filename().string() + ".")) found[name] = entry.path();
    }
    std::vector<fs::path> paths;
    for (const auto& [name, path] : found) paths.push_back(path);
    return paths;
  }

  static void flip(const fs::path& path, std::uintmax_t byte) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(byte));
    const char was = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(byte));
    file.put(static_cast<char>(was ^ 1));
  }

  fs::path context = folder.path() / "ctx.hay";
};

}  // namespace hayloft::runtime
