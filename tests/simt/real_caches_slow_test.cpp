#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "offload/snapshot/writer.h"
#include "runtime/cache/cache_size.h"
#include "runtime/context/ingest.h"
#include "runtime/decode/load_tokenizer.h"
#include "runtime/decode/session.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/simt/device/control.h"
#include "tests/simt/products_elsewhere.h"
#include "tests/support/real_models.h"
#include "tests/support/temporary_folder.h"

// Real models decode real prose on a device that keeps a part of the integer columns: what crosses the link for a
// token, by the ledger, beside the same without. Takes minutes; HAYLOFT_REAL_STEPS says how many tokens are decoded,
// and HAYLOFT_TEST_DATA where the prose is. Prints a table (docs/device-cache.md).
namespace hayloft::simt {
namespace {

using runtime::Counters;
using runtime::Kind;
using runtime::Place;
using runtime::Session;

struct RealModel {
  const char* name;
  const char* method;
};

class RealCachesTest : public ::testing::TestWithParam<RealModel> {
 protected:
  static constexpr std::size_t kContext = 2048;

  void SetUp() override {
    reset();
    device().memory_bytes = std::uint64_t{8} << 30;
    const char* const wanted = std::getenv("HAYLOFT_REAL_STEPS");
    const char* const data = std::getenv("HAYLOFT_TEST_DATA");
    if (!wanted || !data) GTEST_SKIP() << "HAYLOFT_REAL_STEPS and HAYLOFT_TEST_DATA are not set";
    model = test::real_model(GetParam().name);
    if (!std::filesystem::exists(model)) GTEST_SKIP() << "scripts/models " << GetParam().name << " brings the model";
    steps = std::stoul(wanted);
    std::ifstream text(std::filesystem::path(data) / "text/frankenstein.txt");
    text.seekg(40000);
    const std::string prose((std::istreambuf_iterator<char>(text)), {});
    tokens = runtime::load_tokenizer(model).encode_prompt(prose.substr(0, 16000));
    ASSERT_GT(tokens.size(), kContext + steps);
    save();
  }

  static runtime::SessionOptions session_options() {
    runtime::SessionOptions options;
    options.cache.block_tokens = 256;
    options.cache.columns = offload::ColumnFormat::int4;
    options.cache.copy_saved = true;
    return options;
  }
  offload::ArenaOptions memory(gpu::Backend& backend) const {
    offload::ArenaOptions options;
    options.budget_bytes = std::uint64_t{1} << 30;
    options.listener = backend.pinning();
    return options;
  }

  // The context, read by the CPU.
  void save() {
    const std::unique_ptr<gpu::Backend> cpu = gpu::make_cpu_backend(testing::threads());
    offload::Arena arena(topology, memory(*cpu));
    const runtime::Model read(model, *cpu);
    Session session(read, arena, session_options());
    const auto context = std::span(tokens).first(kContext);
    session.append(context);
    path = folder / "prose.hay";
    const offload::StoreShape shape = runtime::store_shape(read.config(), session_options().cache);
    auto writer = offload::SnapshotWriter::create(path, {{{}, GetParam().name}, shape, read.config().layers, ""});
    runtime::save_checkpoint(writer, session, context, {}, true);
    writer.finish(path);
    const offload::LayerView view = session.cache().store().layer(0);
    column_bytes = static_cast<std::uint64_t>(shape.layers) * static_cast<std::uint64_t>(shape.kv_heads) *
                   static_cast<std::uint64_t>(view.tokens) * static_cast<std::uint64_t>(shape.head_dim) / 2;
  }

  struct Run {
    std::vector<std::vector<float>> logits;
    std::vector<Counters> of_step;
  };
  Run decode(const gpu::CudaOptions& options) {
    ProductsElsewhere backend(testing::threads(), options);
    offload::Arena arena(topology, memory(backend));
    const runtime::Model decoder(model, backend);
    const offload::Snapshot snapshot = offload::Snapshot::open(path);
    Session session(decoder, arena, session_options(), snapshot);
    session.set_method(runtime::make_method(runtime::parse_method(GetParam().method, {}), decoder.config().head_dim));
    Run run;
    for (std::size_t i = 0; i < steps; ++i) {
      run.logits.push_back(session.step(tokens[kContext + i]));
      run.of_step.push_back(session.counters());
    }
    return run;
  }

  const offload::Topology topology;
  const test::TemporaryFolder folder;
  std::filesystem::path model, path;
  std::vector<std::int32_t> tokens;
  std::size_t steps = 0;
  std::uint64_t column_bytes = 0;  // of the whole context
};

std::uint64_t columns_over_link(const Counters& counters) {
  return counters.at(Place::link, Kind::columns) + counters.at(Place::link, Kind::scales);
}

TEST_P(RealCachesTest, TokensAreThoseWithoutACacheAndFewerBytesCrossTheLink) {
  const Run without = decode({.memory_bytes = std::uint64_t{4} << 30});
  const std::uint64_t all = columns_over_link(without.of_step.back());
  std::uint64_t before = all;
  fmt::print("{}, {}, {} tokens behind {}: columns and scales over the link, bytes a token\n", GetParam().name,
             GetParam().method, steps, kContext);
  fmt::print("  no cache: {}\n", all / steps);
  for (const int percent : {10, 30, 100}) {
    const Run with = decode({.memory_bytes = std::uint64_t{4} << 30,
                             .column_cache_bytes = column_bytes * static_cast<std::uint64_t>(percent) / 100 * 17 / 16});
    EXPECT_EQ(with.logits, without.logits);
    const Counters& counters = with.of_step.back();
    for (const Kind kind : {Kind::columns, Kind::scales}) {
      EXPECT_EQ(counters.at(Place::link, kind) + counters.at(Place::device, kind),
                without.of_step.back().at(Place::link, kind) + without.of_step.back().at(Place::device, kind));
    }
    const std::uint64_t crossed = columns_over_link(counters);
    EXPECT_LT(crossed, before);
    before = crossed;
    const std::size_t half = steps / 2;
    const auto later = [&](const Run& run) {
      return columns_over_link(run.of_step.back()) - columns_over_link(run.of_step[half - 1]);
    };
    fmt::print("  cache of {}% of them: {}; of the later half {}, {:.1f}% held\n", percent, crossed / steps,
               later(with) / (steps - half),
               100 - 100 * static_cast<double>(later(with)) / static_cast<double>(later(without)));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RealCachesTest,
                         ::testing::Values(RealModel{"smollm2", "sparq:r=8:k=128"},
                                           RealModel{"gemma3-270m", "sparq:r=32:k=128"}),
                         [](const auto& each) { return each.index == 0 ? "SmolLM2" : "Gemma3"; });

}  // namespace
}  // namespace hayloft::simt
