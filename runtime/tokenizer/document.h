#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace hayloft::runtime {

// A tokenizer.json already parsed, or made from another format's metadata; `name` is used in messages.
struct TokenizerDocument {
  nlohmann::json json;
  std::string name;
};

}  // namespace hayloft::runtime
