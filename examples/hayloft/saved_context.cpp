#include "examples/hayloft/saved_context.h"

#include "examples/hayloft/bundled_model.h"
#include "offload/error.h"

namespace hayloft::cli {

std::filesystem::path model_of(const offload::Snapshot& snapshot, const std::string& given) {
  if (!given.empty()) return given;
  const std::filesystem::path made_with = snapshot.description().model.name;
  std::error_code error;
  if (std::filesystem::is_directory(made_with, error)) return made_with;
  const std::filesystem::path bundled = std::filesystem::weakly_canonical(bundled_model());
  if (made_with.filename() == bundled.filename()) return bundled;
  fail("{}: the model it was made with is no longer at {}; say where it is by --model", snapshot.path().string(),
       made_with.string());
}

}  // namespace hayloft::cli
