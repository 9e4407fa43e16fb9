// Reads what the keys of a GGUF's architecture say where llama.cpp and transformers differ, or nobody would compute it.
#include "runtime/checkpoint/gguf/config.h"

#include <gtest/gtest.h>

#include <cstring>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/rope.h"
#include "runtime/checkpoint/weights/weights.h"
#include "tests/support/gguf_image.h"
#include "tests/support/keyed_gguf.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime::gguf {
namespace {

using Ids = std::vector<std::int32_t>;

class GgufConfig : public ::testing::Test {
 protected:
  // Makes a model of two layers, without all tensors but the one that says how many tokens there are.
  static test::GgufImage model(const std::string& architecture, int feed_forward_length = 32) {
    test::GgufImage image;
    image.set("general.architecture", architecture);
    const auto set = [&](const char* name, auto value) { image.set(architecture + "." + name, value); };
    set("block_count", 2);
    set("context_length", 256);
    set("embedding_length", 64);
    set("feed_forward_length", feed_forward_length);
    set("attention.head_count", 4);
    set("attention.layer_norm_rms_epsilon", 1e-5f);
    if (architecture.ends_with("moe") || architecture == "gpt-oss") {
      set("expert_count", 4);
      set("expert_used_count", 2);
      if (architecture == "gpt-oss") set("expert_feed_forward_length", 32);
      if (architecture == "gpt-oss") set("attention.sliding_window", 8);
    }
    if (architecture.starts_with("granite")) set("logit_scale", 4.0f);
    if (architecture.starts_with("qwen35")) {
      set("full_attention_interval", 2);
      set("ssm.conv_kernel", 4);
      set("ssm.state_size", 16);
      set("ssm.group_count", 2);
      set("ssm.time_step_rank", 4);
      set("ssm.inner_size", 64);
    }
    image.set("tokenizer.ggml.model", "gpt2");
    image.set("tokenizer.ggml.pre", "gpt-2");
    image.set("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"});
    image.set("tokenizer.ggml.merges", std::vector<std::string>{});
    image.tensor("token_embd.weight", {64, 2}, 0, std::string(std::size_t{64} * 2 * 4, '\0'));
    return image;
  }
  static test::GgufImage with_yarn(const std::string& architecture) {
    test::GgufImage image = model(architecture);
    image.set(architecture + ".rope.scaling.type", "yarn");
    image.set(architecture + ".rope.scaling.factor", 8.0f);
    return image;
  }

  static float magnitude_of(const ModelConfig& config) { return rope_table(config.global_rope, 256).magnitude; }

  ModelConfig read(const test::GgufImage& image) const {
    return read_config(File(folder_.write("m.gguf", image.bytes())));
  }
  testing::AssertionResult refuses(const test::GgufImage& image, std::initializer_list<std::string> parts) const {
    return test::refuses([&] { read(image); }, parts);
  }

  test::TemporaryFolder folder_;
};

TEST_F(GgufConfig, AFileThatIsNoModelIsRefusedByItsType) {
  for (const char* type : {"adapter", "mmproj", "imatrix"}) {
    test::GgufImage image = model("llama");
    image.set("general.type", type);
    EXPECT_TRUE(refuses(image, {"m.gguf", std::string("general.type is '") + type, "must be model"}));
  }
  test::GgufImage image = model("llama");
  image.set("general.type", "model");
  EXPECT_TRUE(read(image).notes.empty());
}

TEST_F(GgufConfig, ASwitchOfRopeThatIsNotSureToBeOneIsRefused) {
  const auto with = [](const char* architecture, bool finetuned) {
    test::GgufImage image = model(architecture);
    image.set(std::string(architecture) + ".rope.scaling.finetuned", finetuned);
    return image;
  };
  EXPECT_EQ(read(with("granite", false)).rope, std::vector<bool>(2, false));
  EXPECT_EQ(read(with("granitemoe", true)).rope, std::vector<bool>(2, true));
  EXPECT_TRUE(refuses(with("granitemoe", false), {"m.gguf", "granitemoe.rope.scaling.finetuned is false", "absent"}));
}

// llama.cpp turns the sliding layers of gpt-oss by a base and a factor of their own.
TEST_F(GgufConfig, ARopeOfGptOssThatSlidingLayersDoNotShareIsRefused) {
  EXPECT_TRUE(read(model("gpt-oss")).notes.empty());
  test::GgufImage image = model("gpt-oss");
  image.set("gpt-oss.rope.freq_base_swa", 50.0f);
  EXPECT_TRUE(refuses(image, {"m.gguf", "gpt-oss.rope.freq_base_swa is 50", "must be 10000"}));
  image = model("gpt-oss");
  image.set("gpt-oss.rope.freq_base_swa", 1e4f);
  EXPECT_TRUE(read(image).notes.empty());
  image = model("gpt-oss");
  image.set("gpt-oss.rope.scaling.type", "none");
  image.set("gpt-oss.rope.scaling.factor", 4.0f);
  EXPECT_TRUE(refuses(image, {"m.gguf", "gpt-oss.rope.scaling.factor is 4", "1 or absent"}));
}

// Rows in pairs are put in order by whole heads.
TEST_F(GgufConfig, RopeOfAPartOfAHeadIsRefusedWhereRowsAreInPairs) {
  const auto with = [](const char* architecture, int components) {
    test::GgufImage image = model(architecture);
    image.set(std::string(architecture) + ".rope.dimension_count", components);
    return image;
  };
  for (const char* architecture : {"llama", "mistral3", "granite", "smollm3"}) {
    EXPECT_EQ(read(with(architecture, 16)).global_rope.dimensions, 16);
    EXPECT_TRUE(refuses(with(architecture, 8), {"m.gguf", "rope.dimension_count is 8", "must be 16"})) << architecture;
  }
  EXPECT_EQ(read(with("phi3", 8)).global_rope.dimensions, 8);
}

TEST_F(GgufConfig, YarnsKeysThatLlamaCppPassesOverAreNoted) {
  EXPECT_TRUE(read(with_yarn("qwen3")).notes.empty());
  test::GgufImage image = with_yarn("qwen3");
  image.set("qwen3.rope.scaling.yarn_beta_fast", 32.0f);
  image.set("qwen3.rope.scaling.yarn_beta_slow", 1.0f);
  EXPECT_TRUE(read(image).notes.empty());
  image = with_yarn("qwen3");
  image.set("qwen3.rope.scaling.yarn_beta_fast", 4.0f);
  const std::vector<std::string> notes = read(image).notes;
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("m.gguf: yarn_beta_fast of qwen3.rope.scaling count"), std::string::npos) << notes[0];
  image = with_yarn("mistral3");
  image.set("mistral3.rope.scaling.yarn_beta_fast", 4.0f);
  EXPECT_TRUE(read(image).notes.empty());
}

// As in DeepSeek's Qwen 3 of 8B, whose attn_factor no program takes for the magnitude.
TEST_F(GgufConfig, YarnsOwnMagnitudeStaysBesideAFactorOfTwoMeanings) {
  test::GgufImage image = with_yarn("qwen3");
  image.set("qwen3.rope.scaling.yarn_attn_factor", 0.878f);
  const ModelConfig config = read(image);
  EXPECT_EQ(magnitude_of(config), magnitude_of(read(with_yarn("qwen3"))));
  ASSERT_EQ(config.notes.size(), 1u);
  EXPECT_NE(config.notes[0].find("yarn_attn_factor is passed over"), std::string::npos) << config.notes[0];
}

TEST_F(GgufConfig, OfOlmosYarnTheFactorIsTheMagnitude) {
  test::GgufImage image = with_yarn("olmo2");
  image.set("olmo2.rope.scaling.attn_factor", 1.2079f);
  const ModelConfig config = read(image);
  EXPECT_FLOAT_EQ(magnitude_of(config), 1.2079f);
  ASSERT_EQ(config.notes.size(), 1u);
  EXPECT_NE(config.notes[0].find("olmo2.rope.scaling.attn_factor is the whole magnitude"), std::string::npos)
      << config.notes[0];
}

TEST_F(GgufConfig, SectionsThatLeavePairsOutAreNoted) {
  const auto notes = [&](const Ids& sections) {
    test::GgufImage image = model("qwen35");
    image.set("qwen35.rope.dimension_count", 8);
    image.set("qwen35.rope.dimension_sections", sections);
    return read(image).notes;
  };
  for (const Ids& sections : {Ids{2, 1, 1, 0}, Ids{1, 1, 1, 0}, Ids{11, 11, 10, 0}})
    EXPECT_TRUE(notes(sections).empty());
  for (const auto& [sections, unturned] : {std::pair{Ids{4, 0, 0, 0}, "2 of 4"}, std::pair{Ids{1, 1, 1, 1}, "1 of 4"},
                                           std::pair{Ids{0, 0, 0, 0}, "4 of 4"}}) {
    const std::vector<std::string> found = notes(sections);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_NE(found[0].find("m.gguf: qwen35.rope.dimension_sections holds no section for " + std::string(unturned)),
              std::string::npos)
        << found[0];
  }
  EXPECT_TRUE(test::refuses([&] { notes({2, 1, 1}); }, {"qwen35.rope.dimension_sections", "a list of 4"}));
  EXPECT_TRUE(test::refuses([&] { notes({5, -1, 0, 0}); }, {"qwen35.rope.dimension_sections", "from 0 to 16"}));
}

TEST_F(GgufConfig, ExpertsWhoseWidthNoKeySaysAreTogetherAsWideAsAnMlp) {
  for (const std::string name : {"qwen2moe", "qwen3moe", "qwen35moe"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(read(model(name)).experts.inner, 16);
    test::GgufImage image = model(name);
    image.set(name + ".expert_feed_forward_length", 0);
    EXPECT_EQ(read(image).experts.inner, 16);
    image = model(name);
    image.set(name + ".expert_feed_forward_length", 24);
    EXPECT_EQ(read(image).experts.inner, 24);
  }
  EXPECT_EQ(read(model("granitemoe")).experts.inner, 32);
}

TEST_F(GgufConfig, AnExpertOfAllTokensWhoseWidthNoKeySaysIsAsWideAsAnMlp) {
  for (const std::string name : {"qwen2moe", "qwen35moe"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(read(model(name)).experts.shared_inner, 0);
    test::GgufImage image = model(name);
    image.tensor("blk.0.ffn_gate_shexp.weight", {64, 32}, 0, std::string(std::size_t{64} * 32 * 4, '\0'));
    EXPECT_EQ(read(image).experts.shared_inner, 32);
    image.set(name + ".expert_shared_feed_forward_length", 48);
    EXPECT_EQ(read(image).experts.shared_inner, 48);
  }
}

TEST_F(GgufConfig, ExpertsTooManyForTheWidthOfAnMlpAreRefused) {
  test::GgufImage image = model("qwen3moe", 1);
  EXPECT_TRUE(refuses(image, {"m.gguf", "qwen3moe.feed_forward_length is 1", "no expert_feed_forward_length"}));
}

TEST_F(GgufConfig, AMissingMatrixOfAnExpertIsNamedAsTheFileWouldNameIt) {
  const auto checkpoint = Checkpoint::open(folder_.write("m.gguf", model("gpt-oss").bytes()));
  const std::string expert = "model.layers.1.mlp.experts.2.";
  EXPECT_TRUE(test::refuses([&] { checkpoint->at(expert + "gate_proj.bias", {32}); },
                            {"m.gguf", "has no tensor blk.1.ffn_gate_exps.bias"}));
  EXPECT_TRUE(test::refuses(
      [&] {
        checkpoint->at(expert + "down_proj.weight", {64, 32});
      },
      {"m.gguf", "has no tensor blk.1.ffn_down_exps.weight"}));
}

TEST_F(GgufConfig, ATensorOfNoLayerIsRefusedWithTheKeysThatSayWhichThereAre) {
  test::KeyedGguf model("llama", {{"block_count", 1},
                                  {"embedding_length", 64},
                                  {"feed_forward_length", 32},
                                  {"attention.head_count", 4},
                                  {"attention.head_count_kv", 4},
                                  {"attention.layer_norm_rms_epsilon", 1e-5}});
  model.image.tensor("blk.1.attn_norm.weight", {64}, 0, std::string(std::size_t{64} * 4, '\0'));
  const auto checkpoint = Checkpoint::open(folder_.write("m.gguf", model.image.bytes()));
  EXPECT_TRUE(test::refuses([&] { weight_sizes(*checkpoint); },
                            {"m.gguf", "blk.1.attn_norm.weight", "general.architecture", "block_count"}));
}

TEST_F(GgufConfig, AWindowOfAHybridIsRefusedByItsKey) {
  test::GgufImage image = model("qwen35");
  image.set("qwen35.attention.sliding_window", 8);
  EXPECT_TRUE(refuses(image, {"m.gguf", "qwen35.attention.sliding_window is 8", "0 or absent"}));
}

TEST_F(GgufConfig, AHybridAllOfWhoseLayersAttendNamesItsNormsAsHybridsDo) {
  test::GgufImage image = model("qwen35");
  std::string bytes = image.bytes();
  const std::string key = "qwen35.full_attention_interval";
  const std::int32_t every = 1;
  std::memcpy(bytes.data() + bytes.find(key) + key.size() + 4, &every, sizeof every);
  const std::string norm = "blk.1.post_attention_norm.weight";
  const auto file = folder_.write("m.gguf", bytes);
  const auto checkpoint = Checkpoint::open(file);
  EXPECT_EQ(checkpoint->config().count(LayerKind::recurrent), 0);
  EXPECT_TRUE(test::refuses([&] { checkpoint->at("model.layers.1.post_attention_layernorm.weight", {64}); },
                            {"m.gguf", "has no tensor " + norm}));
}

}  // namespace
}  // namespace hayloft::runtime::gguf
