#include <algorithm>

#include "tests/runtime/checkpoint/config_fixture.h"

// What a config.json says and its architecture does not read.
namespace hayloft::runtime {
namespace {

TEST(ConfigUnread, NothingIsNotedOfTheFieldsThatTransformersWrites) {
  for (const char* name :
       {"llama", "mistral-sliding", "ministral3", "qwen2", "qwen2-yarn", "qwen3", "smollm3", "gemma3", "gemma3-older",
        "phi3", "granite", "olmo2", "llama-llama3", "llama-yarn", "qwen3_5"}) {
    const ModelConfig config = read_config(std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/models" / name);
    EXPECT_EQ(config.notes, std::vector<std::string>()) << name;
  }
}

TEST(ConfigUnread, FieldsThatAreNotKnownAreNotedInOneLine) {
  json file = config_of("llama");
  file["torch_dtype"] = "bfloat16";
  file["pretraining_tp"] = 1;
  file["layer_types"] = std::vector<std::string>(6, "full_attention");
  file["absent"] = nullptr;
  EXPECT_TRUE(read(file).notes.empty());
  file["zeal"] = 3;
  file["logits_scaling"] = 8.0;  // Granite's, which transformers' Llama does not read either
  const std::vector<std::string> notes = read(file).notes;
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("config.json: the architecture llama takes no notice of: logits_scaling, zeal"),
            std::string::npos)
      << notes[0];
}

TEST(ConfigUnread, LayersThatSlideInAnArchitectureThatHasNoneAreNoted) {
  json file = config_of("llama");
  file["layer_types"] = std::vector<std::string>(6, "sliding_attention");
  file["sliding_window"] = 8;
  ASSERT_EQ(read(file).notes.size(), 1u);
  EXPECT_NE(read(file).notes[0].find("layer_types, sliding_window"), std::string::npos) << read(file).notes[0];
}

// As their makers write them.
TEST(ConfigUnread, NothingIsNotedOfUsualFieldsThatDoNotHold) {
  json qwen = config_of("qwen2");
  qwen.update({{"sliding_window", 131072}, {"use_sliding_window", false}, {"max_window_layers", 28}});
  EXPECT_EQ(read(qwen).notes, std::vector<std::string>());
  json phi = config_of("phi3");
  phi.update({{"original_max_position_embeddings", 4096},
              {"rope_scaling", nullptr},
              {"sliding_window", 2047},
              {"auto_map", {{"AutoConfig", "configuration_phi3.Phi3Config"}}},
              {"mlp_bias", false},
              {"lm_head_bias", false}});
  EXPECT_EQ(read(phi).notes, std::vector<std::string>());
  json smollm = config_of("llama");
  smollm.update({{"is_llama_config", true}, {"rope_interleaved", false}, {"rope_scaling", nullptr}});
  EXPECT_EQ(read(smollm).notes, std::vector<std::string>());
}

TEST(ConfigUnread, UnknownFieldsOfRopeAreNoted) {
  json file = config_of("llama");
  file["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}, {"beta_fast", 32}};
  EXPECT_TRUE(read(file).notes.empty());
  file["rope_scaling"]["zeal"] = true;
  ASSERT_EQ(read(file).notes.size(), 1u);
  EXPECT_NE(read(file).notes[0].find("config.json: rope_scaling: "), std::string::npos) << read(file).notes[0];
}

TEST(ConfigUnread, AttentionToTokensBehindIsRefused) {
  json file = config_of("llama");
  file["is_causal"] = true;
  EXPECT_TRUE(read(file).notes.empty());
  expect_refused_value("is_causal", false);
  expect_refused_value("is_causal", nullptr);  // false too, to transformers
}

TEST(ConfigUnread, WeightsInAnotherFormAreRefusedWhereverTheFileSaysSo) {
  expect_refused_value("quantization", {{"bits", 4}});
  expect_refused_value("compression_config", {{"format", "pack-quantized"}});
  json inner = config_of("llama");
  inner["quantization_config"] = {{"quant_method", "awq"}};
  json outer = {{"model_type", "llava"}, {"text_config", inner}};
  expect_refused(outer, "text_config");
}

}  // namespace
}  // namespace hayloft::runtime
