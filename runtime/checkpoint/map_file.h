#pragma once

#include <filesystem>
#include <memory>

#include "offload/host/mapped_file.h"

namespace hayloft::runtime {

// A regular file, mapped read-only as a whole. Throws Error naming it: it cannot be opened, is no regular file, is
// empty, or cannot be mapped.
std::unique_ptr<const offload::MappedFile> map_file(const std::filesystem::path& path);

}  // namespace hayloft::runtime
