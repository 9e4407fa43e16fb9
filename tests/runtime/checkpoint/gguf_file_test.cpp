#include "runtime/checkpoint/gguf/file.h"

#include <gtest/gtest.h>

#include "tests/support/gguf_image.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime::gguf {
namespace {

using test::GgufImage;
using test::refuses;
using test::TemporaryFolder;

Parsed parse_image(const std::string& image) {
  return parse(std::as_bytes(std::span(image)), "m.gguf");
}
Parsed parse_image(const GgufImage& image) {
  static std::string kept;  // what is parsed views it
  kept = image.bytes();
  return parse_image(kept);
}

GgufImage small_image() {
  GgufImage image;
  image.set("general.architecture", "llama");
  image.set("llama.block_count", std::uint32_t{2});
  image.set("tokenizer.ggml.tokens", std::vector<std::string>{"a", "", "\xE2\x96\x81the"});
  image.set("tokenizer.ggml.scores", std::vector<float>{0.0f, -1.5f, -2.0f});
  image.set("tokenizer.ggml.add_bos_token", true);
  image.tensor("norm", {4}, 0, GgufImage::raw(1.0f) + GgufImage::raw(2.0f) + std::string(8, '\0'));
  image.tensor("matrix", {64, 3}, 8, std::string(3 * 2 * 34, '\1'));
  return image;
}

TEST(GgufFile, MetadataAndTensorsAreThoseOfTheFile) {
  for (const std::uint32_t version : {2, 3}) {
    GgufImage image = small_image();
    image.version = version;
    const Parsed parsed = parse_image(image);
    EXPECT_EQ(parsed.metadata.text("general.architecture"), "llama");
    EXPECT_EQ(parsed.metadata.integer("llama.block_count", 1, 10), 2);
    EXPECT_EQ(parsed.metadata.texts("tokenizer.ggml.tokens"),
              (std::vector<std::string_view>{"a", "", "\xE2\x96\x81the"}));
    EXPECT_EQ(parsed.metadata.numbers("tokenizer.ggml.scores"), (std::vector<double>{0, -1.5, -2}));
    EXPECT_TRUE(parsed.metadata.boolean_or("tokenizer.ggml.add_bos_token", false));
    const Tensor& matrix = parsed.tensors.at("matrix");
    EXPECT_EQ(matrix.shape, (std::vector<std::int64_t>{3, 64}));
    EXPECT_EQ(matrix.type, TensorType::q8_0);
    EXPECT_EQ(matrix.data.size(), 204u);
    EXPECT_EQ(std::to_integer<int>(matrix.data[203]), 1);
  }
}

TEST(GgufFile, WhateverIsCutOffIsRefused) {
  const std::string image = small_image().bytes();
  for (std::size_t size = 0; size < image.size(); ++size) {
    EXPECT_TRUE(refuses([&] { parse_image(image.substr(0, size)); }, {"m.gguf: "})) << size;
  }
}

TEST(GgufFile, OtherFilesAndVersionsAreRefused) {
  GgufImage image = small_image();
  image.magic = "GGML";
  EXPECT_TRUE(refuses([&] { parse_image(image); }, {"not a GGUF file", "-m takes"}));
  image.magic = "GGUF";
  image.version = 1;
  EXPECT_TRUE(refuses([&] { parse_image(image); }, {"version 1"}));
  image.version = 3u << 24;
  EXPECT_TRUE(refuses([&] { parse_image(image); }, {"big-endian"}));
}

TEST(GgufFile, LyingCountsAndLengthsAreRefused) {
  GgufImage image = small_image();
  image.tensor_count = ~std::uint64_t{0};
  EXPECT_TRUE(refuses([&] { parse_image(image); }, {"m.gguf: "}));
  image = small_image();
  image.pair_count = ~std::uint64_t{0};
  EXPECT_TRUE(refuses([&] { parse_image(image); }, {"m.gguf"}));
  image = small_image();
  image.pair("long", 8, GgufImage::raw(~std::uint64_t{0}));
  EXPECT_TRUE(refuses([&] { parse_image(image); }, {"truncated or damaged"}));
  image = small_image();
  image.pair("list", 9, GgufImage::raw(std::uint32_t{10}) + GgufImage::raw(std::uint64_t{1} << 61));
  EXPECT_TRUE(refuses([&] { parse_image(image); }, {"list lists"}));
  image = small_image();
  image.pair("nested", 9, GgufImage::raw(std::uint32_t{9}) + GgufImage::raw(std::uint64_t{0}));
  EXPECT_TRUE(refuses([&] { parse_image(image); }, {"list of lists"}));
  image = small_image();
  image.pair("odd", 13, "");
  EXPECT_TRUE(refuses([&] { parse_image(image); }, {"odd", "unknown type 13"}));
  image = small_image();
  image.set("llama.block_count", 3);
  EXPECT_TRUE(refuses([&] { parse_image(image); }, {"llama.block_count", "twice"}));
}

TEST(GgufFile, TensorsThatCannotBeAreRefusedByName) {
  const auto with = [](const std::vector<std::uint64_t>& shape, std::uint32_t type, std::uint64_t offset) {
    GgufImage image = small_image();
    image.describe("extra", shape, type, offset);
    return image;
  };
  EXPECT_TRUE(refuses([&] { parse_image(with({4}, 16, 256)); }, {"extra", "IQ2_XXS", "Q4_K"}));
  EXPECT_TRUE(refuses([&] { parse_image(with({4}, 99, 256)); }, {"extra", "type 99"}));
  EXPECT_TRUE(refuses([&] { parse_image(with({48, 2}, 2, 256)); }, {"extra", "48", "32", "Q4_0"}));
  EXPECT_TRUE(refuses([&] { parse_image(with({4}, 0, 4)); }, {"extra", "alignment"}));
  EXPECT_TRUE(refuses([&] { parse_image(with({4}, 0, 0)); }, {"norm", "extra", "overlap"}));
  EXPECT_TRUE(refuses([&] { parse_image(with({4}, 0, 1 << 20)); }, {"extra", "truncated"}));
  EXPECT_TRUE(refuses([&] { parse_image(with({1 << 20, 1 << 20, 1 << 20}, 0, 256)); }, {"extra", "shape"}));
  EXPECT_TRUE(refuses([&] { parse_image(with({4, 0}, 0, 256)); }, {"extra", "shape"}));
  EXPECT_TRUE(refuses([&] { parse_image(with({}, 0, 256)); }, {"extra", "0 dimensions"}));
  GgufImage image = small_image();
  image.describe("norm", {4}, 0, 0);
  EXPECT_TRUE(refuses([&] { parse_image(image); }, {"norm", "twice"}));
  image = small_image();
  image.set("general.alignment", std::uint32_t{24});
  EXPECT_TRUE(refuses([&] { parse_image(image); }, {"general.alignment", "24", "power of two"}));
  image = small_image();
  image.set("general.alignment", std::uint32_t{4});
  EXPECT_TRUE(refuses([&] { parse_image(image); }, {"general.alignment", "4", "from 8"}));
}

TEST(GgufFile, ValuesOfAnotherTypeAreRefusedByKey) {
  const Metadata metadata = parse_image(small_image()).metadata;
  EXPECT_TRUE(refuses([&] { metadata.integer("general.architecture", 0, 1); }, {"general.architecture", "'llama'"}));
  EXPECT_TRUE(refuses([&] { metadata.integer("llama.block_count", 3, 9); }, {"llama.block_count", "2", "3 to 9"}));
  EXPECT_TRUE(refuses([&] { metadata.integer("llama.nothing", 3, 9); }, {"lack llama.nothing"}));
  EXPECT_TRUE(refuses([&] { metadata.texts("tokenizer.ggml.scores"); }, {"tokenizer.ggml.scores", "f32"}));
  EXPECT_TRUE(refuses([&] { metadata.integers("tokenizer.ggml.scores"); }, {"tokenizer.ggml.scores", "integers"}));
}

GgufImage part(int number, int count, std::string_view tensor, int tensors) {
  GgufImage image;
  image.set("split.no", number);
  image.set("split.count", count);
  image.set("split.tensors.count", tensors);
  image.tensor(tensor, {1}, 0, GgufImage::raw(static_cast<float>(number)));
  return image;
}

TEST(GgufFile, PartsAreOneFile) {
  const TemporaryFolder folder;
  const auto first = folder.write("m-00001-of-00002.gguf", part(0, 2, "a", 2).bytes());
  EXPECT_TRUE(refuses([&] { File file(first); }, {"m-00002-of-00002.gguf", "cannot be opened"}));
  const auto second = folder.write("m-00002-of-00002.gguf", part(1, 2, "b", 2).bytes());
  const File file(first);
  EXPECT_EQ(file.paths().size(), 2u);
  float value = 0;
  dequantise(file.find("b")->type, file.find("b")->data, &value);
  EXPECT_EQ(value, 1.0f);
  EXPECT_TRUE(refuses([&] { File whole(second); }, {"is part 2 of 2", "-00001-of-00002.gguf"}));
}

TEST(GgufFile, PartsThatDoNotBelongTogetherAreRefused) {
  const TemporaryFolder folder;
  const auto first = folder.write("m-00001-of-00002.gguf", part(0, 2, "a", 3).bytes());
  folder.write("m-00002-of-00002.gguf", part(1, 2, "b", 3).bytes());
  EXPECT_TRUE(refuses([&] { File file(first); }, {"split.tensors.count", "3", "2"}));
  folder.write("m-00002-of-00002.gguf", part(1, 2, "a", 2).bytes());
  EXPECT_TRUE(refuses([&] { File file(first); }, {"m-00002-of-00002.gguf", "split.tensors.count is 2", "must be 3"}));
  folder.write("m-00002-of-00002.gguf", part(1, 2, "a", 3).bytes());
  EXPECT_TRUE(refuses([&] { File file(first); }, {"m-00002-of-00002.gguf", "tensor a"}));
  folder.write("m-00002-of-00002.gguf", part(2, 3, "b", 2).bytes());
  EXPECT_TRUE(refuses([&] { File file(first); }, {"part 3 of 3", "part 2 of 2"}));
  const auto renamed = folder.write("first.gguf", part(0, 2, "a", 2).bytes());
  EXPECT_TRUE(refuses([&] { File file(renamed); }, {"first.gguf", "-00001-of-00002.gguf"}));
}

TEST(GgufFile, FilesThatCannotBeMappedAreRefused) {
  const TemporaryFolder folder;
  EXPECT_TRUE(refuses([&] { File file(folder / "none.gguf"); }, {"none.gguf", "cannot be opened"}));
  EXPECT_TRUE(refuses([&] { File file(folder.write("empty.gguf", "")); }, {"empty.gguf", "empty"}));
}

}  // namespace
}  // namespace hayloft::runtime::gguf
