#include "runtime/context/hot_context.h"

#include <filesystem>
#include <fstream>
#include <random>

#include "offload/snapshot/writer.h"
#include "runtime/cache/cache_size.h"
#include "runtime/cluster/local_ranks.h"
#include "runtime/cluster/rank_attender.h"
#include "runtime/context/hot_file.h"
#include "runtime/context/ingest.h"
#include "runtime/context/saved_shards.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/simt/device/control.h"
#include "tests/support/temporary_folder.h"

// A saved context that was decoded before starts warm: its first step finds on the device what was read often, and
// gives what a cold one gives.
namespace hayloft::simt {
namespace {

using runtime::Counters;
using runtime::Kind;
using runtime::Place;
using runtime::Session;

class HotContextTest : public ::testing::Test {
 protected:
  HotContextTest() { reset(); }

  // A device, a model on it and its memory, as a run of the program has them.
  struct Machine {
    std::unique_ptr<gpu::Backend> backend;
    offload::Arena arena;
    runtime::Model model;

    explicit Machine(const offload::Topology& topology,
                     const gpu::CudaOptions& device = {.column_cache_bytes = gpu::column_cache_rest,
                                                       .row_cache_bytes = gpu::row_cache_rest})
        : backend(testing::make_cuda(device)),
          arena(topology, memory(*backend)),
          model(testing::golden_models() / "llama", *backend) {}

    static offload::ArenaOptions memory(gpu::Backend& backend) {
      offload::ArenaOptions options;
      options.budget_bytes = std::uint64_t{64} << 20;
      options.chunk_bytes = std::uint64_t{1} << 20;
      options.listener = backend.pinning();
      return options;
    }
  };

  static runtime::SessionOptions session_options(offload::ColumnFormat columns) {
    runtime::SessionOptions options;
    options.cache.block_tokens = 256;
    options.cache.window = 16;
    options.cache.columns = columns;
    options.cache.rows = offload::RowFormat::int8;
    options.cache.copy_saved = true;
    return options;
  }

  std::filesystem::path save(offload::ColumnFormat columns) const {
    Machine machine(topology);
    Session session(machine.model, machine.arena, session_options(columns));
    std::vector<std::int32_t> tokens(256 * 2 + 20);
    std::mt19937 random(3);
    for (auto& token : tokens) token = static_cast<std::int32_t>(random() % 100);
    session.append(tokens);
    const std::filesystem::path path = folder / "book.hay";
    std::filesystem::remove(path);
    const offload::SnapshotDescription description{
        {{1, 2, 3}, "llama"},
        runtime::store_shape(machine.model.config(), session_options(columns).cache),
        machine.model.config().layers,
        ""};
    offload::SnapshotWriter writer = offload::SnapshotWriter::create(path, description);
    runtime::save_checkpoint(writer, session, tokens, {}, true);
    writer.finish(path);
    return path;
  }

  struct Run {
    std::vector<std::vector<float>> logits;
    std::vector<std::uint64_t> link_bytes;  // of columns, then rows, of the first step
    bool warmed = false;
    bool kept = false;
  };

  // Opens the context on a device of its own.
  Run decode(const std::filesystem::path& path, const std::string& method_text, offload::ColumnFormat columns,
             const gpu::CudaOptions& device, bool keep) const {
    Machine machine(topology, device);
    const offload::Snapshot snapshot = offload::Snapshot::open(path);
    Session session(machine.model, machine.arena, session_options(columns), snapshot);
    const auto method = runtime::make_method(runtime::parse_method(method_text, {}), machine.model.config().head_dim);
    session.set_method(method);
    Run run;
    run.warmed = runtime::warm(session, *method, *machine.backend, snapshot);
    for (std::int32_t i = 0; i < 6; ++i) {
      run.logits.push_back(session.step(i / 3));
      if (i > 0) continue;
      const Counters counters = session.counters();
      run.link_bytes = {counters.at(Place::link, Kind::columns), counters.at(Place::link, Kind::rows)};
    }
    if (keep) run.kept = runtime::keep_hot(session, *machine.backend, snapshot);
    return run;
  }

  const gpu::CudaOptions keeping{.column_cache_bytes = gpu::column_cache_rest, .row_cache_bytes = gpu::row_cache_rest};
  const offload::Topology topology;
  const test::TemporaryFolder folder;
};

TEST_F(HotContextTest, RanksNeitherKeepNorTakeWhatIsOfAllBlocks) {
  constexpr auto columns = offload::ColumnFormat::f16;
  const std::filesystem::path path = save(columns);
  ASSERT_TRUE(decode(path, "sparq:r=4:k=64", columns, keeping, true).kept);
  gpu::CudaOptions device = keeping;
  device.memory_bytes = std::uint64_t{1} << 30;
  runtime::cluster::run_local_ranks(2, [&](runtime::cluster::Communicator& ranks) {
    Machine machine(topology, device);
    const offload::Snapshot snapshot = runtime::open_over_ranks(ranks, path);
    runtime::SessionOptions options = session_options(columns);
    options.attend_by(runtime::cluster::rank_attender(ranks));
    Session session(machine.model, machine.arena, options, snapshot);
    const auto method =
        runtime::make_method(runtime::parse_method("sparq:r=4:k=64", {}), machine.model.config().head_dim);
    session.set_method(method);
    EXPECT_FALSE(runtime::warm(session, *method, *machine.backend, snapshot));
    for (std::int32_t i = 0; i < 2; ++i) session.step(i);
    EXPECT_FALSE(runtime::keep_hot(session, *machine.backend, snapshot));
  });
}

TEST_F(HotContextTest, TheFirstStepAfterOpeningFindsWhatWasReadBefore) {
  using offload::ColumnFormat;
  for (const auto& [method, columns] :
       {std::pair("sparq:r=4:k=32", ColumnFormat::int4), std::pair("planes:bits=12:k=32", ColumnFormat::planes)}) {
    SCOPED_TRACE(method);
    const std::filesystem::path path = save(columns);
    const Run cold = decode(path, method, columns, keeping, true);
    EXPECT_FALSE(cold.warmed);
    EXPECT_TRUE(cold.kept);
    const Run warm = decode(path, method, columns, keeping, true);
    EXPECT_TRUE(warm.warmed);
    EXPECT_EQ(warm.logits, cold.logits);
    EXPECT_LT(warm.link_bytes[0], cold.link_bytes[0] / 2);
    EXPECT_LT(warm.link_bytes[1], cold.link_bytes[1] / 2);
    std::filesystem::remove(runtime::hot_file_of(path));
  }
}

TEST_F(HotContextTest, RowsAloneAreReadByMethodsWithoutColumnsAndNothingByDense) {
  const auto columns = offload::ColumnFormat::int4;
  const std::filesystem::path path = save(columns);
  EXPECT_TRUE(decode(path, "sparq:r=4:k=32", columns, keeping, true).kept);
  const Run topk = decode(path, "topk:k=32", columns, keeping, false);
  EXPECT_TRUE(topk.warmed);
  EXPECT_FALSE(decode(path, "dense", columns, keeping, false).warmed);
}

TEST_F(HotContextTest, ADamagedHintOrADeviceThatKeepsNothingChangesNoAnswer) {
  const auto columns = offload::ColumnFormat::int4;
  const std::filesystem::path path = save(columns), hint = runtime::hot_file_of(path);
  const Run cold = decode(path, "sparq:r=4:k=32", columns, keeping, true);
  EXPECT_EQ(decode(path, "sparq:r=4:k=32", columns, {}, true).logits, cold.logits);
  ASSERT_TRUE(std::filesystem::exists(hint));
  std::filesystem::resize_file(hint, std::filesystem::file_size(hint) - 1);
  const Run damaged = decode(path, "sparq:r=4:k=32", columns, keeping, false);
  EXPECT_FALSE(damaged.warmed);
  EXPECT_EQ(damaged.logits, cold.logits);
  std::ofstream(hint, std::ios::trunc).close();
  EXPECT_FALSE(decode(path, "sparq:r=4:k=32", columns, keeping, false).warmed);
}

TEST_F(HotContextTest, ADeviceWithoutRoomForTheReadingStartsCold) {
  const auto columns = offload::ColumnFormat::int4;
  const std::filesystem::path path = save(columns);
  ASSERT_TRUE(decode(path, "sparq:r=4:k=32", columns, keeping, true).kept);
  Machine machine(topology);
  const offload::Snapshot snapshot = offload::Snapshot::open(path);
  Session session(machine.model, machine.arena, session_options(columns), snapshot);
  const auto method =
      runtime::make_method(runtime::parse_method("sparq:r=4:k=32", {}), machine.model.config().head_dim);
  std::vector<gpu::Buffer> all;
  for (std::uint64_t bytes = std::uint64_t{1} << 30; bytes >= 256;) {
    try {
      all.push_back(machine.backend->allocate(bytes, machine.backend->stream()));
    } catch (const Error&) {
      bytes /= 2;
    }
  }
  EXPECT_FALSE(runtime::warm(session, *method, *machine.backend, snapshot));
  all.clear();
  EXPECT_TRUE(runtime::warm(session, *method, *machine.backend, snapshot));
}

TEST_F(HotContextTest, HintsThatDoNotFitTheLayerAreIgnored) {
  const auto columns = offload::ColumnFormat::int4;
  const std::filesystem::path path = save(columns);
  Machine machine(topology);
  const offload::Snapshot snapshot = offload::Snapshot::open(path);
  Session session(machine.model, machine.arena, session_options(columns), snapshot);
  const gpu::CacheView view = session.cache().global_views().front();
  gpu::Backend& backend = *machine.backend;
  const auto heads = static_cast<std::size_t>(view.kv_heads);
  const std::vector<float> uses(heads * static_cast<std::size_t>(view.head_dim), -1.0f);
  const std::vector<std::vector<std::int32_t>> beyond(heads, {static_cast<std::int32_t>(view.store.tokens)});
  for (const gpu::HotReads& wrong :
       {gpu::HotReads{{1, 2}, {}}, gpu::HotReads{uses, {}}, gpu::HotReads{{}, {{1}}}, gpu::HotReads{{}, beyond}}) {
    backend.warm(view, wrong, backend.stream());
    EXPECT_TRUE(backend.hot_reads(view, backend.stream()).empty());
  }
}

}  // namespace
}  // namespace hayloft::simt
