#include "runtime/checkpoint/weights/weights.h"

#include "runtime/checkpoint/safetensors.h"
#include "tests/runtime/checkpoint/weights/weights_fixture.h"
#include "tests/support/refusal.h"

namespace hayloft::runtime {
namespace {

using nlohmann::json;
using test::refuses;

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

}  // namespace
}  // namespace hayloft::runtime
