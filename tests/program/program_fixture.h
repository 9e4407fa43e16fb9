#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/safetensors.h"
#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::test {

namespace fs = std::filesystem;

// A byte-level tokenizer of 128 entries, as many as the golden models have: printable ASCII, the newline, and merges of
// "e" with letters to make up the number.
inline nlohmann::json small_tokenizer() {
  nlohmann::json vocabulary = nlohmann::json::object();
  const auto add = [&](const std::string& entry) {
    const auto id = static_cast<int>(vocabulary.size());
    vocabulary.emplace(entry, id);
  };
  for (char c = '!'; c <= '~'; ++c) add(std::string(1, c));
  add("\u0120");  // the space and the newline, as byte-level vocabularies write them
  add("\u010a");
  nlohmann::json merges = nlohmann::json::array();
  for (char c = 'a'; c <= 'z'; ++c) {
    add(std::string("e") + c);
    merges.push_back(std::string("e ") + c);
  }
  for (char c = 'a'; vocabulary.size() < 128; ++c) {
    add(std::string("o") + c);
    merges.push_back(std::string("o ") + c);
  }
  return {{"version", "1.0"},
          {"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}};
}

// A folder with what the program is run on.
class ProgramTest : public ::testing::Test {
 protected:
  // A golden model with a tokenizer: random weights, everything else as in a real one.
  fs::path make_model(const std::string& golden = "smollm3") {
    const fs::path model = folder_ / "model";
    fs::remove_all(model);
    fs::create_directory(model);
    const fs::path source = fs::path(HAYLOFT_SOURCE_DIR) / "tests" / "golden" / "models" / golden;
    for (const char* file : {"config.json", "model.safetensors"}) fs::copy_file(source / file, model / file);
    write(model / "tokenizer.json", small_tokenizer().dump());
    return model;
  }

  // q [2][4][16], k and v [2][100][16] of small numbers.
  std::string make_tensors() const {
    std::vector<float> values(2 * 100 * 16);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 37 % 101) / 50 - 1;
    const auto bytes = std::as_bytes(std::span(values));
    const std::vector<runtime::TensorToWrite> tensors{{"q", "F32", {2, 4, 16}, bytes.first(2 * 4 * 16 * 4)},
                                                      {"k", "F32", {2, 100, 16}, bytes},
                                                      {"v", "F32", {2, 100, 16}, bytes}};
    runtime::write_safetensors(folder_ / "qkv.safetensors", tensors);
    return folder_ / "qkv.safetensors";
  }

  static void write(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }
  static std::string contents(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string at(const char* name) const { return folder_ / name; }

  // Names in the folder, without those that the test put there.
  std::vector<std::string> left_behind() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      const std::string name = entry.path().filename();
      if (name != "qkv.safetensors" && name != "model") names.push_back(name);
    }
    return names;
  }

  Outcome attend(std::vector<std::string> more) const {
    std::vector<std::string> arguments{"attend", "--in", at("qkv.safetensors"), "--out", at("y.safetensors")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  }

  TemporaryFolder folder_;
};

}  // namespace hayloft::test
