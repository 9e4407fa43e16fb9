#pragma once

#include <string>
#include <string_view>

namespace hayloft {

// Throws Error, beginning with `name`, where a file's bytes are a Git LFS pointer: a few lines that stand for a file
// which a clone without Git LFS has not fetched.
void refuse_lfs_pointer(const std::string& name, std::string_view bytes);

}  // namespace hayloft
