#include <fcntl.h>
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

constexpr std::array<char, 8> manifest_magic = {'H', 'A', 'Y', 'S', 'H', 'A', 'R', 'D'};
constexpr std::uint32_t newest_manifest = 1;
constexpr std::size_t manifest_checksum_place = manifest_bytes - sizeof(std::uint64_t);
constexpr std::int64_t most_manifest_tokens = std::int64_t{1} << 40;
constexpr std::string_view growing = ".part";

std::string growing_ending(const Shard& shard) {
  return fmt::format("{}.{}of{}", growing, shard.rank + 1, shard.ranks);
}

// Takes apart what follows a context's name in that of a shard; none where it is no shard's.
std::optional<NamedShard> parse_ending(std::string_view ending) {
  std::string_view rest = ending;
  const auto take = [&](auto& number, int base) {
    const auto [stop, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number, base);
    if (error != std::errc()) return false;
    rest.remove_prefix(static_cast<std::size_t>(stop - rest.data()));
    return true;
  };
  const auto skip = [&](std::string_view letters) {
    if (!rest.starts_with(letters)) return false;
    rest.remove_prefix(letters.size());
    return true;
  };
  NamedShard found;
  int place = 0;
  if (!skip(growing)) {
    found.saving = 0;
    if (!skip(".") || !take(*found.saving, 16)) return std::nullopt;
  }
  if (!skip(".") || !take(place, 10) || !skip("of") || !take(found.shard.ranks, 10)) return std::nullopt;
  found.shard.rank = place - 1;
  if (found.shard.ranks < 2 || place < 1 || place > found.shard.ranks) return std::nullopt;
  const std::string own = found.saving ? shard_ending(*found.saving, found.shard) : growing_ending(found.shard);
  if (own != ending) return std::nullopt;  // written in another way
  return found;
}

}  // namespace

std::array<std::byte, manifest_bytes> encode_manifest(const ShardManifest& manifest) {
  ByteWriter out;
  out.array(std::span<const char>(manifest_magic));
  out.number(newest_manifest);
  out.number(std::int32_t{manifest.shards});
  out.number(manifest.saving);
  out.number(manifest.tokens);
  out.array(std::span<const std::uint8_t>(manifest.fingerprint));
  const std::vector<std::byte> bytes = out.take();
  const std::uint64_t checksum = snapshot_checksum(bytes);
  std::array<std::byte, manifest_bytes> image;
  std::ranges::copy(bytes, image.begin());
  std::memcpy(image.data() + manifest_checksum_place, &checksum, sizeof checksum);
  return image;
}

std::optional<ShardManifest> decode_manifest(std::span<const std::byte> bytes) {
  if (bytes.size() < manifest_magic.size() ||
      std::memcmp(bytes.data(), manifest_magic.data(), manifest_magic.size()) != 0)
    return std::nullopt;
  ByteReader in(bytes.subspan(manifest_magic.size()), "its manifest ends too early");
  const auto version = in.number<std::uint32_t>();
  if (version > newest_manifest) {
    fail("its manifest was written by a newer hayloft (format version {}); update hayloft to read it", version);
  }
  ShardManifest manifest;
  manifest.shards = in.number<std::int32_t>();
  manifest.saving = in.number<std::uint64_t>();
  manifest.tokens = in.number<std::int64_t>();
  in.into(std::span<std::uint8_t>(manifest.fingerprint));
  const auto checksum = in.number<std::uint64_t>();
  if (version == 0 || !in.done() || checksum != snapshot_checksum(bytes.first(manifest_checksum_place))) {
    fail("damaged: its manifest does not match its checksum; restore the file from a copy");
  }
  if (manifest.shards < 2 || manifest.shards > snapshot_shards) {
    fail("damaged: its manifest says {} shards, must be 2 to {}", manifest.shards, snapshot_shards);
  }
  if (manifest.tokens < 1 || manifest.tokens > most_manifest_tokens) {
    fail("damaged: its manifest says {} tokens, must be 1 to {}", manifest.tokens, most_manifest_tokens);
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

std::filesystem::path growing_shard_path(const std::filesystem::path& path, const Shard& shard) {
  std::filesystem::path beside = resolve_links(path);
  beside += growing_ending(shard);
  return beside;
}

std::vector<NamedShard> find_shards(const std::filesystem::path& path) {
  const std::filesystem::path context = resolve_links(path);
  const std::string name = context.filename().string();
  std::vector<NamedShard> found;
  std::error_code error;
  for (std::filesystem::directory_iterator at(context.parent_path(), error), end; !error && at != end;
       at.increment(error)) {
    const std::string file = at->path().filename().string();
    if (!file.starts_with(name)) continue;
    std::optional<NamedShard> shard = parse_ending(std::string_view(file).substr(name.size()));
    if (!shard) continue;
    shard->file = at->path();
    found.push_back(std::move(*shard));
  }
  std::ranges::sort(found, {}, &NamedShard::file);
  return found;
}

}  // namespace hayloft::offload
