#include "runtime/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "gpu/make_backend.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/context/ingest.h"
#include "runtime/plan/gpu_cards.h"
#include "runtime/plan/remedy.h"
#include "tests/runtime/plan/planned.h"
#include "tests/support/golden_models.h"
#include "tests/support/hybrid_model.h"
#include "tests/support/parameter_name.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

// The planner against what really happens: each number beside that of a session that was really run.
namespace hayloft::runtime::plan {
namespace {

std::vector<std::int32_t> random_tokens(std::int64_t count, int vocab) {
  std::mt19937 random(7);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(vocab));
  return tokens;
}

struct Formats {
  offload::ColumnFormat columns;
  offload::RowFormat rows;
  std::int64_t tokens;
};

std::vector<Formats> in_every_format(std::initializer_list<std::int64_t> lengths) {
  std::vector<Formats> all;
  using enum offload::ColumnFormat;
  for (const std::int64_t tokens : lengths) {
    for (const auto columns : {f16, int8, int4, planes}) all.push_back({columns, offload::RowFormat::f16, tokens});
    for (const auto rows : {offload::RowFormat::int8, offload::RowFormat::int4}) all.push_back({int4, rows, tokens});
  }
  return all;
}

// A model whose layers are all global, and one with sliding windows.
class PlanTest : public ::testing::TestWithParam<const char*> {
 protected:
  PlanTest() {
    request.config = model.config();
    request.weights = weight_sizes(*Checkpoint::open(goldens / GetParam()));
    request.session.cache.block_tokens = 16;
    request.session.cache.window = 8;
    request.session.chunk_tokens = 24;
    request.methods = every_method();
    request.methods.push_back(parse_method("auto:r=4:k=8", {}));
    request.host_budget = request.available_bytes = std::uint64_t{1} << 30;
  }

  offload::Topology topology;
  offload::Threads threads{2};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  offload::Arena arena{topology, {.budget_bytes = 64 << 20}};
  Model model{goldens / GetParam(), *backend};
  PlanRequest request;
};

TEST_P(PlanTest, MemoryIsWhatASessionTakes) {
  for (const auto& [columns, rows, tokens] : in_every_format({1, 20, 24, 25, 100, 137})) {
    SCOPED_TRACE(fmt::format("{} tokens, columns {}, rows {}", tokens, offload::name(columns), offload::name(rows)));
    request.session.cache.columns = columns;
    request.session.cache.rows = rows;
    const std::uint64_t before = arena.used_bytes();
    Session session(model, arena, request.session);
    session.append(random_tokens(tokens, model.config().vocab_size));
    request.tokens = tokens;
    const PlanMemory memory = make_plan(request, nullptr).memory;
    EXPECT_EQ(memory.store(), arena.used_bytes() - before);
    EXPECT_EQ(memory.tails, session.cache().device_bytes());
    EXPECT_EQ(memory.weights, model.weight_bytes());
  }
}

TEST_P(PlanTest, BytesAndElementsAreThoseThatARealStepCounts) {
  for (const auto& [columns, rows, tokens] : in_every_format({5, 24, 100, 137})) {
    request.tokens = tokens;
    request.session.cache.columns = columns;
    request.session.cache.rows = rows;
    const Plan plan = make_plan(request, nullptr);
    Session context(model, arena, request.session);
    context.append(random_tokens(tokens, model.config().vocab_size));
    ASSERT_EQ(plan.methods.size(), request.methods.size());
    for (std::size_t i = 0; i < request.methods.size(); ++i) {
      SCOPED_TRACE(request.methods[i].name + " behind " + std::to_string(tokens));
      Session session = context.fork();
      session.set_method(make_method(request.methods[i], model.config().head_dim)).step(3);
      Counters counted = session.counters();
      counted.at(Place::link, Kind::spill) = 0;  // once per block, and no part of a step's reading
      EXPECT_EQ(plan.methods[i].counters.bytes, counted.bytes);
      EXPECT_EQ(plan.methods[i].counters.elements, counted.elements);
      EXPECT_EQ(plan.methods[i].counters.positions_scored, counted.positions_scored);
      EXPECT_EQ(plan.methods[i].counters.rows_fetched, counted.rows_fetched);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PlanTest,
                         ::testing::Values("llama", "mistral-sliding", "smollm3", "qwen3_moe", "gemma4"),
                         test::by_value);

TEST(PlanOfASavedContext, IsNotLessThanItsFileWithEveryCheckpointItKeeps) {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = test::write_hybrid_model(folder / "model");
  const offload::Topology topology;
  const offload::Threads threads{2};
  const auto backend = gpu::make_cpu_backend(threads);
  const Tokenizer tokenizer(path);
  const Model model(path, *backend);
  const ModelSource source{model, tokenizer, path};
  std::string text;
  for (int i = 0; i < 200; ++i) text += fmt::format("The hay of {} lies in the loft over barn {}. ", 1800 + i, i);
  PlanRequest request;
  request.config = model.config();
  request.weights = weight_sizes(*Checkpoint::open(path));
  request.session.cache.block_tokens = 32;
  request.session.cache.window = 16;
  request.session.chunk_tokens = 64;
  request.host_budget = request.available_bytes = std::uint64_t{1} << 30;
  for (const int checkpoints : {0, 1, 2, 8, 24}) {
    SCOPED_TRACE(checkpoints);
    offload::Arena arena{topology, {.budget_bytes = 64 << 20}};
    IngestOptions options{.session = request.session, .checkpoint_seconds = 0};
    options.checkpoints = request.checkpoints = checkpoints;
    const std::filesystem::path file = folder / fmt::format("{}.hay", checkpoints);
    request.tokens = ingest(source, arena, text, file, options).tokens;
    const std::uint64_t bytes = std::filesystem::file_size(file), planned = make_plan(request, nullptr).memory.saved;
    EXPECT_LE(bytes, planned);
    EXPECT_GT(bytes, planned * 6 / 10);
  }
}

TEST(PlanOfAShape, KnowsLlama3BytesWithoutACheckpoint) {
  const PlanRequest request = llama_3_8b();
  // 8.03 billion parameters in 16 bits; norms, in f32 here, and frequencies are less than a thousandth of it.
  EXPECT_NEAR(static_cast<double>(request.weights.bytes), 2 * 8.030e9, 0.02e9);
  EXPECT_EQ(request.weights.bytes - request.weights.bytes_per_step,
            std::uint64_t{2} * 128256 * 4096 + 4 * (65 * 4096 + 64));  // the embedding, norms and frequencies
  const PlanMemory memory = make_plan(request, nullptr).memory;
  // Half as much again as K and V in 16 bits, for all but the tail.
  const double kv = 32.0 * 8 * 128 * 2 * 2 * (1 << 20);
  EXPECT_NEAR(static_cast<double>(memory.store()), 1.5 * kv, 0.006 * kv);
  EXPECT_NEAR(static_cast<double>(memory.columns) / static_cast<double>(memory.store()), 1.0 / 3, 0.001);
}

TEST(PlanOfAShape, CountsTheOperationsOfAHundredMillionTokens) {
  PlanRequest request = llama_3_8b();
  request.tokens = 100'000'000;
  // Half of all pairs of a query and a key, 4 d operations each, in 31 layers: the last stops at K and V.
  const double pairs = 0.5 * 1e8 * 1e8;
  EXPECT_NEAR(make_plan(request, nullptr).prefill[0].attention, pairs * 31 * 32 * 4 * 128, 1e-3 * pairs * 31 * 16384);
}

TEST(PlanOfAShape, IntegerRowsTakeWhatTheirFormatSaysToTheByte) {
  const auto stored = [](const ShapeOptions& shape, offload::RowFormat rows) {
    PlanRequest request;
    request.config = config_of_shape(shape);
    request.weights = weight_sizes(request.config, gpu::DType::f16, WeightForm::stored);
    request.session.cache.columns = offload::ColumnFormat::int4;
    request.session.cache.rows = rows;
    request.tokens = std::int64_t{1} << 20;
    return make_plan(request, nullptr).memory.store();
  };
  // Per block of 4096 tokens and head: rows, columns of half a byte with a scale of two bytes for 64 tokens, four
  // ranges of four bytes for each component, sums; 255 blocks are full beyond the window.
  const auto block = [](std::uint64_t d, std::uint64_t row, std::uint64_t ranges) {
    return 4096 * row + d * (4096 / 2 + 4096 / 64 * 2) + ranges * d * 4 + d * 4;
  };
  const std::uint64_t llama = 32 * 8 * 255, hybrid = 8 * 4 * 255;
  EXPECT_EQ(stored({32, 32, 8, 128}, offload::RowFormat::f16), llama * block(128, 512, 0));
  EXPECT_EQ(stored({32, 32, 8, 128}, offload::RowFormat::int8), llama * block(128, 256 + 8, 4));   // 82.8 GiB
  EXPECT_EQ(stored({32, 32, 8, 128}, offload::RowFormat::int4), llama * block(128, 128 + 16, 4));  // 52.9 GiB
  EXPECT_EQ(stored({8, 16, 4, 256}, offload::RowFormat::int8), hybrid * block(256, 512 + 16, 4));  // 20.7 GiB
}

TEST(PlanOfAShape, AGpuTakesHeadsOf512Components) {
  PlanRequest request = llama_3_8b();
  request.config = config_of_shape({.layers = 4, .heads = 8, .kv_heads = 2, .head_dim = 512});
  request.weights = weight_sizes(request.config, gpu::DType::f16, WeightForm::q4);
  request.tokens = 4096;
  for (const std::uint64_t device_budget : {std::uint64_t{0}, std::uint64_t{16} << 30}) {
    request.device_budget = device_budget;
    EXPECT_EQ(make_plan(request, nullptr).shortfall, "");
  }
}

TEST(PlanOfAShape, FitsALlama3On16GiBWith4BitWeightsAndItsEmbeddingBesideThem) {
  PlanRequest request = llama_3_8b();
  request.weights = weight_sizes(request.config, gpu::DType::f16, WeightForm::q4);
  request.device_budget = std::uint64_t{16} << 30;
  for (const std::int64_t tokens : {std::int64_t{128} << 10, std::int64_t{1} << 20}) {
    request.tokens = tokens;
    const Plan plan = make_plan(request, nullptr);
    EXPECT_EQ(plan.shortfall, "");
    EXPECT_EQ(plan.memory.host_weights, std::uint64_t{128256} * 4096 * 5 / 8);  // 4 bits, and scale and minimum for 32
    EXPECT_EQ(plan.memory.weights, request.weights.bytes - plan.memory.host_weights);
    EXPECT_LT(plan.memory.device(), std::uint64_t{8} << 30);
    EXPECT_NE(plan_table(plan).find("left on the device"), std::string::npos);
  }
  request.device_budget = 0;  // the machine's memory is the device's
  EXPECT_EQ(make_plan(request, nullptr).memory.weights, request.weights.bytes);
}

// Qwen3-30B-A3B, in 4 bits: 48 layers, 128 experts of 768, of which a token goes through 8.
TEST(PlanOfAShape, ExpertsNearTheProcessorLeaveTheDeviceToTheContext) {
  PlanRequest request;
  request.config = config_of_shape({48, 32, 4, 128});
  request.config.hidden_size = 2048;
  request.config.experts = {.count = 128, .used = 8, .inner = 768};
  request.config.intermediate_size = 8 * 768;
  request.weights = weight_sizes(request.config, gpu::DType::f16, WeightForm::q4);
  request.device_budget = std::uint64_t{16} << 30;
  request.available_bytes = request.host_budget = std::uint64_t{64} << 30;
  request.session.cache.rows = offload::RowFormat::int8;
  request.tokens = std::int64_t{256} << 10;
  request.methods = {parse_method("sparq", {})};
  request.card = parse_card("rtx4060");
  request.experts = ExpertPlace::device;
  const Plan there = make_plan(request, nullptr);
  EXPECT_NE(there.shortfall, "");
  EXPECT_NE(remedy(request, {}).change.find("--experts near"), std::string::npos) << remedy(request, {}).change;
  request.device_budget = std::uint64_t{12} << 30;
  for (const ExpertPlace place : {ExpertPlace::automatic, ExpertPlace::near}) {
    request.experts = place;
    const Plan plan = make_plan(request, nullptr);
    EXPECT_EQ(plan.shortfall, "");
    // Experts pass by there if prompts are read over the link.
    const bool prompts_over_link = place == ExpertPlace::automatic;
    EXPECT_EQ(placed_experts(request).place, ExpertPlace::near);
    EXPECT_EQ(placed_experts(request).prompts_over_link, prompts_over_link);
    const std::uint64_t slots = prompts_over_link ? (128 + 2 * experts_at_once) * request.weights.slot_bytes : 0;
    EXPECT_EQ(plan.memory.weights + plan.memory.host_weights, request.weights.bytes + slots);
    EXPECT_EQ(plan.memory.weights, there.memory.weights - request.weights.mixture_bytes + slots);
    const std::uint64_t matrices = std::uint64_t{48} * 128 * 3 * 768 * 2048 * 5 / 8;
    EXPECT_NEAR(static_cast<double>(request.weights.mixture_bytes), static_cast<double>(matrices),
                1e-3 * static_cast<double>(matrices));
    const WeightSizes placed = placed_weights(request);
    EXPECT_EQ(placed.bytes_per_step + placed.near_bytes_per_step, request.weights.bytes_per_step);
    EXPECT_NE(plan_table(plan).find("experts near"), std::string::npos);
  }
  request.experts = ExpertPlace::link;
  const ExpertPlacement slots = placed_experts(request);
  EXPECT_GT(slots.kept, 10);
  EXPECT_LT(slots.kept, 128);
  const WeightSizes over_link = placed_weights(request);
  EXPECT_EQ(over_link.bytes_per_step, request.weights.bytes_per_step);
  EXPECT_NEAR(static_cast<double>(over_link.link_bytes_per_step),
              (1 - slots.kept / 128.0) * static_cast<double>(request.weights.mixture_bytes_per_step), 1);
  EXPECT_EQ(over_link.bytes, request.weights.bytes + expert_slots_bytes(slots, 48, request.weights.slot_bytes));
  EXPECT_EQ(over_link.host_bytes, request.weights.host_bytes + request.weights.mixture_bytes);
  EXPECT_NE(plan_table(make_plan(request, nullptr)).find("experts over the link"), std::string::npos);
  request.experts_held.measured = {{slots.kept / 128.0, 0.9}};  // routers have favourites
  const Plan favourites = make_plan(request, nullptr);
  ASSERT_TRUE(favourites.experts.has_value());
  EXPECT_EQ(favourites.experts->placement.kept, slots.kept);
  EXPECT_NEAR(static_cast<double>(favourites.experts->link_bytes),
              0.1 * static_cast<double>(request.weights.mixture_bytes_per_step), 1);
  EXPECT_NE(plan_table(favourites).find("90.0% of those asked for"), std::string::npos);
  request.experts_held = {};
  // When most of them are kept, the link brings the others sooner than the processor multiplies.
  request.device_budget = std::uint64_t{12} << 30;
  request.experts = ExpertPlace::automatic;
  EXPECT_EQ(placed_experts(request).place, ExpertPlace::near);
  request.device_budget = std::uint64_t{19} << 30;
  request.methods = {parse_method("dense", {})};
  EXPECT_EQ(placed_experts(request).place, ExpertPlace::link);
  request.device_budget = std::uint64_t{64} << 30;  // where there is room they are on the device
  request.experts = ExpertPlace::automatic;
  EXPECT_EQ(placed_weights(request).near_bytes_per_step, 0U);
  request.device_budget = 0;
  request.experts = ExpertPlace::near;
  EXPECT_EQ(make_plan(request, nullptr).memory.weights, request.weights.bytes);
}

TEST(PlanOfAShape, RefusesShapesThatNoModelHas) {
  EXPECT_TRUE(test::refuses([] { config_of_shape({32, 32, 5, 128, 0, 0, 0}); }, {"--shape", "32", "5"}));
  EXPECT_TRUE(test::refuses([] { config_of_shape({32, 32, 8, 100, 0, 0, 0}); }, {"--shape", "head-dim 100"}));
  EXPECT_TRUE(test::refuses([] { config_of_shape({0, 32, 8, 128, 0, 0, 0}); }, {"--shape", "layers 0"}));
}

TEST(PlanThatDoesNotFit, SaysWhatIsNeededAndTheLongestContextThatFits) {
  PlanRequest request = llama_3_8b();
  request.host_budget = std::uint64_t{64} << 30;
  const Plan plan = make_plan(request, nullptr);
  EXPECT_NE(plan.shortfall.find("191.3 GiB"), std::string::npos) << plan.shortfall;  // 1.5 times 128 GiB, less a tail
  EXPECT_NE(plan.shortfall.find("64.0 GiB"), std::string::npos) << plan.shortfall;
  EXPECT_NE(plan.shortfall.find("--host-memory"), std::string::npos) << plan.shortfall;

  const std::int64_t fitting = longest_context(request.config, request.session.cache, request.host_budget);
  EXPECT_NE(plan.shortfall.find(std::to_string(fitting)), std::string::npos) << plan.shortfall;
  request.tokens = fitting;
  EXPECT_EQ(make_plan(request, nullptr).shortfall, "");
  request.tokens = fitting + 1;
  EXPECT_NE(make_plan(request, nullptr).shortfall, "");
}

TEST(PlanThatDoesNotFit, NamesTheMachineWhenNoOptionHelps) {
  PlanRequest request = llama_3_8b();
  request.available_bytes = std::uint64_t{64} << 30;
  EXPECT_NE(make_plan(request, nullptr).shortfall.find("a machine with"), std::string::npos);
  request.available_bytes = std::uint64_t{8} << 30;  // not even the weights
  EXPECT_NE(make_plan(request, nullptr).shortfall.find("weights"), std::string::npos);
}

TEST(PlanThatFits, TakesABudgetOfExactlyItsBytes) {
  // Chunks of the arena that blocks do not divide.
  const offload::Topology topology;
  const offload::Threads threads{2};
  const auto backend = gpu::make_cpu_backend(threads);
  const Model model(goldens / "llama", *backend);
  PlanRequest request;
  request.config = model.config();
  request.session.cache = {.block_tokens = 64, .window = 8};
  request.session.chunk_tokens = 100;
  request.tokens = 3000;
  const std::uint64_t bytes = make_plan(request, nullptr).memory.store();
  offload::Arena arena(topology, {.budget_bytes = bytes, .chunk_bytes = bytes / 7});
  Session session(model, arena, request.session);
  session.append(random_tokens(request.tokens, model.config().vocab_size));
  EXPECT_EQ(arena.used_bytes(), bytes);
}

// Reading the context to save it has the rows behind the last whole chunk in no block: less than the store at the end.
TEST(PlanOfARunThatSaves, MayTakeLessThanTheStoreAtItsEnd) {
  PlanRequest request = llama_3_8b();
  request.methods.clear();
  request.saves = true;
  request.session.chunk_tokens = 1 << 16;
  request.tokens = (1 << 17) - 1;
  request.weights.host_bytes = 0;
  request.device_budget = std::uint64_t{64} << 30;
  const Plan plan = make_plan(request, nullptr);
  ASSERT_LT(plan.memory.total(), plan.memory.store());
  EXPECT_EQ(plan.shortfall, "");
}

}  // namespace
}  // namespace hayloft::runtime::plan
