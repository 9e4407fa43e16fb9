#include "runtime/checkpoint/weights/weights.h"
#include "gpu/make_backend.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "offload/half.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/safetensors.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime {
namespace {

using nlohmann::json;
using test::refuses;
using test::TemporaryFolder;

// One tensor of a checkpoint under test: its bytes are a ramp that starts at a number of its own.
struct Tensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

using Tensors = std::map<std::string, Tensor>;

std::string image(const Tensors& tensors) {
  json header = json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t begin = data.size();
    for (const float x : tensor.values) {
      if (tensor.dtype == "F16") {
        const f16 half = to_f16(x);
        data.append(reinterpret_cast<const char*>(&half), 2);
      } else if (tensor.dtype == "BF16") {
        data.append(reinterpret_cast<const char*>(&x) + 2, 2);
      } else {
        data.append(reinterpret_cast<const char*>(&x), 4);
      }
    }
    header[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + text + data;
}

// A qwen3-like model of one layer with every option on: hidden 16, 2 query heads, 1 KV head, d 8, inner 24, vocab 10.
ModelConfig small_config() {
  ModelConfig config;
  config.architecture = "qwen3";
  config.vocab_size = 10;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.layers = 1;
  config.query_heads = 2;
  config.kv_heads = 1;
  config.head_dim = 8;
  config.qkv_bias = config.output_bias = config.mlp_bias = config.qk_norm = true;
  config.sliding_window = {0};
  config.rope = {true};
  config.global_table.inverse_frequency = {1.0f, 0.5f, 0.25f, 0.125f};
  return config;
}

Tensors small_checkpoint(const std::string& dtype) {
  const std::pair<std::string, std::vector<std::int64_t>> shapes[] = {
      {"model.embed_tokens.weight", {10, 16}},
      {"model.layers.0.input_layernorm.weight", {16}},
      {"model.layers.0.post_attention_layernorm.weight", {16}},
      {"model.layers.0.self_attn.q_proj.weight", {16, 16}},
      {"model.layers.0.self_attn.q_proj.bias", {16}},
      {"model.layers.0.self_attn.k_proj.weight", {8, 16}},
      {"model.layers.0.self_attn.k_proj.bias", {8}},
      {"model.layers.0.self_attn.v_proj.weight", {8, 16}},
      {"model.layers.0.self_attn.v_proj.bias", {8}},
      {"model.layers.0.self_attn.o_proj.weight", {16, 16}},
      {"model.layers.0.self_attn.o_proj.bias", {16}},
      {"model.layers.0.self_attn.q_norm.weight", {8}},
      {"model.layers.0.self_attn.k_norm.weight", {8}},
      {"model.layers.0.mlp.gate_proj.weight", {24, 16}},
      {"model.layers.0.mlp.gate_proj.bias", {24}},
      {"model.layers.0.mlp.up_proj.weight", {24, 16}},
      {"model.layers.0.mlp.up_proj.bias", {24}},
      {"model.layers.0.mlp.down_proj.weight", {16, 24}},
      {"model.layers.0.mlp.down_proj.bias", {16}},
      {"model.norm.weight", {16}},
      {"lm_head.weight", {10, 16}},
  };
  Tensors tensors;
  float start = 1;
  for (const auto& [name, shape] : shapes) {
    std::int64_t elements = 1;
    for (const std::int64_t n : shape) elements *= n;
    // Numbers every dtype under test holds exactly: the tensor's own in the first place, then 0 to 63.
    std::vector<float> values(static_cast<std::size_t>(elements));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 64);
    values[0] = start++;
    tensors[name] = {dtype, shape, values};
  }
  return tensors;
}

class WeightsTest : public ::testing::Test {
 protected:
  Weights load(const ModelConfig& config) { return load_weights(*Checkpoint::open(folder_.path()), config, *backend_); }

  std::vector<std::byte> bytes_at(const void* device, std::size_t bytes) {
    std::vector<std::byte> host(bytes);
    backend_->to_host(host.data(), device, bytes, backend_->stream());
    return host;
  }
  float first(const void* device) {
    float x;
    std::memcpy(&x, bytes_at(device, 4).data(), 4);
    return x;
  }

  offload::Threads threads_{1};
  std::unique_ptr<gpu::Backend> backend_ = gpu::make_cpu_backend(threads_);
  TemporaryFolder folder_;
};

TEST_F(WeightsTest, EveryTensorArrivesWhereItBelongs) {
  folder_.write("model.safetensors", image(small_checkpoint("F32")));
  const Weights weights = load(small_config());
  ASSERT_EQ(weights.layers.size(), 1u);
  const LayerWeights& layer = weights.layers[0];
  // The order of small_checkpoint, whose tensors begin with 1, 2, 3, ...
  const void* order[] = {
      weights.embedding.data, layer.attention_norm, layer.mlp_norm,     layer.q.data,  layer.q_bias,  layer.k.data,
      layer.k_bias,           layer.v.data,         layer.v_bias,       layer.o.data,  layer.o_bias,  layer.q_norm,
      layer.k_norm,           layer.gate.data,      layer.gate_bias,    layer.up.data, layer.up_bias, layer.down.data,
      layer.down_bias,        weights.final_norm,   weights.output.data};
  float expected = 1;
  for (const void* tensor : order) EXPECT_EQ(first(tensor), expected++);

  EXPECT_EQ(layer.down.rows, 16);
  EXPECT_EQ(layer.down.cols, 24);
  float frequencies[4];
  std::memcpy(frequencies, bytes_at(weights.inverse_frequency, 16).data(), 16);
  EXPECT_EQ(frequencies[3], 0.125f);
}

TEST_F(WeightsTest, MatricesKeepTheirDtypeAndVectorsBecomeF32) {
  for (const auto& [dtype, type] : {std::pair{"F16", gpu::DType::f16}, {"BF16", gpu::DType::bf16}}) {
    folder_.write("model.safetensors", image(small_checkpoint(dtype)));
    const Weights weights = load(small_config());
    EXPECT_EQ(weights.layers[0].q.type, type);
    EXPECT_EQ(first(weights.layers[0].q_bias), 5.0f) << dtype;

    const SafetensorsFile file(folder_ / "model.safetensors");
    const TensorView& q = file.at("model.layers.0.self_attn.q_proj.weight");
    const auto loaded = bytes_at(weights.layers[0].q.data, q.data.size());
    EXPECT_TRUE(std::equal(loaded.begin(), loaded.end(), q.data.begin(), q.data.end())) << dtype;
  }
}

TEST_F(WeightsTest, ATiedOutputIsTheEmbeddingItself) {
  Tensors tensors = small_checkpoint("F32");
  tensors.erase("lm_head.weight");
  folder_.write("model.safetensors", image(tensors));
  ModelConfig config = small_config();
  EXPECT_TRUE(refuses([&] { load(config); }, {"model.safetensors", "no tensor lm_head.weight"}));
  config.tied_embeddings = true;
  const Weights weights = load(config);
  EXPECT_EQ(weights.output.data, weights.embedding.data);
}

TEST_F(WeightsTest, ATiedModelTakesItsEmbeddingFromTheOutputWhereOnlyThatIsThere) {
  Tensors tensors = small_checkpoint("F32");
  tensors.erase("model.embed_tokens.weight");
  folder_.write("model.safetensors", image(tensors));
  ModelConfig config = small_config();
  EXPECT_TRUE(refuses([&] { load(config); }, {"model.safetensors", "no tensor model.embed_tokens.weight"}));
  config.tied_embeddings = true;
  const Weights weights = load(config);
  EXPECT_EQ(first(weights.embedding.data), 21.0f);
  EXPECT_EQ(weights.output.data, weights.embedding.data);
}

TEST_F(WeightsTest, AnOutputUnlikeTheEmbeddingIsTakenAlthoughTheConfigurationTiesThem) {
  Tensors tensors = small_checkpoint("F32");
  ModelConfig config = small_config();
  config.tied_embeddings = true;
  folder_.write("model.safetensors", image(tensors));
  const Weights apart = load(config);
  EXPECT_EQ(first(apart.output.data), 21.0f);
  EXPECT_EQ(first(apart.embedding.data), 1.0f);
  ASSERT_EQ(apart.notes.size(), 1U);
  for (const char* part : {"model.safetensors", "lm_head.weight", "model.embed_tokens.weight", "tie_word_embeddings"}) {
    EXPECT_NE(apart.notes[0].find(part), std::string::npos) << apart.notes[0];
  }

  tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
  folder_.write("model.safetensors", image(tensors));
  const Weights alike = load(config);
  EXPECT_EQ(alike.output.data, alike.embedding.data);
  EXPECT_TRUE(alike.notes.empty());

  tensors["lm_head.weight"].dtype = "F16";  // the same numbers
  folder_.write("model.safetensors", image(tensors));
  EXPECT_EQ(load(config).output.type, gpu::DType::f32);
}

TEST_F(WeightsTest, ATensorThatNothingReadsIsRefusedByName) {
  folder_.write("model.safetensors", image(small_checkpoint("F32")));
  ModelConfig config = small_config();
  config.architecture = "llama";
  config.qk_norm = false;
  EXPECT_TRUE(refuses([&] { load(config); }, {"model.safetensors", "llama", "2 tensors", "self_attn.k_norm.weight",
                                              "self_attn.q_norm.weight", "model_type"}));
  config = small_config();
  config.mlp_bias = false;
  EXPECT_TRUE(refuses([&] { load(config); }, {"3 tensors", "mlp.down_proj.bias", "mlp.up_proj.bias"}));
  Tensors tensors = small_checkpoint("F32");
  for (int i = 0; i < 20; ++i) tensors[fmt::format("model.layers.1.extra.{}", i)] = {"F32", {1}, {0}};
  folder_.write("model.safetensors", image(tensors));
  EXPECT_TRUE(refuses([&] { load(small_config()); }, {"20 tensors", "model.layers.1.extra.0", "17 more"}));
}

TEST_F(WeightsTest, BuffersThatOlderCheckpointsCarryAreNoWeights) {
  Tensors tensors = small_checkpoint("F32");
  for (const char* name :
       {"model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq", "model.embed_tokens.position_ids",
        "model.layers.0.self_attn.masked_bias", "model.layers.0.attn.bias"}) {
    tensors[name] = {"F32", {4}, {0, 0, 0, 0}};
  }
  folder_.write("model.safetensors", image(tensors));
  EXPECT_NO_THROW(load(small_config()));
}

// small_checkpoint without what an architecture has no place for.
Tensors without(std::initializer_list<const char*> endings) {
  Tensors tensors = small_checkpoint("F32");
  for (const char* ending : endings) {
    std::erase_if(tensors, [&](const auto& tensor) { return tensor.first.ends_with(ending); });
  }
  return tensors;
}

TEST_F(WeightsTest, WhatTheArchitectureLacksStaysNull) {
  folder_.write("model.safetensors", image(without({".bias", "q_norm.weight", "k_norm.weight"})));
  ModelConfig config = small_config();
  config.qkv_bias = config.output_bias = config.mlp_bias = config.qk_norm = false;
  const LayerWeights layer = load(config).layers[0];
  for (const float* absent : {layer.q_bias, layer.k_bias, layer.v_bias, layer.o_bias, layer.gate_bias, layer.up_bias,
                              layer.down_bias, layer.q_norm, layer.k_norm}) {
    EXPECT_EQ(absent, nullptr);
  }
}

TEST_F(WeightsTest, CountsItsBytesBeforeAndAfterLoading) {
  const Tensors tensors = small_checkpoint("BF16");
  folder_.write("model.safetensors", image(tensors));
  std::uint64_t expected = 4 * sizeof(float);  // inverse frequencies
  for (const auto& [name, tensor] : tensors) expected += tensor.values.size() * (tensor.shape.size() == 2 ? 2 : 4);

  const Weights weights = load(small_config());
  EXPECT_EQ(weights.bytes, expected);
  std::uint64_t held = 0;
  for (const gpu::Buffer& buffer : weights.buffers) held += buffer.bytes();
  EXPECT_EQ(held, expected);
}

TEST_F(WeightsTest, CountsBytesFromTheFolderAlone) {
  Tensors tensors = small_checkpoint("F16");
  for (auto tensor = tensors.begin(); tensor != tensors.end();) {
    const bool unused = tensor->first.ends_with(".bias") || tensor->first == "lm_head.weight";
    tensor = unused ? tensors.erase(tensor) : std::next(tensor);
  }
  folder_.write("model.safetensors", image(tensors));
  folder_.write("config.json", json{{"model_type", "qwen3"},
                                    {"vocab_size", 10},
                                    {"hidden_size", 16},
                                    {"intermediate_size", 24},
                                    {"num_hidden_layers", 1},
                                    {"num_attention_heads", 2},
                                    {"num_key_value_heads", 1},
                                    {"head_dim", 8},
                                    {"tie_word_embeddings", true}}
                                   .dump());
  EXPECT_EQ(weight_sizes(*Checkpoint::open(folder_.path())).bytes, load(read_config(folder_.path())).bytes);
}

// Every form in which files have the matrices of experts. Those of expert e begin with e, 10 + e and 20 + e.
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
      for (const auto& [found, expected] :
           {std::pair(&experts.gate, value), {&experts.up, 10 + value}, {&experts.down, 20 + value}}) {
        const gpu::Matrix& of = (*found)[at];
        const auto* const values = static_cast<const float*>(of.data);
        EXPECT_TRUE(std::all_of(values, values + of.rows * of.cols, [&](float x) { return x == expected; })) << e;
      }
    }
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
