#include "offload/lfs_pointer.h"

#include "offload/error.h"

namespace hayloft {
namespace {

constexpr std::size_t kLongest = 1024;  // of a pointer, by its specification

}  // namespace

void refuse_lfs_pointer(const std::string& name, std::string_view bytes) {
  if (bytes.size() >= kLongest || !bytes.starts_with("version https://git-lfs.github.com/spec/")) return;
  constexpr std::string_view key = "\nsize ";
  std::string size;
  if (const std::size_t at = bytes.find(key); at != std::string_view::npos) {
    const std::string_view rest = bytes.substr(at + key.size());
    const std::string_view digits = rest.substr(0, rest.find_first_not_of("0123456789"));
    if (!digits.empty() && digits.size() < 20) size = fmt::format(" of {} bytes", digits);
  }
  fail(
      "{}: is a Git LFS pointer, which stands for a file{} that was not fetched; run git lfs pull in its folder, or "
      "download the file itself",
      name, size);
}

}  // namespace hayloft
