// The small checkpoints of tests/golden/models, turned into GGUF files: they compute what the folders compute.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <span>

#include "gpu/make_backend.h"
#include "runtime/checkpoint/gguf/parse.h"
#include "runtime/checkpoint/weights/weights.h"
#include "runtime/decode/session.h"
#include "tests/support/gguf_from_folder.h"
#include "tests/support/golden_models.h"
#include "tests/support/parameter_name.h"
#include "tests/support/real_models.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime {
namespace {

class GgufModel : public ::testing::TestWithParam<const char*> {
 protected:
  std::vector<float> logits(const std::filesystem::path& path) {
    const Model model(path, *backend_);
    Session session(model, arena_, {.cache = {.block_tokens = 16, .window = 8}});
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < 60; ++i) tokens.push_back((i * 37 + 11) % model.config().vocab_size);
    return session.score(tokens);
  }

  test::TemporaryFolder folder_;
  offload::Topology topology_;
  offload::Threads threads_{2};
  std::unique_ptr<gpu::Backend> backend_ = gpu::make_cpu_backend(threads_);
  offload::Arena arena_{topology_, {.budget_bytes = 64 << 20}};
};

TEST_P(GgufModel, ComputesWhatTheFolderComputes) {
  const auto file = folder_.write("m.gguf", test::GgufFromFolder(goldens / GetParam()).image.bytes());
  const std::vector<float> expected = logits(goldens / GetParam());
  const std::vector<float> got = logits(file);
  ASSERT_EQ(got.size(), expected.size());
  // To the bit, but for divided frequencies, which may be off by one rounding, which at position 60 turns a component
  // by at most 60 * 2^-23, and for layers of gated delta rules, whose heads are added in another order and whose decays
  // have been through a logarithm.
  const std::string name = GetParam();
  const bool rounded = name == "llama-llama3" || name.starts_with("qwen3_5");
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (rounded) {
      ASSERT_NEAR(got[i], expected[i], name[0] == 'q' ? 1e-4 : 2e-3) << i;
    } else {
      ASSERT_EQ(got[i], expected[i]) << i;
    }
  }
}

TEST_P(GgufModel, TakesTheBytesThatItsHeadersSay) {
  const auto file = folder_.write("m.gguf", test::GgufFromFolder(goldens / GetParam()).image.bytes());
  EXPECT_EQ(weight_sizes(*Checkpoint::open(file)).bytes, Model(file, *backend_).weight_bytes());
}

INSTANTIATE_TEST_SUITE_P(Architectures, GgufModel,
                         ::testing::Values("llama", "llama-llama3", "qwen2", "qwen2-yarn", "qwen3", "gemma3-older",
                                           "phi3", "phi3-short", "ministral3", "granite", "olmo2", "qwen3_5",
                                           "qwen3_5-listed", "qwen2_moe", "qwen3_moe", "mixtral", "olmoe", "granitemoe",
                                           "qwen3_5_moe", "gpt_oss-mxfp4", "gemma4", "gemma4-moe"),
                         test::by_value);

class GgufEnds : public GgufModel {};

TEST_F(GgufEnds, OfATurnAreNotThoseOfItsMessages) {
  const auto ends = [&](const char* last) {
    test::GgufImage image;
    image.set("general.architecture", "gpt-oss");
    for (const char* name : {"block_count", "attention.head_count", "attention.head_count_kv", "expert_count",
                             "expert_used_count", "expert_feed_forward_length"}) {
      image.set(std::string("gpt-oss.") + name, 4);
    }
    image.set("gpt-oss.embedding_length", 64);
    image.set("gpt-oss.context_length", 4096);
    image.set("gpt-oss.attention.sliding_window", 128);
    image.set("gpt-oss.attention.layer_norm_rms_epsilon", 1e-6f);
    image.set("tokenizer.ggml.model", "gpt2");
    image.set("tokenizer.ggml.tokens", std::vector<std::string>{"a", "<|end|>", "<|return|>", last});
    image.set("tokenizer.ggml.token_type", std::vector<std::int32_t>{1, 3, 3, 3});
    image.set("tokenizer.ggml.eos_token_id", std::uint32_t{2});
    image.set("tokenizer.ggml.eot_token_id", std::uint32_t{1});
    image.tensor("token_embd.weight", {64, 4}, 0, std::string(4 * 64 * 4, 0));
    return Checkpoint::open(folder_.write("m.gguf", image.bytes()))->config().eos_tokens;
  };
  EXPECT_EQ(ends("<|call|>"), (std::vector<std::int32_t>{2, 3}));
  EXPECT_EQ(ends("b"), (std::vector<std::int32_t>{1, 2}));
}

class RealGgufModel : public GgufModel {};

// No copy of a quantised matrix: norms alone are wider in memory than in the file.
TEST_F(RealGgufModel, RealModelTakesAboutTheBytesOfItsFile) {
  const std::filesystem::path file = test::real_model("smollm2");
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "needs scripts/models smollm2";
  const Model model(file, *backend_);
  EXPECT_LE(static_cast<double>(model.weight_bytes()), 1.01 * static_cast<double>(std::filesystem::file_size(file)));
}

class GgufModelRefusal : public GgufModel {};

TEST_F(GgufModelRefusal, NamesTheFileAndWhatIsWrong) {
  const auto refused = [&](const test::GgufImage& image, std::initializer_list<std::string> parts) {
    const auto file = folder_.write("m.gguf", image.bytes());
    return test::refuses([&] { Model model(file, *backend_); }, parts);
  };
  test::GgufImage image;
  EXPECT_TRUE(refused(image, {"m.gguf", "general.architecture"}));
  image.set("general.architecture", "rwkv7");
  EXPECT_TRUE(refused(image, {"m.gguf", "rwkv7", "one of llama, mistral3"}));
  image = test::GgufFromFolder(goldens / "llama").image;
  image.set("llama.rope.scaling.type", "tower");
  EXPECT_TRUE(refused(image, {"llama.rope.scaling.type", "'tower'"}));
  image = test::GgufFromFolder(goldens / "qwen3").image;
  image.set("qwen3.expert_count", 8);
  EXPECT_TRUE(refused(image, {"qwen3.expert_count", "8"}));
  image = test::GgufFromFolder(goldens / "llama").image;
  image.set("llama.expert_count", 8);
  EXPECT_TRUE(refused(image, {"llama.expert_used_count"}));
}

TEST_F(GgufModelRefusal, OfAHybridNamesTheFileAndWhatIsWrong) {
  const auto refused = [&](const char* key, std::uint32_t value, std::initializer_list<std::string> parts) {
    std::string bytes = test::GgufFromFolder(goldens / "qwen3_5").image.bytes();
    const std::string name = std::string("qwen35.") + key;
    const std::size_t at = bytes.find(name);
    EXPECT_NE(at, std::string::npos);
    std::memcpy(bytes.data() + at + name.size() + 4, &value, sizeof value);
    const auto file = folder_.write("m.gguf", bytes);
    return test::refuses([&] { Model model(file, *backend_); }, parts);
  };
  EXPECT_TRUE(refused("ssm.group_count", 3, {"m.gguf", "qwen35.ssm.time_step_rank is 4", "a multiple of", "3"}));
  EXPECT_TRUE(refused("ssm.inner_size", 63, {"m.gguf", "qwen35.ssm.inner_size is 63", "a multiple of", "4"}));
  EXPECT_TRUE(refused("ssm.state_size", 512, {"qwen35.ssm.state_size is 512", "from 1 to 256"}));
  EXPECT_TRUE(refused("full_attention_interval", 5, {"m.gguf", "none of 4 layers attends"}));
  EXPECT_TRUE(refused("nextn_predict_layers", 0, {"m.gguf", "has no tensor blk.4."}));
  EXPECT_TRUE(refused("nextn_predict_layers", 5, {"qwen35.nextn_predict_layers is 5", "from 0 to 4"}));
}

TEST_F(GgufModelRefusal, NamesRoutersThatAreNotThoseOfTheArchitecture) {
  const auto refused = [&](const char* key, auto value, const char* expected) {
    test::GgufImage image = test::GgufFromFolder(goldens / "qwen3_moe").image;
    image.set(std::string("qwen3moe.") + key, value);
    const auto file = folder_.write("m.gguf", image.bytes());
    return test::refuses([&] { Model model(file, *backend_); }, {"m.gguf", key, expected});
  };
  EXPECT_TRUE(refused("expert_weights_scale", 2.5f, "1 or absent"));
  EXPECT_TRUE(refused("expert_gating_func", 2, "softmax"));
  EXPECT_TRUE(refused("expert_group_count", 4, "1 or absent"));
  EXPECT_TRUE(refused("leading_dense_block_count", 1, "0 or absent"));
  EXPECT_TRUE(refused("expert_shared_feed_forward_length", 24, "0 or absent"));
  EXPECT_TRUE(refused("expert_weights_norm", false, "true or absent"));
}

TEST_F(GgufModelRefusal, NamesADecayThatGrows) {
  std::string bytes = test::GgufFromFolder(goldens / "qwen3_5").image.bytes();
  const runtime::gguf::Parsed parsed = runtime::gguf::parse(std::as_bytes(std::span(bytes)), "m.gguf");
  const auto offset = reinterpret_cast<const char*>(parsed.tensors.at("blk.1.ssm_a").data.data()) - bytes.data();
  const float growth = 0.5f;
  std::memcpy(bytes.data() + offset, &growth, sizeof growth);
  const auto file = folder_.write("m.gguf", bytes);
  EXPECT_TRUE(test::refuses([&] { Model model(file, *backend_); }, {"m.gguf", "layers.1", "0.5", "below zero"}));
}

// A gate of infinity is wide open or shut, so that what it lets through is a number.
TEST_F(GgufModelRefusal, NamesAGateThatIsNotFinite) {
  for (const char* gate : {"ssm_alpha", "ssm_beta"}) {
    std::string bytes = test::GgufFromFolder(goldens / "qwen3_5").image.bytes();
    const runtime::gguf::Parsed parsed = runtime::gguf::parse(std::as_bytes(std::span(bytes)), "m.gguf");
    const runtime::gguf::Tensor& tensor = parsed.tensors.at(std::string("blk.1.") + gate + ".weight");
    ASSERT_EQ(tensor.type, runtime::gguf::TensorType::f16);
    constexpr std::uint16_t infinity = 0x7C00;
    std::memcpy(bytes.data() + (reinterpret_cast<const char*>(tensor.data.data()) - bytes.data()), &infinity,
                sizeof infinity);
    const auto file = folder_.write("m.gguf", bytes);
    EXPECT_TRUE(test::refuses([&] { Model model(file, *backend_); }, {"m.gguf", "layers.1", "holds inf", "damaged"}))
        << gate;
  }
}

TEST_F(GgufModelRefusal, NamesASinkThatIsNotFinite) {
  std::string bytes = test::GgufFromFolder(goldens / "gpt_oss-mxfp4").image.bytes();
  const runtime::gguf::Parsed parsed = runtime::gguf::parse(std::as_bytes(std::span(bytes)), "m.gguf");
  const auto offset =
      reinterpret_cast<const char*>(parsed.tensors.at("blk.1.attn_sinks.weight").data.data()) - bytes.data();
  const float infinity = INFINITY;
  std::memcpy(bytes.data() + offset, &infinity, sizeof infinity);
  const auto file = folder_.write("m.gguf", bytes);
  EXPECT_TRUE(test::refuses([&] { Model model(file, *backend_); }, {"m.gguf", "layers.1", "sinks", "inf"}));
}

TEST_F(GgufModelRefusal, ARouterThatIsNotANumberGivesNoAnswer) {
  const auto with = [&](const char* golden, const char* tensor, std::uint16_t value) {
    std::string bytes = test::GgufFromFolder(goldens / golden).image.bytes();
    const runtime::gguf::Parsed parsed = runtime::gguf::parse(std::as_bytes(std::span(bytes)), "m.gguf");
    const runtime::gguf::Tensor& router = parsed.tensors.at(tensor);
    EXPECT_EQ(router.type, runtime::gguf::TensorType::bf16);
    const auto offset = reinterpret_cast<const char*>(router.data.data()) - bytes.data();
    std::memcpy(bytes.data() + offset, &value, sizeof value);
    const auto file = folder_.write("m.gguf", bytes);
    return test::refuses([&] { logits(file); }, {"NaN or infinity in layer 1"});
  };
  constexpr std::uint16_t nan = 0x7FC0, infinity = 0x7F80;
  EXPECT_TRUE(with("mixtral", "blk.1.ffn_gate_inp.weight", nan));
  EXPECT_TRUE(with("mixtral", "blk.1.ffn_gate_inp.weight", infinity));
  EXPECT_TRUE(with("qwen2_moe", "blk.1.ffn_gate_inp_shexp.weight", infinity));
}

TEST_F(GgufModelRefusal, NamesAWindowThatIsMissing) {
  std::string bytes = test::GgufFromFolder(goldens / "gpt_oss-mxfp4").image.bytes();
  const std::size_t key = bytes.find("attention.sliding_window");
  ASSERT_NE(key, std::string::npos);
  bytes[key] = 'A';
  const auto file = folder_.write("m.gguf", bytes);
  EXPECT_TRUE(
      test::refuses([&] { Model model(file, *backend_); }, {"m.gguf", "lack gpt-oss.attention.sliding_window"}));
}

TEST_F(GgufModelRefusal, WhatPredictsSeveralTokensIsLeftOutAndSaid) {
  const auto file = folder_.write("m.gguf", test::GgufFromFolder(goldens / "qwen3_5").image.bytes());
  const Model model(file, *backend_);
  ASSERT_EQ(model.skipped().size(), 1U);
  EXPECT_NE(model.skipped().front().find("m.gguf: the 2 tensors of blk.4 are left out"), std::string::npos)
      << model.skipped().front();
}

TEST_F(GgufModelRefusal, NamesAMissingTensor) {
  test::GgufImage image = test::GgufFromFolder(goldens / "qwen3").image;
  std::string bytes = image.bytes();
  const std::size_t name = bytes.find("blk.1.ffn_up.weight");
  ASSERT_NE(name, std::string::npos);
  bytes[name + 4] = '7';
  const auto file = folder_.write("m.gguf", bytes);
  EXPECT_TRUE(test::refuses([&] { Model model(file, *backend_); }, {"m.gguf", "has no tensor blk.1.ffn_up.weight"}));
}

}  // namespace
}  // namespace hayloft::runtime
