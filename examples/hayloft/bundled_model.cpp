#include "examples/hayloft/bundled_model.h"

#include "examples/hayloft/process/file_roles.h"
#include "offload/error.h"

namespace hayloft {

std::filesystem::path bundled_model() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) fail("cannot tell where the program lies (/proc/self/exe: {}); name a model with -m DIR", error.message());
  const std::filesystem::path model = (program.parent_path() / HAYLOFT_MODEL_FROM_PROGRAM).lexically_normal();
  if (!std::filesystem::exists(model / "config.json", error)) {
    fail("the bundled model is not at {}; reinstall hayloft or name a model with -m DIR", model.string());
  }
  return model;
}

std::filesystem::path model_or_bundled(const std::string& given) {
  if (!given.empty()) return given;
  const std::filesystem::path bundled = bundled_model();
  cli::require_not_output(bundled);
  return bundled;
}

}  // namespace hayloft
