// What a model's makers recommend, read from its files and heeded: the texts of Hugging Face transformers, recorded by
// scripts/make-sampling-goldens.py.
#include "runtime/chat/sampling_defaults.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "gpu/make_backend.h"
#include "offload/error.h"
#include "runtime/decode/session.h"
#include "tests/support/gguf_image.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime {
namespace {

using nlohmann::json;
using test::GgufImage;
using test::TemporaryFolder;

const std::filesystem::path source_folder = HAYLOFT_SOURCE_DIR;

class GenerationConfig : public ::testing::Test {
 protected:
  SamplingDefaults read(const json& config) {
    folder.write("generation_config.json", config.dump());
    return sampling_defaults(folder.path());
  }
  std::string message(const json& config) {
    try {
      read(config);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }
  TemporaryFolder folder;
};

TEST_F(GenerationConfig, GivesTheTextsOfTransformers) {
  const std::filesystem::path folder_of_model = source_folder / "tests/golden/models/llama";
  offload::Threads threads(1);
  const std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  const Model model(folder_of_model, *backend);
  offload::Topology topology;
  offload::Arena arena(topology, {});
  const json recorded = json::parse(std::ifstream(source_folder / "tests/golden/sampling.json"));
  for (const json& golden : recorded.at("texts")) {
    SCOPED_TRACE(golden.at("config").dump());
    const auto prompt = golden.at("prompt").get<std::vector<std::int32_t>>();
    const auto expected = golden.at("tokens").get<std::vector<std::int32_t>>();
    SamplerOptions options = read(golden.at("config")).options;
    options.rules.end_tokens = golden.at("config").value("eos_token_id", std::vector<std::int32_t>{2});
    Sampler sampler(options);
    sampler.read(prompt);
    Session session(model, arena);
    session.append(std::span(prompt).first(prompt.size() - 1));
    std::vector<std::int32_t> tokens;
    for (std::int32_t token = prompt.back(); tokens.size() < expected.size();) {
      tokens.push_back(token = session.next(token, sampler));
    }
    EXPECT_EQ(tokens, expected);
  }
}

TEST_F(GenerationConfig, DrawsGreedilyByRulesUnlessItSaysToSample) {
  const SamplingDefaults greedy = read({{"temperature", 0.6}, {"top_p", 0.9}, {"repetition_penalty", 1.05}});
  EXPECT_TRUE(greedy.found);
  EXPECT_EQ(greedy.options.temperature, 0);
  EXPECT_EQ(greedy.options.top_p, 1);
  EXPECT_EQ(greedy.options.rules.repetition_penalty, 1.05f);
  const SamplingDefaults sampled = read({{"do_sample", true}, {"typical_p", 0.9}, {"eta_cutoff", 0.01}});
  EXPECT_EQ(sampled.options.temperature, 1);
  EXPECT_EQ(sampled.options.top_k, 50);
  EXPECT_EQ(sampled.options.typical_p, 0.9f);
  EXPECT_EQ(sampled.options.eta_cutoff, 0.01f);
}

TEST_F(GenerationConfig, IsSoughtInConfigJsonWhereItIsMissing) {
  EXPECT_FALSE(sampling_defaults(folder.path()).found);
  folder.write("config.json", R"({"model_type": "llama", "num_beams": 1, "repetition_penalty": 1.25, "top_k": 3})");
  const SamplingDefaults defaults = sampling_defaults(folder.path());
  EXPECT_TRUE(defaults.found);
  EXPECT_EQ(defaults.options.rules.repetition_penalty, 1.25f);
  EXPECT_EQ(defaults.options.temperature, 0);
  EXPECT_EQ(defaults.notes.size(), 0u);
  folder.write("generation_config.json", "{}");
  EXPECT_EQ(sampling_defaults(folder.path()).options.rules.repetition_penalty, 1);
}

TEST_F(GenerationConfig, RefusesByNameWhatWouldDrawOtherTokens) {
  const std::vector<std::pair<const char*, json>> fields = {{"num_beams", 4},
                                                            {"penalty_alpha", 0.6},
                                                            {"guidance_scale", 1.5},
                                                            {"sequence_bias", {{{5}, 1.5}}},
                                                            {"forced_eos_token_id", 2},
                                                            {"exponential_decay_length_penalty", {20, 1.1}},
                                                            {"stop_strings", {"."}},
                                                            {"token_healing", true},
                                                            {"top_h", 0.4},
                                                            {"encoder_repetition_penalty", 2.0},
                                                            {"encoder_no_repeat_ngram_size", 3},
                                                            {"watermarking_config", {{"bias", 2.5}}}};
  for (const auto& [name, value] : fields) {
    EXPECT_NE(message({{name, value}}).find(std::string("generation_config.json: ") + name), std::string::npos)
        << message({{name, value}});
  }
  const json off = {{"num_beams", 1},
                    {"penalty_alpha", 0.0},
                    {"guidance_scale", nullptr},
                    {"token_healing", false},
                    {"encoder_repetition_penalty", 1.0},
                    {"encoder_no_repeat_ngram_size", 0}};
  EXPECT_EQ(message(off), "accepted");
}

TEST_F(GenerationConfig, RefusesByNameWhatIsOutOfRange) {
  for (const json& wrong :
       {json{{"repetition_penalty", 0}}, json{{"repetition_penalty", "high"}}, json{{"no_repeat_ngram_size", -1}},
        json{{"suppress_tokens", {1, -2}}}, json{{"begin_suppress_tokens", 3}}, json{{"bad_words_ids", {1}}},
        json{{"bad_words_ids", json::array({json::array()})}}, json{{"min_new_tokens", 1.5}},
        json{{"do_sample", true}, {"typical_p", 2}}}) {
    EXPECT_NE(message(wrong).find(wrong.rbegin().key()), std::string::npos) << wrong << ": " << message(wrong);
  }
}

TEST_F(GenerationConfig, NotesWhatNobodyKnowsAndNothingElse) {
  EXPECT_EQ(read({{"max_length", 20}, {"transformers_version", "5.0"}, {"pad_token_id", 0}}).notes.size(), 0u);
  const std::vector<std::string> notes = read({{"chat_format", "chatml"}, {"zeal", 3}, {"unset", nullptr}}).notes;
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes.front().find("chat_format, zeal"), std::string::npos) << notes.front();
}

SamplingDefaults of_gguf(const GgufImage& image) {
  const TemporaryFolder folder;
  return sampling_defaults(folder.write("m.gguf", image.bytes()));
}

GgufImage some_gguf() {
  GgufImage image;
  image.set("general.architecture", "llama");
  return image;
}

TEST(GgufSampling, PenaltiesAreOfTheNewest64TokensUnlessItSaysMore) {
  EXPECT_FALSE(of_gguf(some_gguf()).found);
  GgufImage image = some_gguf();
  image.set("general.sampling.penalty_repeat", 1.1f);
  const SamplingDefaults defaults = of_gguf(image);
  EXPECT_TRUE(defaults.found);
  EXPECT_EQ(defaults.options.temperature, 1);
  EXPECT_EQ(defaults.options.rules.repetition_penalty, 1.1f);
  EXPECT_EQ(defaults.options.rules.repetition_window, 64);
  GgufImage all = image, none = image;
  all.set("general.sampling.penalty_last_n", -1);
  none.set("general.sampling.penalty_last_n", 0);
  EXPECT_EQ(of_gguf(all).options.rules.repetition_window, 0);
  EXPECT_EQ(of_gguf(none).options.rules.repetition_penalty, 1);
}

TEST(GgufSampling, TokensThatTheVocabularySuppressesAreNeverDrawn) {
  GgufImage image = some_gguf();
  image.set("tokenizer.ggml.suppress_tokens", std::vector<std::int32_t>{4, 7});
  const SamplingDefaults alone = of_gguf(image);
  EXPECT_TRUE(alone.found);
  EXPECT_EQ(alone.options.rules.suppress_tokens, (std::vector<std::int32_t>{4, 7}));
  EXPECT_EQ(alone.options.temperature, 0);
  EXPECT_EQ(alone.options.rules.repetition_penalty, 1);
  image.set("general.sampling.temp", 1);
  EXPECT_EQ(of_gguf(image).options.temperature, 1);
  EXPECT_EQ(of_gguf(image).options.rules.suppress_tokens, (std::vector<std::int32_t>{4, 7}));
}

TEST(GgufSampling, SamplersThatAreNotHereAreRefusedByNameAndUnknownKeysNoted) {
  GgufImage off = some_gguf();
  off.set("general.sampling.mirostat", 0);
  off.set("general.sampling.mirostat_tau", 5.0f);
  EXPECT_EQ(of_gguf(off).notes.size(), 0u);
  GgufImage mirostat = some_gguf(), xtc = some_gguf(), unknown = some_gguf();
  mirostat.set("general.sampling.mirostat", 2);
  EXPECT_TRUE(test::refuses([&] { of_gguf(mirostat); }, {"m.gguf", "general.sampling.mirostat"}));
  xtc.set("general.sampling.xtc_probability", 0.5f);
  EXPECT_TRUE(test::refuses([&] { of_gguf(xtc); }, {"m.gguf", "general.sampling.xtc_probability"}));
  unknown.set("general.sampling.zeal", 0.5f);
  ASSERT_EQ(of_gguf(unknown).notes.size(), 1u);
  EXPECT_NE(of_gguf(unknown).notes.front().find("general.sampling.zeal"), std::string::npos);
}

}  // namespace
}  // namespace hayloft::runtime
