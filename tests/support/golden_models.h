#pragma once

#include <filesystem>

namespace hayloft::runtime {

// Small models of every architecture, one folder each, with the logits that transformers gives.
inline const std::filesystem::path goldens = std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/models";

}  // namespace hayloft::runtime
