#include "runtime/checkpoint/weights/weights.h"

#include "gpu/cpu/cpu_backend.h"
#include "tests/runtime/checkpoint/weights/weights_fixture.h"
#include "tests/support/refusal.h"

// Weights are found in the forms, files and shards that checkpoints have.
namespace hayloft::runtime {
namespace {

using nlohmann::json;
using test::refuses;

// Loads every form in which files have the matrices of experts; those of expert e begin with e, 10 + e and 20 + e.
TEST_F(WeightsTest, FindsExpertsInEveryFormThatFilesHaveThemIn) {
  constexpr int count = 3, inner = 8, hidden = 16;
  ModelConfig config = small_config();
  config.tied_embeddings = false;
  config.experts = {.count = count, .used = 2, .inner = inner};
  const std::string mlp = "model.layers.0.mlp.", block = "model.layers.0.block_sparse_moe.";
  const auto matrix = [](float value, int rows, int cols) {
    return Tensor{"F32", {rows, cols}, std::vector<float>(static_cast<std::size_t>(rows * cols), value)};
  };
  // [experts][kinds rows][cols], of which each expert has its own for each kind
  const auto together = [&](std::initializer_list<float> kinds, int rows, int cols) {
    Tensor all{"F32", {count, static_cast<std::int64_t>(kinds.size()) * rows, cols}, {}};
    for (int e = 0; e < count; ++e) {
      for (const float kind : kinds) {
        all.values.insert(all.values.end(), static_cast<std::size_t>(rows * cols), kind + static_cast<float>(e));
      }
    }
    return all;
  };
  std::vector<Tensors> forms(4);
  for (int e = 0; e < count; ++e) {
    const std::string own = mlp + "experts." + std::to_string(e) + ".", older = block + "experts." + std::to_string(e);
    const float at = static_cast<float>(e);
    forms[0][own + "gate_proj.weight"] = forms[1][older + ".w1.weight"] = matrix(at, inner, hidden);
    forms[0][own + "up_proj.weight"] = forms[1][older + ".w3.weight"] = matrix(10 + at, inner, hidden);
    forms[0][own + "down_proj.weight"] = forms[1][older + ".w2.weight"] = matrix(20 + at, hidden, inner);
  }
  forms[2][mlp + "experts.gate_up_proj"] = forms[3][block + "input_linear.weight"] = together({0, 10}, inner, hidden);
  forms[2][mlp + "experts.down_proj"] = forms[3][block + "output_linear.weight"] = together({20}, hidden, inner);
  forms[0][mlp + "gate.weight"] = forms[1][block + "gate.weight"] = matrix(5, count, hidden);
  forms[2][mlp + "gate.weight"] = forms[3][block + "router.layer.weight"] = matrix(5, count, hidden);
  for (std::size_t form = 0; form < forms.size(); ++form) {
    SCOPED_TRACE(form);
    Tensors tensors = small_checkpoint("F32");
    std::erase_if(tensors, [](const auto& each) { return each.first.find(".mlp.") != std::string::npos; });
    tensors.merge(forms[form]);
    folder_.write("model.safetensors", image(tensors));
    folder_.write("config.json", json{{"model_type", "qwen3_moe"},
                                      {"vocab_size", config.vocab_size},
                                      {"hidden_size", hidden},
                                      {"num_hidden_layers", config.layers},
                                      {"num_attention_heads", config.query_heads},
                                      {"num_key_value_heads", config.kv_heads},
                                      {"head_dim", config.head_dim},
                                      {"num_experts", count},
                                      {"num_experts_per_tok", 2},
                                      {"moe_intermediate_size", inner}}
                                     .dump());
    const Weights weights = load(config);
    const ExpertWeights& experts = weights.layers[0].experts;
    EXPECT_EQ(first(experts.router.data), 5.0f);
    for (int e = 0; e < count; ++e) {
      const auto at = static_cast<std::size_t>(e);
      const float value = static_cast<float>(e);
      const Expert& expert = experts.each[at];
      for (const auto& [of, expected] :
           {std::pair(&expert.gate, value), {&expert.up, 10 + value}, {&expert.down, 20 + value}}) {
        const auto* const values = static_cast<const float*>(of->data);
        EXPECT_TRUE(std::all_of(values, values + of->rows * of->cols, [&](float x) { return x == expected; })) << e;
      }
    }
  }
}

// A CPU that notes the largest piece that it was handed.
class PiecesBackend : public gpu::CpuBackend {
 public:
  using gpu::CpuBackend::CpuBackend;
  void to_device(void* device, const void* host, std::uint64_t bytes, gpu::Stream stream) override {
    largest = std::max(largest, bytes);
    gpu::CpuBackend::to_device(device, host, bytes, stream);
  }
  std::uint64_t largest = 0;
};

// A second copy of the embedding, which may be half of a model, is no more than a piece of it.
TEST_F(WeightsTest, AMatrixIsTakenInPiecesAndWholeAllTheSame) {
  constexpr std::int64_t vocabulary = 300'005, period = 37 * gpu::packed_tile_rows;  // rows that repeat
  Tensors tensors = small_checkpoint("F16");
  tensors.erase("lm_head.weight");
  for (auto& [name, tensor] : tensors) {
    std::int64_t elements = 1;
    for (std::int64_t& n : tensor.shape) elements *= n = n == 10 ? vocabulary : n == 16 ? 32 : n;
    tensor.values.resize(static_cast<std::size_t>(elements));
    for (std::size_t i = 0; i < tensor.values.size(); ++i) {
      const std::size_t row = i / 32 % period;
      tensor.values[i] = static_cast<float>((row * 7 + i % 32) % 2048);
    }
  }
  folder_.write("model.safetensors", image(tensors));
  ModelConfig config = small_config();
  config.vocab_size = vocabulary;
  config.hidden_size = 32;
  config.query_heads = 4;
  config.tied_embeddings = true;
  for (const WeightForm form : {WeightForm::stored, WeightForm::q8}) {
    PiecesBackend backend(threads_);
    const Weights weights = load_weights(*Checkpoint::open(folder_.path()), config, backend, form);
    const gpu::Matrix& matrix = weights.embedding;
    const std::uint64_t bytes = gpu::bytes_of(matrix);
    ASSERT_GT(bytes, std::uint64_t{9} << 20);
    EXPECT_LE(backend.largest, std::uint64_t{8} << 20) << name(form);
    const std::vector<std::byte> all = bytes_at(matrix.data, bytes);
    const std::uint64_t repeats =
        form == WeightForm::stored ? period * 32 * sizeof(f16) : 37 * matrix.packing.tile_bytes(32);
    ASSERT_NE((std::uint64_t{8} << 20) % repeats, 0u) << "pieces do not begin where rows repeat";
    const std::uint64_t whole = form == WeightForm::stored ? bytes : bytes / repeats * repeats;
    EXPECT_TRUE(std::equal(all.begin() + static_cast<std::ptrdiff_t>(repeats),
                           all.begin() + static_cast<std::ptrdiff_t>(whole), all.begin()))
        << name(form);
  }
}

TEST_F(WeightsTest, ReadsEveryShardOfAnIndex) {
  Tensors first_shard = small_checkpoint("F32");
  Tensors second_shard;
  second_shard.insert(first_shard.extract("lm_head.weight"));
  second_shard.insert(first_shard.extract("model.layers.0.mlp.up_proj.weight"));
  json map;
  for (const auto& [name, tensor] : first_shard) map[name] = "one.safetensors";
  for (const auto& [name, tensor] : second_shard) map[name] = "two.safetensors";
  folder_.write("one.safetensors", image(first_shard));
  folder_.write("two.safetensors", image(second_shard));
  folder_.write("model.safetensors.index.json", json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump());
  const Weights weights = load(small_config());
  EXPECT_EQ(first(weights.output.data), 21.0f);
  EXPECT_EQ(first(weights.layers[0].up.data), 16.0f);

  std::filesystem::remove(folder_ / "two.safetensors");
  EXPECT_TRUE(refuses([&] { load(small_config()); }, {"two.safetensors: cannot be opened"}));
  folder_.write("two.safetensors", image({}));
  EXPECT_TRUE(refuses([&] { load(small_config()); }, {"two.safetensors: has no tensor"}));
}

TEST_F(WeightsTest, ShardsLieInTheModelsOwnFolder) {
  for (const char* shard : {"../one.safetensors", "/etc/passwd", "sub/one.safetensors", "..", ".", ""}) {
    folder_.write("model.safetensors.index.json", json{{"weight_map", {{"lm_head.weight", shard}}}}.dump());
    EXPECT_TRUE(refuses([&] { load(small_config()); }, {"index.json", "lm_head.weight", "not a file name"})) << shard;
  }
  folder_.write("model.safetensors.index.json", "{}");
  EXPECT_TRUE(refuses([&] { load(small_config()); }, {"index.json", "weight_map"}));
  folder_.write("model.safetensors.index.json", R"({"weight_map": {"lm_head.weight": 7}})");
  EXPECT_TRUE(refuses([&] { load(small_config()); }, {"index.json", "lm_head.weight"}));
}

TEST_F(WeightsTest, RefusesWhatDoesNotFitTheConfiguration) {
  EXPECT_TRUE(refuses([&] { load(small_config()); }, {"neither model.safetensors nor"}));

  Tensors tensors = small_checkpoint("F32");
  tensors["model.layers.0.self_attn.k_proj.weight"].shape = {16, 8};
  folder_.write("model.safetensors", image(tensors));
  EXPECT_TRUE(refuses([&] { load(small_config()); }, {"model.safetensors", "k_proj.weight", "[16, 8]", "[8, 16]"}));

  tensors = small_checkpoint("F32");
  tensors["model.layers.0.mlp.gate_proj.weight"].dtype = "I32";
  folder_.write("model.safetensors", image(tensors));
  EXPECT_TRUE(refuses([&] { load(small_config()); }, {"model.safetensors", "gate_proj.weight", "I32"}));

  tensors = small_checkpoint("F32");
  tensors["model.norm.weight"].dtype = "U32";
  folder_.write("model.safetensors", image(tensors));
  EXPECT_TRUE(refuses([&] { load(small_config()); }, {"model.safetensors", "model.norm.weight", "U32"}));

  const std::string whole = image(small_checkpoint("F32"));
  folder_.write("model.safetensors", whole.substr(0, whole.size() - 100));
  EXPECT_TRUE(refuses([&] { load(small_config()); }, {"model.safetensors: truncated"}));
}

}  // namespace
}  // namespace hayloft::runtime
