#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "offload/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/config.h"
#include "runtime/decode/load_tokenizer.h"
#include "tests/support/temporary_folder.h"

// What is no model, but what people have in its place: the message says what to do.
namespace hayloft::runtime {
namespace {

std::string refusal_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string opening(const std::filesystem::path& model) {
  return refusal_of([&] { Checkpoint::open(model); });
}

TEST(Remedies, OfAFolderWithOtherWeightsNameThemAndWhatToDo) {
  const struct {
    const char* file;
    const char* remedy;
  } cases[] = {
      {"pytorch_model.bin", "save_pretrained"},   {"pytorch_model-00001-of-00002.bin", "save_pretrained"},
      {"consolidated.00.pth", "save_pretrained"}, {"model-Q4_K_M.gguf", "name that file: -m "},
      {"adapter_model.safetensors", "merge"},
  };
  for (const auto& [file, remedy] : cases) {
    const test::TemporaryFolder folder;
    folder.write("config.json", "{}");
    folder.write(file, "x");
    const std::string said = opening(folder.path());
    EXPECT_NE(said.find("holds neither model.safetensors nor"), std::string::npos) << said;
    EXPECT_NE(said.find(file), std::string::npos) << said;
    EXPECT_NE(said.find(remedy), std::string::npos) << said;
  }
  const test::TemporaryFolder empty;
  EXPECT_TRUE(opening(empty.path()).ends_with("index.json")) << opening(empty.path());
}

TEST(Remedies, OfALinkThatLeadsInACircleNameThat) {
  const test::TemporaryFolder folder;
  std::filesystem::create_symlink(folder / "round", folder / "round");
  for (const std::string& said : {opening(folder / "round"), refusal_of([&] { load_tokenizer(folder / "round"); })}) {
    EXPECT_NE(said.find("round: cannot be opened: Too many levels of symbolic links"), std::string::npos) << said;
  }
}

// A pointer as a clone without Git LFS leaves it, by the specification of git-lfs.
TEST(Remedies, OfAGitLfsPointerIsToFetchTheFile) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\n"
      "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 988097824\n";
  const test::TemporaryFolder folder;
  const auto check = [&](const std::string& said, const char* file) {
    EXPECT_NE(said.find(file), std::string::npos) << said;
    EXPECT_NE(said.find("Git LFS pointer, which stands for a file of 988097824 bytes"), std::string::npos) << said;
    EXPECT_NE(said.find("git lfs pull"), std::string::npos) << said;
  };
  check(opening(folder.write("model.gguf", pointer)), "model.gguf");
  folder.write("tokenizer.json", pointer);
  check(refusal_of([&] { load_tokenizer(folder.path()); }), "tokenizer.json");
  folder.write("config.json", pointer);
  check(refusal_of([&] { read_config(folder.path()); }), "config.json");
  folder.write("model.safetensors", pointer);
  check(opening(folder.path()), "model.safetensors");
  // Of a shard, behind an index that is there.
  std::filesystem::remove(folder / "model.safetensors");
  folder.write("model.safetensors.index.json", R"({"weight_map": {"a": "model-00001-of-00001.safetensors"}})");
  folder.write("model-00001-of-00001.safetensors", pointer);
  check(opening(folder.path()), "model-00001-of-00001.safetensors");
}

}  // namespace
}  // namespace hayloft::runtime
