#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace hayloft::runtime {

// A regular file, mapped read-only as a whole. The bytes live as long as the object, also after it has been moved.
class MappedFile {
 public:
  // Throws Error naming the file: it cannot be opened, is no regular file, is empty, or cannot be mapped.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(mapping_), bytes_}; }

 private:
  void* mapping_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace hayloft::runtime
