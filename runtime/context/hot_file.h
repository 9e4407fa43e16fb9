#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "gpu/hot_reads.h"

namespace hayloft::runtime {

// The context that the hints of a hot file are about. One that does not match is of no use.
struct HotSubject {
  std::uint8_t fingerprint[16] = {};  // of the model
  std::int64_t tokens = 0;            // of the context
  std::int64_t stored_tokens = 0;     // of them, those in the stores of global layers
  std::int32_t kv_heads = 0;
  std::int32_t runs = 0;  // of a KV head: columns, or planes of all of them

  friend bool operator==(const HotSubject&, const HotSubject&) = default;
};

// Returns where the hints about a saved context lie: beside it, under its name with .hot behind it.
std::filesystem::path hot_file_of(const std::filesystem::path& context);

// The file's bytes. Little-endian: "hayhot1\n", u64 xxh3-64 of what follows, the subject as above, i32 layers; then for
// each layer u8 whether it knows of runs and f32 [Hkv][runs], then u8 whether it knows of rows and for each KV head
// u32 how many positions, and i32 these.
std::vector<std::byte> write_hot(const HotSubject& subject, std::span<const gpu::HotReads> layers);

// Reads what a file says of that many layers of the subject; nothing if it is damaged, in another format or about
// another one. Whatever the bytes are, what is returned is as gpu::HotReads demands.
std::optional<std::vector<gpu::HotReads>> read_hot(std::span<const std::byte> bytes, const HotSubject& subject,
                                                   std::size_t layers);

}  // namespace hayloft::runtime
