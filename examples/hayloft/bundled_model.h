#pragma once

#include <filesystem>

namespace hayloft {

// The folder of the needle model that comes with the program. It is looked for from the executable's own place, which
// is the same path in the build tree and where the program is installed. Throws Error when it is not there.
std::filesystem::path bundled_model();

}  // namespace hayloft
