#include "runtime/checkpoint/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/config.h"
#include "runtime/checkpoint/fingerprint.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

// Tests what config.json and the user say of RoPE; the tables themselves are held to transformers by model_golden_test.
namespace hayloft::runtime {
namespace {

using nlohmann::json;
using test::refuses;

class RopeTest : public ::testing::Test {
 protected:
  // The configuration of a small model with some fields changed.
  ModelConfig config(const std::string& golden, const std::function<void(json&)>& change = {}) {
    const std::filesystem::path source =
        std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/models" / golden / "config.json";
    json fields = json::parse(std::ifstream(source));
    if (change) change(fields);
    folder_.write("config.json", fields.dump());
    return read_config(folder_.path());
  }

  test::TemporaryFolder folder_;
};

TEST_F(RopeTest, OverridesMakeWhatTheFileCouldHaveSaid) {
  const auto yarn = [](json& fields) {
    fields["rope_parameters"] = {{"rope_type", "yarn"}, {"rope_theta", 10000.0}, {"factor", 4.0}};
  };
  const ModelConfig written = config("llama", yarn);
  ModelConfig plain = config("llama");
  set_rope(plain, {.scaling = RopeScaling::yarn, .factor = 4});
  EXPECT_EQ(plain.global_table.inverse_frequency, written.global_table.inverse_frequency);
  EXPECT_EQ(plain.global_table.magnitude, written.global_table.magnitude);
  EXPECT_NEAR(plain.global_table.magnitude, 0.1 * std::log(4.0) + 1, 1e-6);
  EXPECT_EQ(plain.max_positions, 4 * 256);
  EXPECT_EQ(written.max_positions, 4 * 256);
}

TEST_F(RopeTest, AFactorAloneIsLinearAndABaseIsABase) {
  ModelConfig scaled = config("llama");
  const std::vector<float> plain = scaled.global_table.inverse_frequency;
  set_rope(scaled, {.scaling = {}, .factor = 4});
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(scaled.global_table.inverse_frequency[i], plain[i] / 4);
  EXPECT_EQ(scaled.max_positions, 4 * 256);
  ModelConfig based = config("llama");
  set_rope(based, {.scaling = {}, .base = 5e5});
  EXPECT_FLOAT_EQ(based.global_table.inverse_frequency[1], static_cast<float>(std::pow(5e5, -2.0 / 8)));
  ModelConfig none = config("llama-llama3");
  set_rope(none, {.scaling = RopeScaling::none});
  EXPECT_FLOAT_EQ(none.global_table.inverse_frequency.back(), static_cast<float>(std::pow(5e5, -14.0 / 16)));
}

TEST_F(RopeTest, OverridesThatWouldDoNothingAreRefused) {
  const auto refuses = [&](const char* model, const RopeOverrides& overrides,
                           std::initializer_list<std::string> parts) {
    ModelConfig made = config(model);
    return test::refuses([&] { set_rope(made, overrides); }, parts);
  };
  EXPECT_TRUE(refuses("llama", {.scaling = RopeScaling::none, .factor = 4}, {"--rope-scale 4", "none"}));
  EXPECT_TRUE(refuses("llama", {.scaling = RopeScaling::yarn}, {"--rope-scaling yarn", "by --rope-scale"}));
  EXPECT_TRUE(refuses("llama-llama3", {.scaling = RopeScaling::linear}, {"--rope-scaling linear", "by --rope-scale"}));
  EXPECT_TRUE(
      refuses("llama", {.scaling = {}, .original_positions = 64}, {"--yarn-orig-ctx 64", "--rope-scaling yarn"}));
  EXPECT_TRUE(
      refuses("llama", {.scaling = {}, .factor = 4, .original_positions = 64}, {"--yarn-orig-ctx 64", "linearly"}));
  EXPECT_TRUE(refuses("llama-llama3", {.scaling = RopeScaling::none, .original_positions = 64}, {"--yarn-orig-ctx"}));

  const auto yarn = [](nlohmann::json& fields) {
    fields["rope_parameters"] = {{"rope_type", "yarn"}, {"rope_theta", 10000.0}, {"factor", 4.0}};
  };
  for (const RopeOverrides& overrides :
       {RopeOverrides{.scaling = RopeScaling::yarn}, RopeOverrides{.scaling = {}, .original_positions = 64}}) {
    ModelConfig own = config("llama", yarn);
    set_rope(own, overrides);
    EXPECT_EQ(own.global_rope.factor, 4) << "the model's own";
  }
}

TEST_F(RopeTest, OverridesOutOfRangeAreRefused) {
  const auto refuses = [&](const RopeOverrides& overrides, const char* said) {
    ModelConfig made = config("llama");
    return test::refuses([&] { set_rope(made, overrides); }, {said});
  };
  for (const double wrong : {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(refuses({.scaling = {}, .factor = wrong}, "--rope-scale "));
    EXPECT_TRUE(refuses({.scaling = {}, .base = wrong}, "--rope-freq-base "));
  }
  EXPECT_TRUE(refuses({.scaling = {}, .original_positions = -1}, "--yarn-orig-ctx -1"));
}

TEST_F(RopeTest, LengthsDecideOfLongropeAndDynamic) {
  ModelConfig phi = config("phi3");  // made for 256 positions, trained on 48
  const std::vector<float> longer = phi.global_table.inverse_frequency;
  set_rope(phi, {}, 48);
  EXPECT_NE(phi.global_table.inverse_frequency, longer);
  set_rope(phi, {}, 49);
  EXPECT_EQ(phi.global_table.inverse_frequency, longer);
  EXPECT_EQ(longer.size(), 6u);  // half of 24 components are rotated

  ModelConfig dynamic = config("llama-dynamic");  // trained on 40, by 3
  EXPECT_EQ(dynamic.max_positions, 120);
  set_rope(dynamic, {}, 40);
  EXPECT_FLOAT_EQ(dynamic.global_table.inverse_frequency[1], static_cast<float>(std::pow(1e4, -2.0 / 24)));
  set_rope(dynamic, {}, 80);
  EXPECT_LT(dynamic.global_table.inverse_frequency[1], static_cast<float>(std::pow(1e4, -2.0 / 24)));
}

TEST_F(RopeTest, GemmasLayersHaveOneEach) {
  const ModelConfig gemma = config("gemma3");
  EXPECT_FLOAT_EQ(gemma.local_table.inverse_frequency[1], static_cast<float>(std::pow(5000.0, -2.0 / 24)));
  EXPECT_FLOAT_EQ(gemma.global_table.inverse_frequency[1], static_cast<float>(std::pow(1e6, -2.0 / 24) / 4));
  EXPECT_EQ(gemma.max_positions, 256);  // which counts the scaling in
  EXPECT_EQ(gemma.sliding_window, (std::vector<std::int64_t>{20, 20, 0, 20}));
}

// As Ministral3Attention of transformers asks for it, whatever the scaling of RoPE goes by.
TEST_F(RopeTest, QueriesOfMinistral3AreScaledByWhatTrainingHasSeen) {
  for (const char* type : {"yarn", "dynamic", "linear", "default"}) {
    const ModelConfig scaled = config("ministral3", [&](json& fields) {
      fields["rope_parameters"]["rope_type"] = type;
      fields["rope_parameters"]["original_max_position_embeddings"] = 24;
    });
    EXPECT_EQ(scaled.query_scale_positions, 24) << type;
  }
}

TEST_F(RopeTest, ATextConfigIsReadInItsPlace) {
  const ModelConfig plain = config("ministral3");
  const ModelConfig inner = config("ministral3", [](json& fields) {
    const json text = fields;
    fields = {{"model_type", "mistral3"}, {"text_config", text}};
  });
  EXPECT_EQ(inner.architecture, "ministral3");
  EXPECT_EQ(inner.global_table.inverse_frequency, plain.global_table.inverse_frequency);
}

TEST_F(RopeTest, WhatCannotBeIsRefusedByItsName) {
  const auto refused = [&](const char* golden, const std::function<void(json&)>& change,
                           std::initializer_list<std::string> parts) {
    return refuses([&] { config(golden, change); }, parts);
  };
  EXPECT_TRUE(refused("phi3", [](json& f) { f["rope_parameters"]["long_factor"] = {1.0}; },
                      {"rope_parameters", "long_factor", "6 numbers"}));
  EXPECT_TRUE(refused("phi3", [](json& f) { f["rope_parameters"]["short_factor"][2] = -1; }, {"short_factor", "-1"}));
  EXPECT_TRUE(refused("phi3", [](json& f) { f["rope_parameters"]["partial_rotary_factor"] = 0.05; },
                      {"partial_rotary_factor", "0.05"}));
  EXPECT_TRUE(refused("llama",
                      [](json& f) {
                        f["rope_parameters"] = {{"rope_type", "tower"}};
                      },
                      {"rope_type", "tower", "yarn"}));
  EXPECT_TRUE(refused("llama-dynamic", [](json& f) { f["rope_parameters"].erase("factor"); }, {"factor"}));
  EXPECT_TRUE(refused("gemma3", [](json& f) { f["final_logit_softcapping"] = 30.0; }, {"final_logit_softcapping"}));
  EXPECT_TRUE(refused("gemma3", [](json& f) { f["use_bidirectional_attention"] = true; }, {"use_bidirectional"}));
}

TEST_F(RopeTest, OverridesTellContextsApart) {
  const std::filesystem::path model = std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";
  const RopeOverrides yarn{.scaling = RopeScaling::yarn, .factor = 4};
  EXPECT_EQ(yarn.text(), "--rope-scaling yarn --rope-scale 4");
  EXPECT_EQ(fingerprint(model), fingerprint(model, RopeOverrides{}.text()));
  EXPECT_NE(fingerprint(model), fingerprint(model, yarn.text()));
}

}  // namespace
}  // namespace hayloft::runtime
