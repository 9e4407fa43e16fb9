#include "runtime/checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <random>

#include "offload/error.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime {
namespace {

using test::refuses;
using test::TemporaryFolder;

std::string image(const std::string& header, std::size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i));
  file += header;
  for (std::size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i);
  return file;
}

// The bytes are copied to a block of exactly their size, so that the address sanitizer sees any read past the end.
auto parse(const std::string& file) {
  const std::vector<char> exact(file.begin(), file.end());
  auto tensors = parse_safetensors(std::as_bytes(std::span(exact)), "x.safetensors");
  for (auto& [name, tensor] : tensors) {
    EXPECT_GE(tensor.data.data(), std::as_bytes(std::span(exact)).data());
    EXPECT_LE(tensor.data.data() + tensor.data.size(), std::as_bytes(std::span(exact)).data() + exact.size());
    tensor.data = {};
  }
  return tensors;
}

void expect_refused(const std::string& file, const std::string& reason) {
  EXPECT_TRUE(refuses([&] { parse(file); }, {"x.safetensors", reason}));
}

using Shape = std::vector<std::int64_t>;
using Floats = std::vector<float>;

TEST(Safetensors, ListsTensorsWithTheirShapes) {
  const auto tensors = parse(image(R"({"__metadata__": {"format": "pt"},
      "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
      "b": {"shape": [], "data_offsets": [24, 26], "dtype": "BF16"},
      "c": {"dtype": "I64", "shape": [0, 5], "data_offsets": [26, 26]}}   )",
                                   26));
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors.at("a").dtype, "F32");
  EXPECT_EQ(tensors.at("a").shape, (Shape{2, 3}));
  EXPECT_EQ(tensors.at("a").elements(), 6);
  EXPECT_EQ(tensors.at("b").elements(), 1) << "a scalar";
  EXPECT_EQ(tensors.at("c").elements(), 0);
}

TEST(Safetensors, AcceptsHolesAndAnyOrderOfOffsets) {
  EXPECT_EQ(parse(image(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [12, 16]},
                            "b": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})",
                        20))
                .size(),
            2u);
  EXPECT_TRUE(parse(image("{}", 0)).empty());
}

TEST(Safetensors, RefusesATruncatedFile) {
  const std::string whole = image(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", 8);
  EXPECT_EQ(parse(whole).size(), 1u);
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_THROW(parse(whole.substr(0, bytes)), Error) << bytes << " bytes";
  }
  expect_refused(whole.substr(0, whole.size() - 1), "truncated: tensor a ends at byte");
  expect_refused(whole.substr(0, 20), "truncated: its header");
  expect_refused(whole.substr(0, 7), "too short");
}

TEST(Safetensors, RefusesAHeaderLongerThanTheFormatAllows) {
  std::string file(64, '\xff');
  expect_refused(file, "no safetensors file");
  const std::uint64_t length = 100'000'001;
  std::memcpy(file.data(), &length, 8);
  expect_refused(file, "100000001");
}

TEST(Safetensors, RefusesTensorsThatOverlapOrLieOutside) {
  expect_refused(image(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                           "b": {"dtype": "U8", "shape": [4], "data_offsets": [3, 7]}})",
                       8),
                 "tensors a and b overlap");
  expect_refused(image(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [6, 10]}})", 8), "truncated");
  expect_refused(image(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [18446744073709551612, 0]}})", 8),
                 "data_offsets");
  expect_refused(image(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [4, 0]}})", 8), "data_offsets");
}

TEST(Safetensors, RefusesShapesThatDoNotMatchTheData) {
  expect_refused(image(R"({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}})", 8), "tensor a needs 12");
  expect_refused(image(R"({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}})", 8), "negative");
  expect_refused(image(R"({"a": {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}})", 8), "fraction");
  expect_refused(image(R"({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}})", 8), "whole bytes");
  // 2^32 * 2^32 is 0 and 2^61 * 8 is 0 in 64 bits
  expect_refused(image(R"({"a": {"dtype": "U8", "shape": [4294967296, 4294967296], "data_offsets": [0, 0]}})", 0),
                 "larger than any file");
  expect_refused(image(R"({"a": {"dtype": "F64", "shape": [2305843009213693952], "data_offsets": [0, 0]}})", 0),
                 "larger than any file");
  expect_refused(image(R"({"a": {"dtype": "U8", "shape": [0, 9223372036854775808], "data_offsets": [0, 0]}})", 0),
                 "a.shape");
}

TEST(Safetensors, RefusesAHeaderOfAnotherForm) {
  expect_refused(image("", 0), "not valid JSON");
  expect_refused(image("[]", 0), "a list, not a JSON object");
  expect_refused(image("7", 0), "a number, not a JSON object");
  expect_refused(image("{} x", 0), "not valid JSON");
  expect_refused(image(R"({"a": 1})", 0), "a number where it does not belong, at a");
  expect_refused(image(R"({"a": {"dtype": "F32", "shape": [1]}})", 4), "lacks its");
  expect_refused(image(R"({"a": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}})", 4), "unknown dtype F33");
  expect_refused(image(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}})", 4), "lacks its");
  expect_refused(image(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}})", 8), "a.data_offsets");
  expect_refused(image(R"({"a": {"dtype": "F32", "shape": [[1]], "data_offsets": [0, 4]}})", 4), "a list where");
  expect_refused(image(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "more": {}}})", 4), "a.more");
  expect_refused(image(R"({"__metadata__": {"a": 1}})", 0), "__metadata__.a");
  expect_refused(image(R"({"__metadata__": "a"})", 0), "__metadata__");
  expect_refused(image("{\"\x80\": 1}", 0), "not valid JSON");
  const std::string tensor = R"("a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]})";
  expect_refused(image("{" + tensor + "," + tensor + "}", 4), "names tensor a twice");
  expect_refused(image("{\"a\\nb\": 1}", 0), "a?b");
}

TEST(Safetensors, NestingHoweverDeepIsRefusedAtOnce) {
  expect_refused(image(std::string(10'000'000, '['), 0), "a list");
  std::string nested;
  for (int i = 0; i < 1'000'000; ++i) nested += "{\"a\":";
  expect_refused(image(nested, 0), "an object where it does not belong");
}

TEST(Safetensors, SurvivesRandomDamage) {
  const std::string whole = image(R"({"__metadata__": {"format": "pt"},
      "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
      "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}})",
                                  32);
  std::mt19937 random(1);
  int refused = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string damaged = whole;
    for (int flips = 1 + static_cast<int>(random() % 3); flips > 0; --flips) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    try {
      parse(damaged);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 10000) << "most of the image is header";
}

TEST(Safetensors, ConvertsEveryFloatingDtype) {
  const auto values = [](const std::string& dtype, auto... bits) {
    const std::vector list = {bits...};
    return to_f32({dtype, {static_cast<std::int64_t>(list.size())}, std::as_bytes(std::span(list))}, "x");
  };
  EXPECT_EQ((values("F32", 1.5f, -2.0f)), (Floats{1.5f, -2.0f}));
  EXPECT_EQ((values("F64", 1.5, -0.1)), (Floats{1.5f, -0.1f}));
  EXPECT_EQ((values("F16", std::uint16_t{0x3e00}, std::uint16_t{0xc000})), (Floats{1.5f, -2.0f}));
  EXPECT_EQ((values("BF16", std::uint16_t{0x3fc0}, std::uint16_t{0xc000})), (Floats{1.5f, -2.0f}));
  EXPECT_TRUE(refuses([&] { values("I32", 1); }, {"tensor x has dtype I32"}));
}

TEST(Safetensors, ConvertsDataAtAnyAlignment) {
  alignas(8) std::byte bytes[9] = {};
  const float x = 1.25f;
  std::memcpy(bytes + 1, &x, 4);
  EXPECT_EQ((to_f32({"F32", {1}, std::span(bytes).subspan(1, 4)}, "x")), (Floats{1.25f}));
}

TEST(Safetensors, ReadsBackWhatItWrote) {
  const TemporaryFolder folder;
  const std::vector<float> y = {1, 2, 3, 4, 5, 6};
  const std::vector<std::int32_t> positions = {7, -1};
  const TensorToWrite tensors[] = {{"y", "F32", {2, 3}, std::as_bytes(std::span(y))},
                                   {"positions", "I32", {2}, std::as_bytes(std::span(positions))}};
  write_safetensors(folder / "out.safetensors", tensors);

  SafetensorsFile file(folder / "out.safetensors");
  const SafetensorsFile moved = std::move(file);
  EXPECT_EQ(moved.tensors().size(), 2u);
  EXPECT_EQ(to_f32(moved.at("y"), "y"), y);
  EXPECT_EQ(moved.at("y").shape, (Shape{2, 3}));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(moved.at("y").data.data()) % 8, 0u) << "data starts aligned";
  EXPECT_EQ(std::memcmp(moved.at("positions").data.data(), positions.data(), 8), 0);
  EXPECT_TRUE(refuses([&] { moved.at("z"); }, {"out.safetensors", "no tensor z"}));
}

TEST(Safetensors, RefusesWhatIsNotAFile) {
  const TemporaryFolder folder;
  EXPECT_TRUE(refuses([&] { SafetensorsFile(folder / "absent"); }, {"absent: cannot be opened"}));
  EXPECT_TRUE(refuses([&] { SafetensorsFile{folder.path()}; }, {"not a regular file"}));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(refuses([&] { SafetensorsFile(folder / "pipe"); }, {"not a regular file"}));
  folder.write("empty", "");
  EXPECT_TRUE(refuses([&] { SafetensorsFile(folder / "empty"); }, {"empty"}));
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

TEST(SafetensorsWriter, LeavesNothingWhenTheDiskIsFull) {
  const TemporaryFolder folder;
  folder.write("y.safetensors", "before");
  const std::vector<float> y(1 << 16);
  const TensorToWrite tensor[] = {{"y", "F32", {1 << 16}, std::as_bytes(std::span(y))}};

  // A limit on the size of files fails a write half way, as a full disk does.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 1 << 16;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto refused =
      refuses([&] { write_safetensors(folder / "y.safetensors", tensor); }, {"y.safetensors: cannot be written"});
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);

  EXPECT_TRUE(refused);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"y.safetensors"}));
  std::string content;
  std::ifstream(folder / "y.safetensors") >> content;
  EXPECT_EQ(content, "before") << "the file that was there is untouched";
}

TEST(SafetensorsWriter, RefusesAnUnwritablePath) {
  const TemporaryFolder folder;
  EXPECT_TRUE(refuses([&] { write_safetensors(folder / "no/such/y", {}); }, {"cannot be written"}));
  EXPECT_TRUE(refuses([&] { write_safetensors(folder.path(), {}); }, {"cannot be written"}));
  EXPECT_TRUE(refuses([&] { write_safetensors("/dev/full", {}); }, {"/dev/full: cannot be written"}));
  EXPECT_TRUE(names_in(folder.path()).empty());
}

}  // namespace
}  // namespace hayloft::runtime
