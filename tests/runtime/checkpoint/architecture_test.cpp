#include "runtime/checkpoint/architecture.h"

#include "tests/runtime/checkpoint/config_fixture.h"

// A registered architecture stays for as long as the process lives, so every test takes names of its own.
namespace hayloft::runtime {
namespace {

TEST(Architecture, ARegisteredArchitectureIsReadByItsOwnDefaultsAndParts) {
  expect_refused(config_of("own-3.5"), "register_architecture()");
  Architecture own;
  own.name = "own-3.5";
  own.kv_heads = 1;
  own.head_dim = 32;
  own.max_positions = 1000;
  own.rope_theta = 5e4;
  own.tied_embeddings = true;
  own.eos_token = 7;
  own.rms_norm_eps = 1e-3;
  own.reads_mlp_bias = true;
  own.activation = Activation::gelu_tanh;
  own.set_parts = [](const ConfigFields& fields, ModelConfig& config) {
    EXPECT_EQ(config.layers, 6) << "the shape is there";
    config.norms = Norms::both;
    config.qkv_bias = fields.boolean("own_bias", true);
    config.logit_scale = static_cast<float>(fields.positive("own_scale", 2));
    const auto every = static_cast<std::size_t>(fields.integer("own_interval", 3, 1, 6));
    for (std::size_t layer = 0; layer < config.rope.size(); layer += every) {
      config.rope[layer] = false;
      config.sliding_window[layer] = 16;
    }
    if (fields.has("own_cap")) fields.refuse("own_cap", "absent");
  };
  register_architecture(own);

  json file = config_of("own-3.5");
  file.erase("num_key_value_heads");
  file["mlp_bias"] = true;
  const ModelConfig config = read(file);
  EXPECT_EQ(config.architecture, "own-3.5");
  EXPECT_EQ(config.kv_heads, 1);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.max_positions, 1000);
  EXPECT_DOUBLE_EQ(config.global_rope.base, 5e4);
  EXPECT_TRUE(config.tied_embeddings && config.mlp_bias && config.qkv_bias);
  EXPECT_FALSE(config.output_bias);
  EXPECT_EQ(config.eos_tokens, (Tokens{7}));
  EXPECT_FLOAT_EQ(config.rms_norm_eps, 1e-3f);
  EXPECT_EQ(config.activation, Activation::gelu_tanh);
  EXPECT_EQ(config.norms, Norms::both);
  EXPECT_EQ(config.logit_scale, 2);
  EXPECT_EQ(config.sliding_window, (Windows{16, 0, 0, 16, 0, 0}));
  EXPECT_EQ(config.rope, (Ropes{false, true, true, false, true, true}));

  file["sliding_window"] = 20;
  EXPECT_EQ(read(file).sliding_window, (Windows{16, 0, 0, 16, 0, 0})) << "no layer is said to slide";
  file["layer_types"] = {"full_attention", "sliding_attention", "full_attention",
                         "full_attention", "full_attention",    "sliding_attention"};
  EXPECT_EQ(read(file).sliding_window, (Windows{16, 20, 0, 16, 0, 20}));
  file["layer_types"][2] = "linear_attention";
  expect_refused(file, "layer_types[2]");

  expect_refused_value("own_bias", 3, "own-3.5");
  expect_refused_value("own_scale", -1, "own-3.5");
  expect_refused_value("own_interval", 7, "own-3.5");
  expect_refused_value("own_cap", 30, "own-3.5");
  expect_refused_value("hidden_act", "silu", "own-3.5");

  EXPECT_TRUE(refuses([&] { register_architecture(own); }, {"own-3.5", "already"}));
  own.name = "llama";
  EXPECT_TRUE(refuses([&] { register_architecture(own); }, {"llama", "already"}));
  for (const char* const name : {"", "a b", "a\n"}) {
    own.name = name;
    EXPECT_TRUE(refuses([&] { register_architecture(own); }, {"cannot name"})) << name;
  }
  own.name = "own_moe";  // which says nothing of experts
  register_architecture(own);
  EXPECT_EQ(read(config_of("own_moe")).experts.count, 0);
}

TEST(Architecture, WhatComputesSomethingElseIsReadByPartsOrRefused) {
  Architecture silent;
  silent.name = "silent";
  register_architecture(silent);
  Architecture reader;
  reader.name = "reader";
  reader.set_parts = [](const ConfigFields& fields, ModelConfig& config) {
    config.logit_scale = static_cast<float>(fields.positive("logit_scale", 1));
    if (fields.has("sliding_window")) {
      config.sliding_window.assign(config.sliding_window.size(), fields.integer("sliding_window", 0, 1, 1000));
    }
  };
  register_architecture(reader);

  for (const auto& [name, value] : std::vector<std::pair<std::string, json>>{{"attn_logit_softcapping", 50.0},
                                                                             {"final_logit_softcapping", 30.0},
                                                                             {"residual_multiplier", 0.5},
                                                                             {"partial_rotary_factor", 0.25},
                                                                             {"no_rope_layers", {1, 1, 1, 0, 1, 1}},
                                                                             {"use_bidirectional_attention", true},
                                                                             {"query_pre_attn_scalar", 256},
                                                                             {"logit_scale", 0.25},
                                                                             {"sliding_window", 512}}) {
    expect_refused_value(name, value, "silent");
  }
  json same = config_of("silent");
  same["attn_logit_softcapping"] = nullptr;
  same["residual_multiplier"] = 1.0;
  same["no_rope_layers"] = {1, 1, 1, 1, 1, 1};
  same["use_bidirectional_attention"] = false;
  same["sliding_window"] = 4096;
  same["use_sliding_window"] = false;
  EXPECT_EQ(read(same).sliding_window, Windows(6));

  json read_by_parts = config_of("reader");
  read_by_parts["logit_scale"] = 0.25;
  read_by_parts["sliding_window"] = 512;
  EXPECT_EQ(read(read_by_parts).logit_scale, 0.25f);
  EXPECT_EQ(read(read_by_parts).sliding_window, Windows(6, 512));
  expect_refused_value("clip_qkv", 8, "reader");
}

}  // namespace
}  // namespace hayloft::runtime
