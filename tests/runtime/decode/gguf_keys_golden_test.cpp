// What the keys of a GGUF's architecture say, and what holds where they are missing, as llama.cpp has it:
// tests/golden/gguf/keys.json, recorded by scripts/make-gguf-key-goldens.py.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "gpu/make_backend.h"
#include "runtime/decode/session.h"
#include "tests/support/keyed_gguf.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime {
namespace {

using nlohmann::json;

const json& key_goldens() {
  static const json all =
      json::parse(std::ifstream(std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/gguf/keys.json"));
  return all;
}

class GgufKeys : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& architecture, const json& keys) const {
    return folder_.write("m.gguf", test::KeyedGguf(architecture, keys).image.bytes());
  }
  Model model(const std::string& architecture, const json& keys) const {
    return Model(write(architecture, keys), *backend_);
  }

  // Logarithms of the probabilities of what follows the tokens of the goldens.
  std::vector<double> log_probabilities(const Model& model) {
    Session session(model, arena_, {.cache = {.block_tokens = 16, .window = 8}});
    const auto tokens = key_goldens().at("tokens").get<std::vector<std::int32_t>>();
    session.append(std::span(tokens).first(tokens.size() - 1));
    const std::vector<float> logits = session.step(tokens.back());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    std::vector<double> out;
    for (const float logit : logits) out.push_back(logit - std::log(sum));
    return out;
  }

  test::TemporaryFolder folder_;
  offload::Topology topology_;
  offload::Threads threads_{2};
  std::unique_ptr<gpu::Backend> backend_ = gpu::make_cpu_backend(threads_);
  offload::Arena arena_{topology_, {.budget_bytes = 64 << 20}};
};

TEST_F(GgufKeys, GiveTheProbabilitiesOfLlamaCpp) {
  for (const auto& [name, golden] : key_goldens().at("cases").items()) {
    SCOPED_TRACE(name);
    const auto expected = golden.at("log_probabilities").get<std::vector<double>>();
    const std::vector<double> found = log_probabilities(model(golden.at("architecture"), golden.at("keys")));
    ASSERT_EQ(found.size(), expected.size());
    double largest = 0;
    for (std::size_t i = 0; i < found.size(); ++i) largest = std::max(largest, std::abs(found[i] - expected[i]));
    // Keys and values are f16 here, as in llama.cpp by default; a key that is read otherwise shows in the first digit.
    EXPECT_LT(largest, 2e-2);
  }
}

json keys_of(const char* name) {
  return key_goldens().at("cases").at(name).at("keys");
}

TEST_F(GgufKeys, LayersOfDifferentSizesAreRefusedByTheirNumber) {
  for (const char* key : {"attention.head_count", "attention.head_count_kv", "feed_forward_length"}) {
    json keys = keys_of("llama-lists");
    keys[key][2] = 2 * keys[key][2].get<int>();
    EXPECT_TRUE(test::refuses([&] { model("llama", keys); },
                              {"m.gguf", std::string("llama.") + key + " of layer 2", "layer 0", "not supported"}));
    keys[key] = json::array({keys[key][0], keys[key][0]});
    EXPECT_TRUE(test::refuses([&] { model("llama", keys); }, {"m.gguf", std::string("llama.") + key, "list of 4"}));
  }
}

TEST_F(GgufKeys, WhatNobodyReadsIsNotedInOneLine) {
  EXPECT_EQ(model("llama", keys_of("llama")).notes().size(), 0u);
  json keys = keys_of("llama");
  keys["attention.zeal"] = 3;
  keys["logit_scale"] = 2.0;
  keys["vocab_size"] = 96;
  keys["attention.max_alibi_bias"] = 0.0;
  const std::vector<std::string> notes = model("llama", keys).notes();
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes.front().find("m.gguf"), std::string::npos);
  EXPECT_NE(notes.front().find("llama takes no notice of: attention.zeal, logit_scale"), std::string::npos)
      << notes.front();
}

TEST_F(GgufKeys, AWindowThatLlamaCppDoesNotHaveIsNoted) {
  for (const char* name : {"llama", "granite"}) {
    json keys = keys_of(name);
    keys["attention.sliding_window"] = 8;
    const std::vector<std::string> notes = model(name, keys).notes();
    ASSERT_EQ(notes.size(), 1u) << name;
    EXPECT_NE(notes.front().find(std::string(name) + ".attention.sliding_window is 8"), std::string::npos);
  }
  EXPECT_EQ(model("gemma3", keys_of("gemma3")).notes().size(), 0u);
}

TEST_F(GgufKeys, WhatLlamaCppComputesOtherwiseByIsRefused) {
  const auto refused = [&](const char* golden, const char* key, const json& value) {
    json keys = keys_of(golden);
    keys[key] = value;
    const std::string architecture = key_goldens().at("cases").at(golden).at("architecture");
    return test::refuses([&] { model(architecture, keys); }, {"m.gguf", architecture + "." + key});
  };
  EXPECT_TRUE(refused("llama", "attention.causal", false));
  EXPECT_TRUE(refused("gemma3", "attention.key_length_swa", 8));
  EXPECT_TRUE(refused("gemma3", "rope.dimension_count_swa", 8));
  EXPECT_TRUE(refused("gemma3", "final_logit_softcapping", 30.0));
  EXPECT_TRUE(refused("phi3-longrope", "rope.scaling.factor", 4.0));
  EXPECT_TRUE(refused("granite", "deepstack_mapping", json::array({-1, 0, -1, -1})));
}

TEST_F(GgufKeys, WhatLlamaCppRequiresHasNoValueOfItsOwnHere) {
  const auto refused = [&](const char* golden, const char* key) {
    json keys = keys_of(golden);
    keys.erase(key);
    const std::string architecture = key_goldens().at("cases").at(golden).at("architecture");
    return test::refuses([&] { model(architecture, keys); }, {"m.gguf", "lack " + architecture + "." + key});
  };
  EXPECT_TRUE(refused("granite", "logit_scale"));
  EXPECT_TRUE(refused("phi3-longrope", "context_length"));
}

TEST_F(GgufKeys, LayersOfTheModelAreNoBlocksThatPredictFurtherTokens) {
  json keys = keys_of("llama");
  keys["nextn_predict_layers"] = 1;
  EXPECT_TRUE(test::refuses([&] { model("llama", keys); },
                            {"m.gguf", "llama.nextn_predict_layers is 1", "block 3 is a layer of the model"}));
}

TEST_F(GgufKeys, ShortFactorsWithoutLongOnesAreRefused) {
  test::GgufImage image = test::KeyedGguf("phi3", keys_of("phi3")).image;
  image.tensor("rope_factors_short.weight", {8}, 0, std::string(8 * 4, '\x40'));
  const auto file = folder_.write("m.gguf", image.bytes());
  EXPECT_TRUE(test::refuses([&] { Model(file, *backend_); },
                            {"m.gguf", "has rope_factors_short.weight and no rope_factors_long.weight"}));
}

}  // namespace
}  // namespace hayloft::runtime
