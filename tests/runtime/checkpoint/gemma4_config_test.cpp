#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/config.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

// Configurations of Gemma 4, whose sliding layers have heads of another shape than its global ones.
namespace hayloft::runtime {
namespace {

using nlohmann::json;

// As those of the 26B-A4B are, but for the layers' number and what has no bearing on a shape.
json mixture() {
  return {{"model_type", "gemma4_text"},
          {"vocab_size", 262144},
          {"hidden_size", 2816},
          {"intermediate_size", 2112},
          {"num_hidden_layers", 12},
          {"num_attention_heads", 16},
          {"num_key_value_heads", 8},
          {"num_global_key_value_heads", 2},
          {"head_dim", 256},
          {"global_head_dim", 512},
          {"attention_k_eq_v", true},
          {"sliding_window", 1024},
          {"hidden_size_per_layer_input", 0},
          {"num_kv_shared_layers", 0},
          {"enable_moe_block", true},
          {"num_experts", 128},
          {"top_k_experts", 8},
          {"moe_intermediate_size", 704},
          {"final_logit_softcapping", 30.0}};
}

json changed(const std::string& field, const json& value) {
  json config = mixture();
  config[field] = value;
  return config;
}

ModelConfig read_gemma4(const json& config) {
  const test::TemporaryFolder folder;
  folder.write("config.json", config.dump());
  return read_config(folder.path());
}

void expect_refused(const json& config, std::initializer_list<std::string> parts) {
  EXPECT_TRUE(test::refuses([&] { read_gemma4(config); }, parts));
}

TEST(Gemma4Config, EachKindOfLayerHasItsHeads) {
  const ModelConfig config = read_gemma4(mixture());
  EXPECT_EQ(config.heads(0), (LayerHeads{8, 256}));
  EXPECT_EQ(config.heads(5), (LayerHeads{2, 512}));
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.head_dim, 512);
  EXPECT_EQ(config.widest_head(), 512);
  EXPECT_EQ(config.widest_kv(), 8 * 256);
  EXPECT_EQ(config.global_layers(), 2);
  EXPECT_EQ(config.sliding_window[0], 1024);
  EXPECT_TRUE(config.keys_as_values);
  EXPECT_EQ(config.logit_cap, 30);
  EXPECT_TRUE(config.notes.empty()) << config.notes.front();
}

TEST(Gemma4Config, ItsExpertsHaveAnMlpBesideThem) {
  const ModelConfig config = read_gemma4(mixture());
  EXPECT_EQ(config.experts.count, 128);
  EXPECT_EQ(config.experts.used, 8);
  EXPECT_EQ(config.experts.inner, 704);
  EXPECT_EQ(config.experts.beside_inner, 2112);
  EXPECT_EQ(config.intermediate_size, 8 * 704 + 2112);
  const ModelConfig dense = read_gemma4(changed("enable_moe_block", false));
  EXPECT_EQ(dense.experts.count, 0);
  EXPECT_EQ(dense.intermediate_size, 2112);
  json without = mixture();
  without.erase("top_k_experts");
  expect_refused(without, {"top_k_experts"});
}

TEST(Gemma4Config, APartOfThePairsOfAGlobalHeadStandsStill) {
  const ModelConfig config = read_gemma4(mixture());
  EXPECT_EQ(config.global_rope.still, 192);
  EXPECT_EQ(config.global_rope.base, 1e6);
  const std::vector<float>& global = config.global_table.inverse_frequency;
  ASSERT_EQ(global.size(), 256U);
  EXPECT_FLOAT_EQ(global[1], std::pow(1e6f, -2.0f / 512));
  EXPECT_GT(global[63], 0);
  EXPECT_EQ(global[64], 0);
  EXPECT_EQ(config.local_table.inverse_frequency.size(), 128U);
  EXPECT_FLOAT_EQ(config.local_table.inverse_frequency[1], std::pow(1e4f, -2.0f / 256));
  ModelConfig stretched = config;
  set_rope(stretched, {.scaling = RopeScaling::yarn, .factor = 4});
  EXPECT_EQ(stretched.global_table.inverse_frequency[64], 0) << "they stand still under the user's scaling too";
}

TEST(Gemma4Config, KvHeadsOfGlobalLayersCountWhereKeysAreValues) {
  EXPECT_EQ(read_gemma4(changed("attention_k_eq_v", false)).heads(5), (LayerHeads{8, 512}));
  EXPECT_EQ(read_gemma4(changed("num_global_key_value_heads", nullptr)).heads(5), (LayerHeads{8, 512}));
}

TEST(Gemma4Config, HeadsAreThoseOfEachLayerWhereTheFileListsThem) {
  json config = mixture();
  config.erase("global_head_dim");
  config.erase("num_global_key_value_heads");
  const json heads = {{"head_dim", 384}, {"num_key_value_heads", 4}};
  config["per_layer_config"] = {{"5", heads}, {"11", heads}};
  EXPECT_EQ(read_gemma4(config).heads(5), (LayerHeads{4, 384}));
  EXPECT_EQ(read_gemma4(config).heads(4), (LayerHeads{8, 256}));
  config["per_layer_config"]["11"]["head_dim"] = 512;
  expect_refused(config, {"per_layer_config[11]", "heads of another shape"});
  config["per_layer_config"]["11"] = heads;
  config["per_layer_config"]["3"] = heads;
  expect_refused(config, {"per_layer_config[3]", "heads of another shape"});
  config["per_layer_config"].erase("3");
  config["per_layer_config"]["5"]["sliding_window"] = 3;
  expect_refused(config, {"per_layer_config[5]", "sliding_window"});
}

TEST(Gemma4Config, TheLastLayerIsGlobalAndANoteSaysSo) {
  const ModelConfig config = read_gemma4(changed("layer_types", std::vector<std::string>(12, "sliding_attention")));
  EXPECT_EQ(config.kind(10), LayerKind::sliding);
  EXPECT_EQ(config.kind(11), LayerKind::global);
  ASSERT_EQ(config.notes.size(), 1U);
  EXPECT_NE(config.notes.front().find("layer_types[11]"), std::string::npos) << config.notes.front();
}

TEST(Gemma4Config, WhatOtherModelsOfTheFamilyHaveIsRefusedByName) {
  expect_refused(changed("hidden_size_per_layer_input", 256), {"hidden_size_per_layer_input", "E2B"});
  expect_refused(changed("hidden_size_per_layer_input", nullptr), {"hidden_size_per_layer_input", "E2B"});
  expect_refused(changed("num_kv_shared_layers", 4), {"num_kv_shared_layers", "E4B"});
  expect_refused(changed("use_bidirectional_attention", "all"), {"use_bidirectional_attention"});
  EXPECT_NO_THROW(read_gemma4(changed("use_bidirectional_attention", "vision")));
  expect_refused(changed("global_head_dim", 516), {"global_head_dim", "multiple of 8"});
  expect_refused(changed("global_head_dim", 1024), {"global_head_dim"});
  expect_refused(changed("num_global_key_value_heads", 3), {"num_global_key_value_heads", "16"});
}

TEST(Gemma4Config, RopeOfOtherKindsIsRefused) {
  const json global = {{"rope_type", "proportional"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.25}};
  const json sliding = {{"rope_type", "default"}, {"rope_theta", 1e4}};
  const auto with = [&](const json& full, const json& window) {
    return changed("rope_parameters", {{"full_attention", full}, {"sliding_attention", window}});
  };
  EXPECT_NO_THROW(read_gemma4(with(global, sliding)));
  json other = global;
  other["rope_type"] = "default";
  expect_refused(with(other, sliding), {"rope_type", "proportional"});
  expect_refused(with(global, global), {"rope_type", "default"});
  expect_refused(changed("rope_parameters", {{"rope_type", "default"}}), {"sliding_attention"});
}

}  // namespace
}  // namespace hayloft::runtime
