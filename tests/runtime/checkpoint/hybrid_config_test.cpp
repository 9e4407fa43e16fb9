#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/checkpoint/config.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

// Configurations of models with recurrent layers, and of those that were made for more than what is here.
namespace hayloft::runtime {
namespace {

using nlohmann::json;

json hybrid() {
  return {{"model_type", "qwen3_5_text"}, {"vocab_size", 320},      {"hidden_size", 96},
          {"intermediate_size", 200},     {"num_hidden_layers", 8}, {"num_attention_heads", 4},
          {"num_key_value_heads", 2}};
}

ModelConfig read(const json& config) {
  const test::TemporaryFolder folder;
  folder.write("config.json", config.dump());
  return read_config(folder.path());
}

void expect_refused(const json& config, const std::string& field) {
  EXPECT_TRUE(test::refuses([&] { read(config); }, {"config.json", field}));
}

std::vector<LayerKind> kinds(const ModelConfig& config) {
  std::vector<LayerKind> all;
  for (int layer = 0; layer < config.layers; ++layer) all.push_back(config.kind(layer));
  return all;
}

constexpr LayerKind R = LayerKind::recurrent, G = LayerKind::global;

TEST(HybridConfig, TakesTheDefaultsOfQwen35) {
  const ModelConfig config = read(hybrid());
  EXPECT_EQ(kinds(config), (std::vector<LayerKind>{R, R, R, G, R, R, R, G}));
  EXPECT_EQ(config.global_layers(), 2);
  EXPECT_EQ(config.count(LayerKind::recurrent), 6);
  EXPECT_EQ(config.delta, (gpu::DeltaShape{16, 32, 128, 128, 4, false}));
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.global_rope.dimensions, 64);
  EXPECT_TRUE(config.attention_gate);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_TRUE(config.norms_less_one);
}

TEST(HybridConfig, ListedLayersCountBeforeTheInterval) {
  json config = hybrid();
  config["full_attention_interval"] = 2;
  EXPECT_EQ(kinds(read(config)), (std::vector<LayerKind>{R, G, R, G, R, G, R, G}));
  config["layer_types"] = std::vector<std::string>(8, "linear_attention");
  expect_refused(config, "at least one of layer_types must be full_attention");
  config["layer_types"][0] = "full_attention";
  EXPECT_EQ(kinds(read(config)), (std::vector<LayerKind>{G, R, R, R, R, R, R, R}));
  config["layer_types"][3] = "sliding_attention";
  expect_refused(config, "layer_types[3]");
}

TEST(HybridConfig, TheOuterConfigurationSaysWhatTheInnerLeavesOut) {
  const json outer = {{"model_type", "qwen3_5"}, {"tie_word_embeddings", true}, {"text_config", hybrid()}};
  EXPECT_TRUE(read(outer).tied_embeddings);
  json inner = outer;
  inner["text_config"]["tie_word_embeddings"] = false;
  EXPECT_FALSE(read(inner).tied_embeddings);
}

TEST(HybridConfig, RefusesWhatCannotBe) {
  const auto with = [](const std::string& field, const json& value) {
    json config = hybrid();
    config[field] = value;
    return config;
  };
  expect_refused(with("linear_num_key_heads", 5), "linear_num_value_heads 32 is not a multiple");
  expect_refused(with("linear_key_head_dim", 512), "linear_key_head_dim");
  expect_refused(with("linear_conv_kernel_dim", 0), "linear_conv_kernel_dim");
  expect_refused(with("linear_value_head_dim", 1 << 20), "channels");
  expect_refused(with("attention_bias", true), "attention_bias");
  expect_refused(with("partial_rotary_factor", 0.004), "partial_rotary_factor");
}

TEST(HybridConfig, MixturesOfExpertsAreReadOrRefusedByName) {
  for (const char* name : {"qwen3_next", "deepseek_v3_moe"}) {
    json config = hybrid();
    config["model_type"] = name;
    EXPECT_TRUE(test::refuses([&] { read(config); }, {"config.json", name, "mixture of experts"}));
  }
  json file = hybrid();
  file["model_type"] = "qwen3_5_moe_text";
  const ModelConfig hybrid_config = read(file);
  EXPECT_EQ(hybrid_config.experts.count, 256);
  EXPECT_EQ(hybrid_config.intermediate_size, 8 * 512 + 512);
  EXPECT_EQ(hybrid_config.count(LayerKind::recurrent), 6);
  file["model_type"] = "qwen3_moe";
  file["num_experts"] = 4;
  expect_refused(file, "num_experts_per_tok 8 is more than the 4 experts");
  file["model_type"] = "gpt_oss";
  const ModelConfig sliding = read(file);
  EXPECT_EQ(sliding.sliding_window, (std::vector<std::int64_t>{128, 0, 128, 0, 128, 0, 128, 0}));
  EXPECT_EQ(sliding.intermediate_size, 4 * 200);
  EXPECT_TRUE(sliding.attention_sinks && sliding.output_bias && sliding.qkv_bias && sliding.experts.biases);
  EXPECT_EQ(sliding.activation_limit, 7);
  file["swiglu_limit"] = 5;
  EXPECT_EQ(read(file).activation_limit, 5);
  file["swiglu_alpha"] = 1.5;
  expect_refused(file, "swiglu_alpha is 1.5");
  file["swiglu_alpha"] = 1.702;
  file["quantization_config"] = {{"quant_method", "mxfp4"}};
  EXPECT_TRUE(read(file).notes.empty());
  for (const json& other : {json{{"quant_method", "gptq"}}, json{{"quant_method", 4}}, json::object(), json("mxfp4")}) {
    file["quantization_config"] = other;
    expect_refused(file, "quantization_config");
  }
}

TEST(HybridConfig, ModelsMadeForDualChunkAttentionAreGoodForOneChunk) {
  json config = hybrid();
  config["model_type"] = "qwen2";
  config["max_position_embeddings"] = 1010000;
  EXPECT_EQ(read(config).max_positions, 262144);
  EXPECT_EQ(read(config).dual_chunk_positions, 262144);
  config["dual_chunk_attention_config"] = {{"chunk_size", 8192}, {"local_size", 1024}};
  EXPECT_EQ(read(config).max_positions, 8192);
  config["dual_chunk_attention_config"] = 5;
  expect_refused(config, "dual_chunk_attention_config");
  config["dual_chunk_attention_config"] = nullptr;
  config["max_position_embeddings"] = 262144;
  EXPECT_EQ(read(config).dual_chunk_positions, 0);
  config["max_position_embeddings"] = 1048576;  // by its RoPE, as other models
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 262144}};
  EXPECT_EQ(read(config).max_positions, 1048576);
  EXPECT_EQ(read(config).dual_chunk_positions, 0);
}

}  // namespace
}  // namespace hayloft::runtime
