#include "offload/snapshot/writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "offload/error.h"
#include "offload/output_file.h"
#include "offload/snapshot/continuation.h"
#include "offload/snapshot/writer_file.h"
#include "offload/temporary_file.h"
#include "offload/text/format.h"

namespace hayloft::offload {
namespace {

void check_note(const std::filesystem::path& path, const std::string& note) {
  if (note.size() > snapshot_note_bytes) {
    fail("{}: a note of {} bytes cannot be saved, at most {}", path.string(), note.size(), snapshot_note_bytes);
  }
}

void check_description(const std::filesystem::path& path, const SnapshotDescription& description) {
  if (description.model_layers < std::max(1, description.shape.layers)) {
    throw std::logic_error(fmt::format("SnapshotWriter: a model of {} layers for a store of {}",
                                       description.model_layers, description.shape.layers));
  }
  if (description.model.name.size() > snapshot_name_bytes) {
    fail("{}: a model name of {} bytes cannot be saved, at most {}", path.string(), description.model.name.size(),
         snapshot_name_bytes);
  }
  check_note(path, description.note);
}

std::filesystem::path real_path(const std::filesystem::path& path) {
  if (path.filename().empty()) fail("{}: names a folder, not a file", path.string());
  return resolve_links(path);
}

bool same_file(const SnapshotFile& file, const std::filesystem::path& path) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(file.descriptor(), &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

// Opened and locked, and still what the path names: another writer may have renamed it before the lock was ours.
std::shared_ptr<const SnapshotFile> open_locked(const std::filesystem::path& path) {
  auto file = SnapshotFile::open(path, SnapshotFile::Mode::write);
  file->lock();
  if (!same_file(*file, path)) fail("{}: was replaced while it was being opened; try again", path.string());
  return file;
}

bool is_locked(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool locked = ::flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(descriptor);
  return locked;
}

// There is a file where a new one was to be. Who has looked for it before and found none has been overtaken by another
// process.
[[noreturn]] void refuse_existing(const std::filesystem::path& path) {
  if (is_locked(path)) fail("{}: another process is writing to it; wait until it ends", path.string());
  fail("{}: exists; name another file or remove it", path.string());
}

// A context that takes the place of another has its permissions.
void take_permissions(const SnapshotFile& file, const std::filesystem::path& replaced) {
  struct stat status {};
  if (::stat(replaced.c_str(), &status) != 0) return;
  if (::fchmod(file.descriptor(), status.st_mode & 07777) != 0) {
    fail("{}: its permissions cannot be kept: {}", replaced.string(), std::generic_category().message(errno));
  }
}

}  // namespace

SnapshotCalls system_calls() {
  return {[](int descriptor, const void* data, std::size_t bytes, off_t offset) {
            return ::pwrite(descriptor, data, bytes, offset);
          },
          [](int descriptor) { return ::fdatasync(descriptor); },
          [](int descriptor, off_t bytes) { return ::ftruncate(descriptor, bytes); },
          [](const std::filesystem::path& folder) -> std::optional<std::uint64_t> {
            struct statvfs status {};
            if (::statvfs(folder.c_str(), &status) != 0 || status.f_blocks == 0) return std::nullopt;
            return std::uint64_t{status.f_bavail} * status.f_frsize;
          }};
}

void require_free(const std::filesystem::path& path, std::uint64_t bytes, const SnapshotCalls& calls) {
  if (!calls.free_bytes) return;
  const std::optional<std::uint64_t> free = calls.free_bytes(real_path(path).parent_path());
  if (!free || *free >= bytes) return;
  fail("{}: saving it takes at least {} more of the disk, where {} are free; free space there or name another place",
       path.string(), format_bytes(bytes), format_bytes(*free));
}

SnapshotWriter::SnapshotWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SnapshotWriter::SnapshotWriter(SnapshotWriter&&) noexcept = default;
SnapshotWriter& SnapshotWriter::operator=(SnapshotWriter&&) noexcept = default;
SnapshotWriter::~SnapshotWriter() = default;

SnapshotWriter SnapshotWriter::create(const std::filesystem::path& path, const SnapshotDescription& description,
                                      bool overwrite, SnapshotCalls calls) {
  check_description(path, description);
  const std::filesystem::path target = real_path(path);
  std::shared_ptr<const SnapshotFile> replaced;
  if (std::filesystem::exists(target)) {
    if (!overwrite) refuse_existing(path);
    replaced = open_locked(path);  // nobody may be writing to it
  }

  SnapshotState first;
  first.header.description = description;
  first.header.version = needed_version(description, /*with_points=*/false);
  first.header.file_bytes = snapshot_header_bytes;
  first.layout = BlockLayout(description.shape);
  const std::size_t sums =
      static_cast<std::size_t>(description.shape.kv_heads) * static_cast<std::size_t>(description.shape.head_dim);
  const std::size_t spread = in_planes(description.shape.columns) ? sums : 0;
  first.metadata.layers.assign(
      static_cast<std::size_t>(description.shape.layers),
      SavedLayer{
          0, {}, std::vector<double>(sums), std::vector<double>(spread), std::vector<double>(whole_sums(description))});
  const std::vector<TailImage> tails(static_cast<std::size_t>(description.model_layers));

  remove_abandoned(target);
  const std::filesystem::path temporary = temporary_name(target);
  auto impl = std::make_unique<Impl>(SnapshotFile::create(path, temporary), target, std::move(calls));
  try {
    impl->file->lock();
    take_permissions(*impl->file, target);
    impl->state = std::make_shared<const SnapshotState>(first);
    first.header.sequence = 1;
    impl->write_area(first, tails);
    impl->commit(std::move(first));
    const unsigned no_replace = overwrite ? 0 : RENAME_NOREPLACE;
    if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, target.c_str(), no_replace) != 0 &&
        // File systems that know no flags.
        (errno != EINVAL || ::rename(temporary.c_str(), target.c_str()) != 0)) {
      const int cause = errno;
      if (cause == EEXIST) refuse_existing(path);
      fail("{}: cannot be written: {}", path.string(), std::generic_category().message(cause));
    }
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_folder(target.parent_path());
  return SnapshotWriter(std::move(impl));
}

SnapshotWriter SnapshotWriter::open_to_append(const std::filesystem::path& path, SnapshotCalls calls) {
  auto impl = std::make_unique<Impl>(open_locked(path), real_path(path), std::move(calls));
  impl->adopt(std::make_shared<const SnapshotState>(impl->file->last_checkpoint()));
  impl->drop_leftovers();
  return SnapshotWriter(std::move(impl));
}

Snapshot SnapshotWriter::snapshot() const {
  return Snapshot(impl_->file, impl_->state);
}

void SnapshotWriter::keep(int checkpoints) {
  if (checkpoints < 1 || checkpoints > static_cast<int>(snapshot_points)) {
    fail("a context cannot keep {} checkpoints, must be 1 to {}", checkpoints, snapshot_points);
  }
  impl_->most_points = static_cast<std::size_t>(checkpoints);
}

void SnapshotWriter::set_note(std::string note) {
  check_note(impl_->file->path(), note);
  impl_->note = std::move(note);
}

void SnapshotWriter::go_back(std::int64_t tokens) {
  if (tokens >= impl_->state->header.tokens) return;
  std::optional<SnapshotState> earlier = state_back_to(*impl_->state, tokens);
  if (!earlier) throw std::logic_error(fmt::format("SnapshotWriter: no checkpoint at {} tokens or before", tokens));
  // Token segments are whole: what the last one has beyond is written again with the next checkpoint.
  std::vector<SavedTokens>& segments = earlier->metadata.segments;
  std::int64_t whole = 0;
  std::size_t count = 0;
  while (count < segments.size() && whole + segments[count].count <= earlier->header.tokens) {
    whole += segments[count++].count;
  }
  segments.resize(count);
  earlier->header.tokens = whole;
  earlier->header.finished_tokens = std::min(earlier->header.finished_tokens, whole);
  impl_->state = std::make_shared<const SnapshotState>(std::move(*earlier));
}

std::uint64_t SnapshotWriter::sequence() const {
  return impl_->state->header.sequence;
}

bool SnapshotWriter::take_back() {
  impl_->require_syncing();
  std::optional<SnapshotState> before = impl_->file->checkpoint_before(impl_->state->header);
  if (!before) return false;
  // An empty slot: what the next checkpoint writes over the last one's metadata must not be taken for damage.
  impl_->write(impl_->state->header.sequence % 2 * snapshot_slot_bytes, std::vector<std::byte>(snapshot_slot_bytes));
  impl_->sync();
  impl_->adopt(std::make_shared<const SnapshotState>(std::move(*before)));
  impl_->drop_leftovers();
  return true;
}

std::int64_t SnapshotWriter::token_count() const {
  return impl_->state->header.tokens;
}

std::uint64_t SnapshotWriter::file_bytes() const {
  return impl_->state->header.file_bytes;
}

void SnapshotWriter::checkpoint(const Store& store, std::span<const std::int32_t> tokens,
                                std::span<const TailImage> tails, std::span<const SnapshotAttachment> attachments,
                                bool complete) {
  check_continues(impl_->file->path(), *impl_->state, store, tokens, tails);
  impl_->require_syncing();
  SnapshotState next = *impl_->state;
  next.header.sequence += 1;
  next.header.complete = complete;
  if (impl_->note) next.header.description.note = *impl_->note;
  impl_->write_new_blocks(next, store);
  for (const TailImage& tail : tails) {
    if (tail.store_layer < 0) continue;
    const auto of_all = tail.whole_sum.first(whole_sums(next.header.description));
    next.metadata.layers[static_cast<std::size_t>(tail.store_layer)].whole_sum.assign(of_all.begin(), of_all.end());
  }
  impl_->write_point(next, tails);
  impl_->write_new_tokens(next, tokens);
  if (complete) next.header.finished_tokens = next.header.tokens;
  impl_->write_attachments(next, attachments);
  impl_->write_area(next, tails);
  impl_->commit(std::move(next));
}

void SnapshotWriter::finish(const std::filesystem::path& final_path) {
  impl_->require_syncing();
  const std::filesystem::path target = real_path(final_path);
  impl_->drop_leftovers();
  // In both slots: damage to one of them then costs nothing.
  for (int slot = impl_->state->header.complete ? 1 : 0; slot < 2; ++slot) {
    SnapshotState next = *impl_->state;
    next.header.sequence += 1;
    next.header.complete = true;
    next.header.finished_tokens = next.header.tokens;
    impl_->commit(std::move(next));
  }
  if (target != impl_->path) {
    take_permissions(*impl_->file, target);
    if (::rename(impl_->path.c_str(), target.c_str()) != 0) {
      fail("{}: cannot be written: {}; the finished context is kept as {}", final_path.string(),
           std::generic_category().message(errno), impl_->path.string());
    }
    sync_folder(target.parent_path());
  }
  impl_.reset();
}

}  // namespace hayloft::offload
