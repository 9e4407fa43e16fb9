#include "runtime/checkpoint/config.h"

#include <cmath>

#include "tests/runtime/checkpoint/config_fixture.h"

namespace hayloft::runtime {
namespace {

TEST(Config, ReadsTheShapeOfALlama) {
  const ModelConfig config = read(config_of("llama"));
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.vocab_size, 320);
  EXPECT_EQ(config.hidden_size, 96);
  EXPECT_EQ(config.intermediate_size, 200);
  EXPECT_EQ(config.layers, 6);
  EXPECT_EQ(config.query_heads, 4);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.group_size(), 2);
  EXPECT_EQ(config.head_dim, 24) << "hidden_size / num_attention_heads";
  EXPECT_EQ(config.global_layers(), 6);
  EXPECT_EQ(config.rope, Ropes(6, true));
}

// The defaults below are those of transformers' LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, SmolLM3Config.
TEST(Config, TakesTheDefaultsOfLlama) {
  json file = config_of("llama");
  file.erase("num_key_value_heads");
  const ModelConfig config = read(file);
  EXPECT_EQ(config.kv_heads, 4) << "as many as query heads";
  EXPECT_FLOAT_EQ(config.rms_norm_eps, 1e-6f);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_FALSE(config.qkv_bias || config.output_bias || config.mlp_bias || config.qk_norm);
  EXPECT_EQ(config.max_positions, 2048);
  EXPECT_EQ(config.eos_tokens, (Tokens{2}));
  EXPECT_FLOAT_EQ(config.global_table.inverse_frequency[1], static_cast<float>(std::pow(10000.0, -2.0 / 24)));
}

TEST(Config, TakesTheDefaultsOfMistral) {
  json file = config_of("mistral");
  file.erase("num_key_value_heads");
  file["num_attention_heads"] = 16;
  file["hidden_size"] = 128;
  const ModelConfig config = read(file);
  EXPECT_EQ(config.kv_heads, 8);
  EXPECT_EQ(config.sliding_window, Windows(6, 4096));
  EXPECT_EQ(config.global_layers(), 0);
  EXPECT_EQ(config.max_positions, 131072);

  file["num_key_value_heads"] = nullptr;
  EXPECT_EQ(read(file).kv_heads, 16) << "null means as many as query heads";
}

TEST(Config, TakesTheDefaultsOfQwen2) {
  const ModelConfig config = read(config_of("qwen2"));
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.output_bias || config.mlp_bias || config.qk_norm || config.tied_embeddings);
  EXPECT_EQ(config.global_layers(), 6) << "use_sliding_window is off";
  EXPECT_EQ(config.max_positions, 32768);
  EXPECT_EQ(config.eos_tokens, Tokens{});
}

TEST(Config, TakesTheDefaultsOfQwen3) {
  const ModelConfig config = read(config_of("qwen3"));
  EXPECT_EQ(config.head_dim, 128) << "whatever hidden_size is";
  EXPECT_TRUE(config.qk_norm);
  EXPECT_FALSE(config.qkv_bias || config.output_bias);
}

TEST(Config, TakesTheDefaultsOfSmolLM3) {
  json file = config_of("smollm3");
  file.erase("num_key_value_heads");
  const ModelConfig config = read(file);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_EQ(config.rope, (Ropes{true, true, true, false, true, true})) << "every fourth layer without";
  EXPECT_EQ(config.global_layers(), 6);
  EXPECT_EQ(config.eos_tokens, (Tokens{128001}));
  EXPECT_FLOAT_EQ(config.global_table.inverse_frequency[1], static_cast<float>(std::pow(2e6, -2.0 / 24)));
}

TEST(Config, BiasesFollowTheArchitecture) {
  for (const char* name : {"llama", "qwen3", "smollm3"}) {
    json file = config_of(name);
    file["attention_bias"] = true;
    EXPECT_TRUE(read(file).qkv_bias && read(file).output_bias) << name;
  }
  for (const char* name : {"llama", "smollm3"}) {
    json file = config_of(name);
    file["mlp_bias"] = true;
    EXPECT_TRUE(read(file).mlp_bias) << name;
  }
  json mistral = config_of("mistral");
  mistral["attention_bias"] = true;
  EXPECT_FALSE(read(mistral).qkv_bias) << "the architecture has no such option";
}

// The configuration that transformers writes for a mistral whose layers differ; the shapes and tensors are mistral's.
TEST(Config, MinistralIsAMistralWithLayerTypes) {
  json file = config_of("ministral");
  file["sliding_window"] = 48;
  file["layer_types"] = {"full_attention", "sliding_attention", "sliding_attention",
                         "full_attention", "sliding_attention", "sliding_attention"};
  const ModelConfig config = read(file);
  EXPECT_EQ(config.architecture, "ministral");
  EXPECT_EQ(config.sliding_window, (Windows{0, 48, 48, 0, 48, 48}));
  EXPECT_FALSE(config.qkv_bias || config.output_bias || config.mlp_bias || config.qk_norm || config.tied_embeddings);
  EXPECT_EQ(config.max_positions, 131072);
  EXPECT_EQ(config.eos_tokens, (Tokens{2}));

  json bare = config_of("ministral");
  EXPECT_EQ(read(bare).sliding_window, Windows(6, 4096));
  bare["sliding_window"] = nullptr;
  EXPECT_EQ(read(bare).global_layers(), 6);
}

TEST(Config, SwishIsAnotherNameOfSilu) {
  json file = config_of("llama");
  file["hidden_act"] = "swish";
  EXPECT_NO_THROW(read(file));
  expect_refused_value("hidden_act", "gelu");
}

TEST(Config, MistralSlidesOnEveryLayerOrNone) {
  json file = config_of("mistral");
  file["sliding_window"] = 48;
  EXPECT_EQ(read(file).sliding_window, Windows(6, 48));
  file["sliding_window"] = nullptr;
  EXPECT_EQ(read(file).global_layers(), 6);
}

TEST(Config, QwenSlidesFromMaxWindowLayersOnWhenSwitchedOn) {
  json file = config_of("qwen2");
  file["sliding_window"] = 32;
  file["max_window_layers"] = 4;
  EXPECT_EQ(read(file).global_layers(), 6) << "not switched on";
  file["use_sliding_window"] = true;
  EXPECT_EQ(read(file).sliding_window, (Windows{0, 0, 0, 0, 32, 32}));

  file["layer_types"] = {"sliding_attention", "full_attention", "full_attention",
                         "full_attention",    "full_attention", "full_attention"};
  EXPECT_EQ(read(file).sliding_window, (Windows{32, 0, 0, 0, 0, 0})) << "the list wins";
}

TEST(Config, SmolLM3MixesRopeAndWindowsLayerByLayer) {
  json file = config_of("smollm3");
  file["no_rope_layer_interval"] = 3;
  EXPECT_EQ(read(file).rope, (Ropes{true, true, false, true, true, false}));

  file["use_sliding_window"] = true;
  file["sliding_window"] = 40;
  EXPECT_EQ(read(file).sliding_window, (Windows{0, 0, 40, 0, 0, 40})) << "by default the layers without RoPE";

  file["no_rope_layers"] = {1, 0, 1, 0, true, false};
  file["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention",
                         "full_attention",    "full_attention", "full_attention"};
  EXPECT_EQ(read(file).rope, (Ropes{true, false, true, false, true, false}));
  EXPECT_EQ(read(file).sliding_window, (Windows{40, 0, 40, 0, 0, 0}));
}

TEST(Config, EndOfTextIsANumberAListOrNothing) {
  json file = config_of("llama");
  file["eos_token_id"] = 7;
  EXPECT_EQ(read(file).eos_tokens, (Tokens{7}));
  file["eos_token_id"] = {7, 9};
  EXPECT_EQ(read(file).eos_tokens, (Tokens{7, 9}));
  file["eos_token_id"] = nullptr;
  EXPECT_EQ(read(file).eos_tokens, Tokens{});
}

TEST(Config, GenerationConfigDecidesTheEndOfTextWhenItNamesOne) {
  json file = config_of("llama");
  file["eos_token_id"] = 7;
  EXPECT_EQ(read(file, {{"eos_token_id", {3, 4}}}).eos_tokens, (Tokens{3, 4}));
  EXPECT_EQ(read(file, {{"temperature", 0.6}}).eos_tokens, (Tokens{7}));
}

TEST(Config, RefusesWhatItCannotRun) {
  expect_refused_value("model_type", "gpt2");
  expect_refused_value("model_type", "gpt2\n");
  expect_refused_value("hidden_act", "gelu");
  expect_refused_value("head_dim", 12);
  expect_refused_value("head_dim", 520);
  expect_refused_value("partial_rotary_factor", 0.5);
  expect_refused_value("quantization_config", {{"quant_method", "gptq"}});

  json file = config_of("llama");
  file["rope_scaling"] = {{"rope_type", "tower"}, {"factor", 4.0}};
  expect_refused(file, "tower");
}

TEST(Config, RefusesMissingMistypedAndImpossibleFields) {
  for (const char* field :
       {"model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    json file = config_of("llama");
    file.erase(field);
    expect_refused(file, field);
    expect_refused_value(field, json::array());
    expect_refused_value(field, 1.5);
  }
  expect_refused_value("vocab_size", 0);
  expect_refused_value("num_hidden_layers", -1);
  expect_refused_value("num_hidden_layers", 1ull << 63);
  expect_refused_value("num_attention_heads", 5);  // 96 is no multiple of it
  expect_refused_value("num_key_value_heads", 3);
  expect_refused_value("rms_norm_eps", 0);
  expect_refused_value("rms_norm_eps", "small");
  expect_refused_value("rope_theta", -1);
  expect_refused_value("rope_scaling", "linear");
  expect_refused_value("tie_word_embeddings", 1);
  expect_refused_value("eos_token_id", "</s>");
  expect_refused_value("eos_token_id", {1, -1});
  expect_refused_value("sliding_window", 0, "mistral");
  expect_refused_value("layer_types", {"full_attention"}, "qwen2");
  expect_refused_value("no_rope_layers", {1, 0}, "smollm3");
  expect_refused_value("no_rope_layers", {1, 0, 2, 0, 1, 1}, "smollm3");
  expect_refused_value("no_rope_layer_interval", 0, "smollm3");

  json sliding = config_of("qwen3");
  sliding["layer_types"] = std::vector<std::string>(6, "sliding_attention");
  expect_refused(sliding, "sliding_window");
  sliding["layer_types"] = std::vector<std::string>(6, "linear_attention");
  expect_refused(sliding, "layer_types[0]");
}

TEST(Config, RefusesFilesThatAreNotAConfiguration) {
  const TemporaryFolder folder;
  EXPECT_TRUE(refuses([&] { read_config(folder.path()); }, {"config.json: no such file"}));
  folder.write("config.json", "{\"model_type\": \"llama\",");
  EXPECT_TRUE(refuses([&] { read_config(folder.path()); }, {"not valid JSON at byte"}));
  folder.write("config.json", "[]");
  EXPECT_TRUE(refuses([&] { read_config(folder.path()); }, {"must be a JSON object"}));
  folder.write("config.json", std::string(1000000, '['));
  EXPECT_TRUE(refuses([&] { read_config(folder.path()); }, {"not valid JSON"}));
  folder.write("config.json", "{\"rope_theta\": 1e999}");
  EXPECT_TRUE(refuses([&] { read_config(folder.path()); }, {"not valid JSON"}));
}

}  // namespace
}  // namespace hayloft::runtime
