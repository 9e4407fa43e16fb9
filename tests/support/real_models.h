#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace hayloft::test {

// Returns where scripts/models puts what it downloads. Tests that need it skip when it is not there.
inline std::filesystem::path models_folder() {
  if (const char* folder = std::getenv("HAYLOFT_MODELS")) return folder;
  if (const char* cache = std::getenv("XDG_CACHE_HOME")) return std::filesystem::path(cache) / "hayloft/models";
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home ? home : "/") / ".cache/hayloft/models";
}

inline std::filesystem::path real_model(const std::string& name) {
  return models_folder() / (name + ".gguf");
}

}  // namespace hayloft::test
