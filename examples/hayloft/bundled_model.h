#pragma once

#include <filesystem>
#include <string>

namespace hayloft {

// The folder of the needle model that comes with the program. It is looked for from the executable's own place, which
// is the same path in the build tree and where the program is installed. Throws Error when it is not there.
std::filesystem::path bundled_model();

// The model that was named by --model; where none was, the bundled one.
std::filesystem::path model_or_bundled(const std::string& given);

}  // namespace hayloft
