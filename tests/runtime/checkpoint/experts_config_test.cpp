// What a config.json says of its mixtures of experts.
#include <gtest/gtest.h>

#include "runtime/checkpoint/architecture.h"
#include "tests/runtime/checkpoint/config_fixture.h"

namespace hayloft::runtime {
namespace {

json with_experts(const char* model_type) {
  json config = config_of(model_type);
  config["num_experts"] = 8;
  config["num_experts_per_tok"] = 2;
  config["moe_intermediate_size"] = 40;
  return config;
}

TEST(ExpertsConfig, DefaultsAreThoseOfTheConfigurationClasses) {
  struct Case {
    const char* name;
    int count, used, inner, shared;
    bool of_chosen;
  };
  for (const Case& each : {Case{"mixtral", 8, 2, 200, 0, true}, Case{"qwen3_moe", 128, 8, 768, 0, false},
                           Case{"qwen3_5_moe_text", 256, 8, 512, 512, true}, Case{"olmoe", 64, 8, 200, 0, false},
                           Case{"granitemoe", 8, 2, 200, 0, true}}) {
    const Experts experts = read(config_of(each.name)).experts;
    EXPECT_EQ(experts.count, each.count) << each.name;
    EXPECT_EQ(experts.used, each.used) << each.name;
    EXPECT_EQ(experts.inner, each.inner) << each.name;
    EXPECT_EQ(experts.shared_inner, each.shared) << each.name;
    EXPECT_EQ(experts.share_of_chosen, each.of_chosen) << each.name;
  }
}

TEST(ExpertsConfig, TheirNumberGoesByTwoNames) {
  for (const char* name : {"qwen3_moe", "mixtral"}) {
    for (const char* field : {"num_experts", "num_local_experts"}) {
      json config = config_of(name);
      config[field] = 12;
      EXPECT_EQ(read(config).experts.count, 12) << name << " " << field;
      config[field == std::string("num_experts") ? "num_local_experts" : "num_experts"] = 12;
      EXPECT_EQ(read(config).experts.count, 12);
    }
  }
}

TEST(ExpertsConfig, WindowsAreThoseOfTheModelsThemselves) {
  const auto windows = [](const char* model_type, bool used, std::int64_t most_layers) {
    json config = with_experts(model_type);
    config["sliding_window"] = 16;
    config["use_sliding_window"] = used;
    config["max_window_layers"] = most_layers;
    return read(config).sliding_window;
  };
  EXPECT_EQ(windows("qwen3_moe", true, 3), Windows(6, 16));
  EXPECT_EQ(windows("qwen3_moe", false, 3), Windows(6, 0));
  EXPECT_EQ(windows("qwen2_moe", true, 3), (Windows{16, 0, 16, 0, 0, 0}));
  EXPECT_EQ(windows("qwen2_moe", false, 3), Windows(6, 0));
  json config = config_of("mixtral");
  EXPECT_EQ(read(config).sliding_window, Windows(6, 0));
  config["sliding_window"] = 16;
  EXPECT_EQ(read(config).sliding_window, Windows(6, 16));
}

TEST(ExpertsConfig, SomeLayersHaveNone) {
  json config = with_experts("qwen3_moe");
  config["num_hidden_layers"] = 4;
  EXPECT_TRUE(read(config).experts.dense.empty());
  config["mlp_only_layers"] = {0};
  config["decoder_sparse_step"] = 2;
  const ModelConfig read_config = read(config);
  EXPECT_EQ(read_config.experts.dense, (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(read_config.experts.dense_inner, 200);
  EXPECT_EQ(read_config.intermediate_size, 200);  // the wider one
  config["mlp_only_layers"] = {4};
  expect_refused(config, "mlp_only_layers");
}

TEST(ExpertsConfig, WhatIsNotHonouredIsRefusedByName) {
  const auto with = [](const char* model_type, const char* field, const json& value) {
    json config = model_type[0] == 'q' ? with_experts(model_type) : config_of(model_type);
    config[field] = value;
    return config;
  };
  expect_refused(with("qwen3_moe", "routed_scaling_factor", 2.5), "routed_scaling_factor");
  expect_refused(with("qwen3_moe", "n_shared_experts", 1), "n_shared_experts");
  expect_refused(with("olmoe", "clip_qkv", 8), "clip_qkv");
  expect_refused(with("olmoe", "mlp_only_layers", {1}), "mlp_only_layers");
  expect_refused(with("qwen3_5_moe_text", "norm_topk_prob", false), "norm_topk_prob");
  expect_refused(with("granitemoe", "shared_intermediate_size", 64), "shared_intermediate_size");
  json two = config_of("mixtral");
  two["num_local_experts"] = 8;
  two["num_experts"] = 4;
  expect_refused(two, "num_experts");
  EXPECT_EQ(read(with("qwen3_5_moe_text", "norm_topk_prob", true)).experts.count, 8);
}

TEST(ExpertsConfig, RefusesWhatCannotBe) {
  json config = with_experts("qwen3_moe");
  config["num_experts_per_tok"] = 9;
  expect_refused(config, "num_experts_per_tok 9 is more than the 8 experts");
  config = with_experts("qwen3_moe");
  config["num_experts"] = 1 << 14;
  config["hidden_size"] = 1 << 20;
  expect_refused(config, "rows together");
}

TEST(ExpertsConfig, ARegisteredArchitectureCanHaveThem) {
  Architecture own;
  own.name = "own_experts";
  own.experts = {"experts", 4, 2, "expert_size", 16, ExpertShares::of_all};
  register_architecture(own);
  json config = config_of("own_experts");
  config["experts"] = 3;
  const Experts experts = read(config).experts;
  EXPECT_EQ(experts.count, 3);
  EXPECT_EQ(experts.inner, 16);
  EXPECT_FALSE(experts.share_of_chosen);
}

}  // namespace
}  // namespace hayloft::runtime
