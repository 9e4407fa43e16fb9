#include "runtime/serve/contexts.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <span>

#include "offload/error.h"
#include "offload/snapshot/format.h"
#include "offload/snapshot/shards.h"
#include "offload/snapshot/writer.h"
#include "offload/text/visible.h"
#include "runtime/context/hot_file.h"

namespace hayloft::runtime::serve {
namespace {

constexpr std::size_t longest_name = 100;

bool is_regular(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

// A context, whole, damaged or of a newer version, or the manifest of one; nothing else that has such a name.
bool begins_as_context(const std::filesystem::path& path) {
  std::vector<char> bytes(2 * offload::snapshot_slot_bytes);
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const auto read = std::as_bytes(std::span(bytes).first(static_cast<std::size_t>(file.gcount())));
  const auto all = std::as_bytes(std::span(bytes));
  for (const std::size_t at : {std::size_t{0}, std::size_t{offload::snapshot_slot_bytes}}) {
    const offload::SnapshotSlot slot = offload::decode_slot(all.subspan(at, offload::snapshot_slot_bytes));
    if (slot.kind != offload::SnapshotSlot::Kind::foreign) return true;
  }
  try {
    return offload::decode_manifest(read.first(std::min(read.size(), offload::manifest_bytes))).has_value();
  } catch (const Error&) {  // it is one, damaged
    return true;
  }
}

bool plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

}  // namespace

void check_context_name(std::string_view name) {
  const bool fits = !name.empty() && name.size() <= longest_name && plain(name.front()) &&
                    std::ranges::all_of(name, [](char c) { return plain(c) || c == '.' || c == '_' || c == '-'; });
  if (!fits) {
    fail("context \"{}\": a name has 1 to {} letters, digits, '.', '_' or '-' and begins with a letter or digit",
         visible(name.substr(0, longest_name), Lines::joined), longest_name);
  }
}

std::filesystem::path Contexts::path(std::string_view name) const {
  check_context_name(name);
  if (!available()) fail("no saved contexts are served: start hayloft serve with --contexts DIR");
  return directory_ / (std::string(name) + ".hay");
}

bool Contexts::contains(std::string_view name) const {
  return is_regular(path(name));
}

ContextStamp Contexts::stamp(std::string_view name) const {
  struct stat status {};
  if (::stat(path(name).c_str(), &status) != 0) return {};
  return {status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size), status.st_mtim.tv_sec,
          status.st_mtim.tv_nsec};
}

std::vector<ContextEntry> Contexts::list(const offload::ModelIdentity& model) const {
  std::vector<ContextEntry> entries;
  if (!available()) return entries;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(directory_, error)) {
    if (file.path().extension() != ".hay" || !file.is_regular_file(error)) continue;
    ContextEntry entry{file.path().stem().string(), 0, 0, {}};
    try {
      check_context_name(entry.name);
      const offload::Snapshot snapshot = offload::Snapshot::open(file.path());
      entry.tokens = snapshot.token_count();
      entry.bytes = snapshot.file_bytes();
      snapshot.require_model(model);
    } catch (const Error& problem) {
      entry.problem = problem.what();
    }
    entries.push_back(std::move(entry));
  }
  std::ranges::sort(entries, {}, &ContextEntry::name);
  return entries;
}

void Contexts::remove_part(std::string_view name) const {
  std::filesystem::path part = path(name);
  part += ".part";
  if (!is_regular(part)) return;
  const offload::SnapshotWriter locked = offload::SnapshotWriter::open_to_append(part);
  std::error_code error;
  std::filesystem::remove(part, error);
  if (error) fail("{} cannot be removed: {}", part.string(), error.message());
}

bool Contexts::remove(std::string_view name) const {
  const std::filesystem::path file = path(name);
  if (!is_regular(file)) return false;  // a pipe or a folder of this name is no context, and not listed as one
  if (!begins_as_context(file)) {
    fail("context \"{}\": the file of this name is no saved context and is left alone; remove it by hand", name);
  }
  std::vector<std::filesystem::path> beside{hot_file_of(file)};  // of no use without it
  try {
    if (const auto manifest = offload::read_manifest(file)) {
      for (int i = 0; i < manifest->shards; ++i) {
        beside.push_back(offload::shard_path(file, manifest->saving, {i, manifest->shards}));
      }
    }
  } catch (const Error&) {  // damaged: its shards cannot be told from another's
  }
  std::error_code error;
  const bool removed = std::filesystem::remove(file, error);  // from here on there is no such context
  if (error) fail("context \"{}\" cannot be removed: {}", name, error.message());
  for (const std::filesystem::path& other : beside) {
    if (!is_regular(other)) continue;
    std::filesystem::remove(other, error);
    if (error) fail("context \"{}\" is removed, but not {}: {}", name, other.string(), error.message());
  }
  return removed;
}

}  // namespace hayloft::runtime::serve
