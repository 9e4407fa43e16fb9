#pragma once

#include <filesystem>
#include <string>

#include "offload/snapshot.h"

namespace hayloft::cli {

// The folder of the model that a saved context is to be opened with: the one given, if any; else the one it was made
// with, where it was then; else the bundled one if it has that name. Throws Error when there is none. Whether it is
// that model is checked later.
std::filesystem::path model_of(const offload::Snapshot& snapshot, const std::string& given);

}  // namespace hayloft::cli
