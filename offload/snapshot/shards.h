#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "offload/snapshot/snapshot.h"
#include "offload/store/shard.h"

// A context in shards: for each of the ranks that made it an ordinary file with its own blocks, and with tokens, tails
// and attachments whole, so that a rank which opens it again as one of as many needs no other; and a manifest, which
// has the context's name and is written last. Without it there is no context. docs/internals/snapshot.md has the bytes.
namespace hayloft::offload {

struct ShardManifest {
  std::uint64_t saving = 0;  // in every shard, and in their names
  int shards = 0;
  std::int64_t tokens = 0;
  std::array<std::uint8_t, 16> fingerprint{};  // of the model

  friend bool operator==(const ShardManifest&, const ShardManifest&) = default;
};

inline constexpr std::size_t manifest_bytes = 56;

std::array<std::byte, manifest_bytes> encode_manifest(const ShardManifest& manifest);

// None where the bytes are not those of a manifest at all. Throws Error, without a file name, on a damaged one, one of
// a newer version, and numbers that no context has.
std::optional<ShardManifest> decode_manifest(std::span<const std::byte> bytes);

// The same of a file; none where it is another one, or cannot be read. Errors name it.
std::optional<ShardManifest> read_manifest(const std::filesystem::path& path);

// Returns what follows the context's name in that of a shard, as in ".5f3a9c2100d7e1b4.1of4".
std::string shard_ending(std::uint64_t saving, const Shard& shard);
// Beside the manifest at `path`, links followed.
std::filesystem::path shard_path(const std::filesystem::path& path, std::uint64_t saving, const Shard& shard);

// A shard until all of them are whole: PATH.part.KofN, links followed.
std::filesystem::path growing_shard_path(const std::filesystem::path& path, const Shard& shard);

// A file that has the name of a shard of the context at `path`, whatever is in it.
struct NamedShard {
  std::filesystem::path file;
  Shard shard;
  std::optional<std::uint64_t> saving;  // none: it is growing
};
// Finds the shards beside `path`, by name; none where the folder cannot be read.
std::vector<NamedShard> find_shards(const std::filesystem::path& path);

}  // namespace hayloft::offload
