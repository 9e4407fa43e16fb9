#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "runtime/checkpoint/checkpoint.h"
#include "tests/support/golden_models.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

// Experts of gpt_oss in files that are not as they should be; what the right ones compute is that of transformers
// (tests/runtime/decode/model_golden_test.cpp).
namespace hayloft::runtime {
namespace {

class AlternatingExperts : public ::testing::Test {
 protected:
  // The checkpoint of that name, in which all of `from` in the weights' file has become `to`, as long.
  std::unique_ptr<Checkpoint> changed(const char* name, const std::string& from, const std::string& to) {
    std::filesystem::copy_file(goldens / name / "config.json", folder_ / "config.json",
                               std::filesystem::copy_options::overwrite_existing);
    std::ifstream file(goldens / name / "model.safetensors", std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(file), {}};
    for (std::size_t at = bytes.find(from); at != std::string::npos; at = bytes.find(from, at + 1)) {
      bytes.replace(at, from.size(), to);
    }
    folder_.write("model.safetensors", bytes);
    return Checkpoint::open(folder_.path());
  }

  test::TemporaryFolder folder_;
};

constexpr const char* gate = "model.layers.1.mlp.experts.3.gate_proj.weight";

TEST_F(AlternatingExperts, AreOfTheirOwnShapeAndType) {
  const auto packed = changed("gpt_oss-mxfp4", "none of it", "none of it");
  const CheckpointTensor tensor = packed->at(gate, {96, 64});
  EXPECT_EQ(tensor.type, gguf::TensorType::mxfp4);
  EXPECT_EQ(tensor.data.size(), 96U * 64 / 32 * 17);
  EXPECT_EQ(packed->at("model.layers.1.mlp.experts.3.down_proj.bias", {64}).data.size(), 64U * 2);
  packed->for_sizes_alone(true);
  EXPECT_EQ(packed->at(gate, {96, 64}).data.size(), tensor.data.size());
}

TEST_F(AlternatingExperts, AreRefusedByTheNameOfWhatIsWrong) {
  const auto refused = [&](const char* model, const std::string& from, const std::string& to,
                           std::initializer_list<std::string> parts) {
    return test::refuses([&] { changed(model, from, to)->at(gate, {96, 64}); }, parts);
  };
  EXPECT_TRUE(refused("gpt_oss-mxfp4", "gate_up_proj_scales", "gate_up_proj_scaled",
                      {"model.safetensors", "has no tensor model.layers.1.mlp.experts.gate_up_proj_scales"}));
  EXPECT_TRUE(refused("gpt_oss-mxfp4", "\"U8\"", "\"I8\"", {"gate_up_proj_blocks", "has dtype I8", "must be U8"}));
  EXPECT_TRUE(
      refused("gpt_oss-mxfp4", "[4,192,2,16]", "[4,192,4,8 ]", {"gate_up_proj_blocks", "has shape [4, 192, 4, 8]"}));
  EXPECT_TRUE(refused("gpt_oss", "\"F16\"", "\"I16\"", {"gate_up_proj", "has dtype I16", "F32, F16 or BF16"}));
}

}  // namespace
}  // namespace hayloft::runtime
