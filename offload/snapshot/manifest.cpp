#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>
#include <system_error>

#include "offload/byte_stream.h"
#include "offload/error.h"
#include "offload/output_file.h"
#include "offload/snapshot/format.h"
#include "offload/snapshot/shards.h"

// The manifest of a context in shards, and how the shards are called.
namespace hayloft::offload {
namespace {

constexpr std::array<char, 8> magic = {'H', 'A', 'Y', 'S', 'H', 'A', 'R', 'D'};
constexpr std::uint32_t newest_version = 1;
constexpr std::size_t checksum_place = manifest_bytes - sizeof(std::uint64_t);
constexpr std::int64_t most_tokens = std::int64_t{1} << 40;
constexpr std::string_view growing = ".saving";

// Whether `name` is `context` with shard_ending(), whatever its numbers, and growing behind it.
bool is_growing_shard(std::string_view name, std::string_view context) {
  if (!name.starts_with(context) || !name.ends_with(growing)) return false;
  name.remove_prefix(context.size());
  name.remove_suffix(growing.size());
  std::uint64_t saving = 0;
  Shard shard;
  const char* const end = name.data() + name.size();
  const auto take = [&](auto& number, int base) {
    const auto [stop, error] = std::from_chars(name.data(), end, number, base);
    name = {stop, static_cast<std::size_t>(end - stop)};
    return error == std::errc();
  };
  const auto skip = [&](std::string_view letters) {
    if (!name.starts_with(letters)) return false;
    name.remove_prefix(letters.size());
    return true;
  };
  return skip(".") && take(saving, 16) && skip(".") && take(shard.rank, 10) && skip("of") && take(shard.ranks, 10) &&
         name.empty();
}

}  // namespace

std::array<std::byte, manifest_bytes> encode_manifest(const ShardManifest& manifest) {
  ByteWriter out;
  out.array(std::span<const char>(magic));
  out.number(newest_version);
  out.number(std::int32_t{manifest.shards});
  out.number(manifest.saving);
  out.number(manifest.tokens);
  out.array(std::span<const std::uint8_t>(manifest.fingerprint));
  const std::vector<std::byte> bytes = out.take();
  const std::uint64_t checksum = snapshot_checksum(bytes);
  std::array<std::byte, manifest_bytes> image;
  std::ranges::copy(bytes, image.begin());
  std::memcpy(image.data() + checksum_place, &checksum, sizeof checksum);
  return image;
}

std::optional<ShardManifest> decode_manifest(std::span<const std::byte> bytes) {
  if (bytes.size() < magic.size() || std::memcmp(bytes.data(), magic.data(), magic.size()) != 0) return std::nullopt;
  ByteReader in(bytes.subspan(magic.size()), "its manifest ends too early");
  const auto version = in.number<std::uint32_t>();
  if (version > newest_version) {
    fail("its manifest was written by a newer hayloft (format version {}); update hayloft to read it", version);
  }
  ShardManifest manifest;
  manifest.shards = in.number<std::int32_t>();
  manifest.saving = in.number<std::uint64_t>();
  manifest.tokens = in.number<std::int64_t>();
  in.into(std::span<std::uint8_t>(manifest.fingerprint));
  const auto checksum = in.number<std::uint64_t>();
  if (version == 0 || !in.done() || checksum != snapshot_checksum(bytes.first(checksum_place))) {
    fail("damaged: its manifest does not match its checksum; restore the file from a copy");
  }
  if (manifest.shards < 2 || manifest.shards > snapshot_shards) {
    fail("damaged: its manifest says {} shards, must be 2 to {}", manifest.shards, snapshot_shards);
  }
  if (manifest.tokens < 1 || manifest.tokens > most_tokens) {
    fail("damaged: its manifest says {} tokens, must be 1 to {}", manifest.tokens, most_tokens);
  }
  return manifest;
}

std::optional<ShardManifest> read_manifest(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return std::nullopt;
  std::array<std::byte, manifest_bytes + 1> bytes{};  // one more than there may be
  struct stat status {};
  const bool file = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  const ssize_t got = file ? ::pread(descriptor, bytes.data(), bytes.size(), 0) : 0;
  ::close(descriptor);
  try {
    return decode_manifest(std::span(bytes).first(static_cast<std::size_t>(std::max<ssize_t>(got, 0))));
  } catch (const Error& error) {
    fail("{}: {}", path.string(), error.what());
  }
}

std::string shard_ending(std::uint64_t saving, const Shard& shard) {
  return fmt::format(".{:016x}.{}of{}", saving, shard.rank + 1, shard.ranks);
}

std::filesystem::path shard_path(const std::filesystem::path& path, std::uint64_t saving, const Shard& shard) {
  std::filesystem::path beside = resolve_links(path);
  beside += shard_ending(saving, shard);
  return beside;
}

std::filesystem::path growing_shard_path(const std::filesystem::path& shard) {
  std::filesystem::path path = shard;
  path += growing;
  return path;
}

int remove_growing_shards(const std::filesystem::path& path) noexcept {
  int removed = 0;
  try {
    const std::filesystem::path context = resolve_links(path);
    std::error_code error;
    for (std::filesystem::directory_iterator at(context.parent_path(), error), end; !error && at != end;
         at.increment(error)) {
      if (!is_growing_shard(at->path().filename().string(), context.filename().string())) continue;
      const int descriptor = ::open(at->path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
      if (descriptor < 0) continue;
      if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0 && ::unlink(at->path().c_str()) == 0) ++removed;
      ::close(descriptor);
    }
  } catch (const std::exception&) {  // no memory for a name
  }
  return removed;
}

}  // namespace hayloft::offload
