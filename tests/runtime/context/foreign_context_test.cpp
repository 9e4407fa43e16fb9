#include "runtime/context/foreign_context.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <vector>

#include "gpu/make_backend.h"
#include "runtime/decode/model.h"
#include "runtime/decode/session.h"
#include "tests/support/cpu_cache.h"
#include "tests/support/golden_models.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

// Contexts from and to tensors of K and V.
namespace hayloft::runtime {
namespace {

using hayloft::testing::normal;
using test::refuses;

// K and V of a model's layers, of S tokens, or of n in sliding-window layers; and N ids.
struct Tensors {
  std::vector<std::int32_t> tokens;
  std::map<std::string, std::pair<std::vector<std::int64_t>, std::vector<float>>> layers;

  Tensors(const ModelConfig& config, std::int64_t N, std::int64_t S, std::int64_t n) {
    for (std::int64_t i = 0; i < N; ++i) tokens.push_back(static_cast<std::int32_t>(i % config.vocab_size));
    for (int layer = 0; layer < config.layers; ++layer) {
      const std::int64_t held = config.sliding_window[static_cast<std::size_t>(layer)] > 0 ? n : S;
      for (const char* const which : {"k", "v"}) {
        const std::vector<std::int64_t> shape{config.kv_heads, held, config.head_dim};
        layers[fmt::format("layer.{}.{}", layer, which)] = {
            shape, normal(static_cast<std::size_t>(config.kv_heads * held * config.head_dim),
                          static_cast<std::uint32_t>(2 * layer + (*which == 'v')))};
      }
    }
  }

  void write(const std::filesystem::path& path) const {
    std::vector<TensorToWrite> all{
        {"tokens", "I32", {static_cast<std::int64_t>(tokens.size())}, std::as_bytes(std::span(tokens))}};
    for (const auto& [name, tensor] : layers) {
      all.push_back({name, "F32", tensor.first, std::as_bytes(std::span(tensor.second))});
    }
    write_safetensors(path, all);
  }
};

class ForeignContextTest : public ::testing::Test {
 protected:
  ContextTokens import(const ContextModel& model, const Tensors& tensors) {
    tensors.write(folder / "in.safetensors");
    std::filesystem::remove(folder / "made.hay");
    return import_context(folder / "in.safetensors", model, *backend, arena, options, folder / "made.hay");
  }

  // With a tokenizer, which is a part of what tells models apart.
  std::filesystem::path model_folder(const std::string& name) const {
    const std::filesystem::path copy = folder / name;
    if (!std::filesystem::exists(copy)) std::filesystem::copy(goldens / name, copy);
    folder.write(name + "/tokenizer.json", "{}");
    return copy;
  }

  test::TemporaryFolder folder;
  offload::Topology topology;
  offload::Threads threads{1};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  offload::Arena arena{topology, {.budget_bytes = 64 << 20}};
  CacheOptions options{16, offload::ColumnFormat::f16, 8};
};

TEST_F(ForeignContextTest, WhatIsImportedIsExportedRoundedTo16Bits) {
  for (const char* const name : {"llama", "gemma3"}) {
    const ContextModel model(model_folder(name));
    const Tensors tensors(model.config, 130, 117, 19);
    const ContextTokens tokens = import(model, tensors);
    EXPECT_EQ(tokens.all, 130);
    EXPECT_EQ(tokens.cached, 117);
    const offload::Snapshot snapshot = offload::Snapshot::open(folder / "made.hay");
    snapshot.verify();
    EXPECT_EQ(snapshot.tokens(), tensors.tokens);
    export_context(snapshot, arena, folder / "out.safetensors");
    const SafetensorsFile out(folder / "out.safetensors");
    EXPECT_EQ(out.tensors().size(), tensors.layers.size() + 1);
    for (const auto& [layer, given] : tensors.layers) {
      EXPECT_EQ(out.at(layer).shape, given.first) << layer;
      const std::vector<float> values = to_f32(out.at(layer), layer);
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(values[i], to_float(to_f16(given.second[i]))) << name << " " << layer << " " << i;
      }
    }
  }
}

TEST_F(ForeignContextTest, WhatASessionReadGoesOutAndComesBackTheSame) {
  const ContextModel description(model_folder("gemma3"));
  Model model(goldens / "gemma3", *backend);
  SessionOptions reading;
  reading.cache = options;
  Session session(model, arena, reading);
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 100; ++i) tokens.push_back(i * 7 % model.config().vocab_size);
  session.append(tokens);
  save_context(session.cache(), tokens, {}, description, folder / "read.hay");
  export_context(offload::Snapshot::open(folder / "read.hay"), arena, folder / "kv.safetensors");
  import_context(folder / "kv.safetensors", description, *backend, arena, options, folder / "again.hay");
  const offload::Snapshot again = offload::Snapshot::open(folder / "again.hay");
  EXPECT_EQ(again.content_digest(), offload::Snapshot::open(folder / "read.hay").content_digest());
  Session opened(model, arena, reading, again);
  for (const std::int32_t token : {5, 6, 7}) EXPECT_EQ(opened.step(token), session.step(token));
}

TEST_F(ForeignContextTest, HowItWasReadGoesOutAndComesBack) {
  const ContextModel model(model_folder("llama"));
  import(model, Tensors(model.config, 130, 117, 19));
  const offload::Snapshot exact = offload::Snapshot::open(folder / "made.hay");
  export_context(exact, arena, folder / "exact.safetensors");
  EXPECT_FALSE(SafetensorsFile(folder / "exact.safetensors").contains("reading"));
  Model computed(goldens / "llama", *backend);
  SessionOptions reading;
  reading.cache = options;
  const Session session(computed, arena, reading, exact);
  ReadingNote note;
  note.prefill.kind = PrefillOptions::Kind::topk;
  note.prefill.window = 32;
  note.prefill.k = {24, 0};
  note.products = gpu::Products::int8;
  note.approximate.add(70, "topk k=16");
  save_context(session.cache(), exact.tokens(), {}, model, folder / "topk.hay", false, note);
  export_context(offload::Snapshot::open(folder / "topk.hay"), arena, folder / "topk.safetensors");
  import_context(folder / "topk.safetensors", model, *backend, arena, options, folder / "again.hay");
  const ReadingNote back = read_note(offload::Snapshot::open(folder / "again.hay").description().note, "again.hay");
  EXPECT_EQ(prefill_label(back.prefill), prefill_label(note.prefill));
  EXPECT_EQ(back.products, gpu::Products::int8);
  EXPECT_EQ(back.approximate.first, 70);
  EXPECT_EQ(back.approximate.methods, note.approximate.methods);
  ReadingNote longer;
  longer.prefill = {.kind = PrefillOptions::Kind::window, .window = 4096};
  save_context(session.cache(), exact.tokens(), {}, model, folder / "longer.hay", false, longer);
  export_context(offload::Snapshot::open(folder / "longer.hay"), arena, folder / "longer.safetensors");
  EXPECT_FALSE(SafetensorsFile(folder / "longer.safetensors").contains("reading")) << "the window left nothing out";
}

TEST_F(ForeignContextTest, WhatDoesNotFitIsRefusedAndLeavesNothing) {
  const ContextModel model(model_folder("gemma3"));
  const auto refused = [&](const std::function<void(Tensors&)>& damage, std::initializer_list<std::string> parts) {
    Tensors tensors(model.config, 130, 117, 19);
    damage(tensors);
    const auto result = refuses([&] { import(model, tensors); }, parts);
    EXPECT_FALSE(std::filesystem::exists(folder / "made.hay"));
    EXPECT_FALSE(std::filesystem::exists(folder / "made.hay.saving"));
    return result;
  };
  const auto cut = [](Tensors& t, const std::string& name, std::int64_t to) {
    auto& [shape, values] = t.layers.at(name);
    shape[1] = to;
    values.resize(static_cast<std::size_t>(shape[0] * shape[1] * shape[2]));
  };
  EXPECT_TRUE(refused([](Tensors& t) { t.layers.erase("layer.3.v"); }, {"in.safetensors", "layer.3.v"}));
  EXPECT_TRUE(refused([](Tensors& t) { t.layers["more"] = {{1}, {0}}; }, {"10 tensors", "9"}));
  EXPECT_TRUE(refused([](Tensors& t) { t.tokens.resize(116); }, {"117", "116"}));
  EXPECT_TRUE(refused([](Tensors& t) { t.tokens[7] = 128; }, {"token 7 is 128", "vocabulary of 128"}));
  EXPECT_TRUE(refused([](Tensors& t) { t.tokens[7] = -1; }, {"token 7"}));
  EXPECT_TRUE(refused([&](Tensors& t) { cut(t, "layer.2.k", 116); }, {"layer.2.k", "116"}));
  EXPECT_TRUE(refused([](Tensors& t) { t.layers.at("layer.2.k").first = {117, 1, 24}; }, {"layer.2.k", "[1, S, 24]"}));
  EXPECT_TRUE(refused([](Tensors& t) { t.layers.at("layer.2.v").second[5] = 1e6f; }, {"layer.2", "65504"}));
  EXPECT_TRUE(refused(
      [&](Tensors& t) {
        cut(t, "layer.0.k", 18);
        cut(t, "layer.0.v", 18);
      },
      {"layer.0.k", "18 tokens", "window of 20", "19"}));
  EXPECT_TRUE(refuses([&] { ContextModel none(folder / "nothing"); }, {"nothing"}));
}

}  // namespace
}  // namespace hayloft::runtime
