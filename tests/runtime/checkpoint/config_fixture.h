#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/checkpoint/config.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

// A config.json of a few fields, written, read and refused.
namespace hayloft::runtime {

using nlohmann::json;
using test::refuses;
using test::TemporaryFolder;

// The fields every config.json has.
inline json config_of(const std::string& model_type) {
  return {{"model_type", model_type}, {"vocab_size", 320},        {"hidden_size", 96},       {"intermediate_size", 200},
          {"num_hidden_layers", 6},   {"num_attention_heads", 4}, {"num_key_value_heads", 2}};
}

inline ModelConfig read(const json& config, const json& generation = nullptr) {
  const TemporaryFolder folder;
  folder.write("config.json", config.dump());
  if (!generation.is_null()) folder.write("generation_config.json", generation.dump());
  return read_config(folder.path());
}

// The Error names the file and `field`.
inline void expect_refused(const json& config, const std::string& field) {
  EXPECT_TRUE(refuses([&] { read(config); }, {"config.json", field}));
}

inline void expect_refused_value(const std::string& field, const json& value, const std::string& model_type = "llama") {
  json config = config_of(model_type);
  config[field] = value;
  expect_refused(config, field);
}

using Windows = std::vector<std::int64_t>;
using Ropes = std::vector<bool>;
using Tokens = std::vector<std::int32_t>;

}  // namespace hayloft::runtime
