#include "offload/snapshot/writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "offload/error.h"
#include "offload/output_file.h"
#include "offload/snapshot/continuation.h"
#include "offload/snapshot/file.h"
#include "offload/temporary_file.h"

namespace hayloft::offload {
namespace {

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + snapshot_alignment - 1) / snapshot_alignment * snapshot_alignment;
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
  if (description.note.size() > snapshot_note_bytes) {
    fail("{}: a note of {} bytes cannot be saved, at most {}", path.string(), description.note.size(),
         snapshot_note_bytes);
  }
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

// A context that takes the place of another has its permissions.
void take_permissions(const SnapshotFile& file, const std::filesystem::path& replaced) {
  struct stat status {};
  if (::stat(replaced.c_str(), &status) != 0) return;
  if (::fchmod(file.descriptor(), status.st_mode & 07777) != 0) {
    fail("{}: its permissions cannot be kept: {}", replaced.string(), std::generic_category().message(errno));
  }
}

std::span<const std::byte> bytes_of(const TailImage& tail) {
  return tail.state.empty() ? std::as_bytes(tail.rows) : std::as_bytes(tail.state);
}

bool disk_full(int cause) {
  return cause == ENOSPC || cause == EDQUOT || cause == EFBIG;
}

}  // namespace

SnapshotCalls system_calls() {
  return {[](int descriptor, const void* data, std::size_t bytes, off_t offset) {
            return ::pwrite(descriptor, data, bytes, offset);
          },
          [](int descriptor) { return ::fdatasync(descriptor); },
          [](int descriptor, off_t bytes) { return ::ftruncate(descriptor, bytes); }};
}

struct SnapshotWriter::Impl {
  Impl(std::shared_ptr<const SnapshotFile> opened, std::filesystem::path real, SnapshotCalls to_use)
      : file(std::move(opened)), path(std::move(real)), calls(std::move(to_use)) {}
  ~Impl() { file->unlock(); }  // a Snapshot may go on using the file
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const std::shared_ptr<const SnapshotFile> file;
  const std::filesystem::path path;  // links followed
  const SnapshotCalls calls;
  std::shared_ptr<const SnapshotState> state;  // of the last checkpoint
  bool failed_sync = false;

  std::string kept() const {
    if (state->header.sequence == 0) return "nothing was saved";
    return fmt::format("the checkpoint at {} tokens is kept", state->header.tokens);
  }

  [[noreturn]] void refuse(const char* what, int cause) const {
    fail("{}: {}: {}; {}; {}, then run the same command again", file->path().string(), what,
         std::generic_category().message(cause), kept(),
         disk_full(cause) ? "free space or raise the limit" : "check the disk");
  }

  void write(std::uint64_t offset, std::span<const std::byte> bytes) const {
    constexpr std::size_t most = std::size_t{1} << 30;  // Linux writes a little under 2 GiB at a time
    while (!bytes.empty()) {
      const std::size_t piece = std::min(bytes.size(), most);
      const ssize_t written = calls.write(file->descriptor(), bytes.data(), piece, static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) refuse("cannot be written", written < 0 ? errno : ENOSPC);
      offset += static_cast<std::uint64_t>(written);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  void sync() {
    if (calls.sync(file->descriptor()) == 0) return;
    const int cause = errno;
    failed_sync = true;
    refuse("cannot be synced to the disk", cause);
  }

  void resize(std::uint64_t bytes) const {
    if (calls.resize(file->descriptor(), static_cast<off_t>(bytes)) != 0) refuse("cannot be resized", errno);
  }

  // What an interrupted checkpoint left behind the last one is in nobody's way, but takes up the disk.
  void drop_leftovers() const {
    if (file->bytes() > state->header.file_bytes) resize(state->header.file_bytes);
  }

  // Everything `next` refers to is written; makes it the state. The slot is the one that the last checkpoint is not in.
  void commit(SnapshotState next) {
    auto committed = std::make_shared<const SnapshotState>(std::move(next));
    sync();
    const SnapshotHeader& header = committed->header;
    write(header.sequence % 2 * snapshot_slot_bytes, encode_slot(header));
    sync();
    state = std::move(committed);
  }

  // Chooses the place of the metadata and the tails, and writes both: the area that the last checkpoint does not use,
  // or, when they have outgrown it, a larger one at the end. Half as much again is left for growth, so that all the
  // areas ever left behind are no larger than twice the last.
  void write_area(SnapshotState& next, std::span<const TailImage> tails) const {
    SnapshotHeader& header = next.header;
    const BlockLayout& layout = next.layout;
    next.metadata.tails.clear();
    std::uint64_t rows = 0;
    for (const TailImage& tail : tails) {
      if (!tail.state.empty()) header.version = std::max<std::uint32_t>(header.version, 4);
      next.metadata.tails.push_back({tail.store_layer, tail.position, tail.tokens, rows,
                                     snapshot_checksum(bytes_of(tail)), tail.state.size()});
      rows += saved_bytes(layout, next.metadata.tails.back());
    }
    const std::uint64_t metadata = encode_metadata(next).size();
    const std::uint64_t rows_place = (metadata + 63) / 64 * 64;

    ByteRange& area = header.areas[static_cast<std::size_t>(1 - state->header.area())];
    if (area.bytes < rows_place + rows) {
      area = {header.file_bytes, aligned((rows_place + rows) * 3 / 2)};
      header.file_bytes = area.end();
    }
    header.metadata = {area.offset, metadata};
    for (SavedTail& tail : next.metadata.tails) tail.offset += area.offset + rows_place;
    const std::vector<std::byte> image = encode_metadata(next);
    header.metadata_checksum = snapshot_checksum(image);

    if (file->bytes() < header.file_bytes) resize(header.file_bytes);
    write(header.metadata.offset, image);
    for (std::size_t i = 0; i < tails.size(); ++i) {
      write(next.metadata.tails[i].offset, bytes_of(tails[i]));
    }
  }

  void write_new_blocks(SnapshotState& next, const Store& store) const {
    for (int index = 0; index < store.shape().layers; ++index) {
      SavedLayer& saved = next.metadata.layers[static_cast<std::size_t>(index)];
      const LayerView layer = store.layer(index);
      for (std::size_t i = saved.blocks.size(); i < layer.blocks.size(); ++i) {
        const std::span<const std::byte> block(layer.blocks[i], next.layout.block_bytes);
        saved.blocks.push_back({next.header.file_bytes, snapshot_checksum(block)});
        write(next.header.file_bytes, block);
        next.header.file_bytes += aligned(block.size());
      }
      saved.tokens = layer.tokens;
      const std::span<const double> sum = store.exact_value_sum(index);
      saved.value_sum.assign(sum.begin(), sum.end());
      const std::span<const double> spread = store.exact_spread(index);
      saved.spread.assign(spread.begin(), spread.end());
    }
  }

  // On pages of their own: what a later checkpoint writes never touches a page of this one.
  void write_new_tokens(SnapshotState& next, std::span<const std::int32_t> tokens) const {
    const auto fresh = tokens.subspan(static_cast<std::size_t>(state->header.tokens));
    next.header.tokens = static_cast<std::int64_t>(tokens.size());
    if (fresh.empty()) return;
    const auto bytes = std::as_bytes(fresh);
    next.metadata.segments.push_back(
        {next.header.file_bytes, static_cast<std::int64_t>(fresh.size()), snapshot_checksum(bytes)});
    write(next.header.file_bytes, bytes);
    next.header.file_bytes += aligned(bytes.size());
  }

  void write_attachments(SnapshotState& next, std::span<const SnapshotAttachment> attachments) const {
    std::vector<SavedAttachment>& saved = next.metadata.attachments;
    for (const SnapshotAttachment& attachment : attachments) {
      if (attachment.name.empty() || attachment.name.size() > snapshot_name_bytes) {
        fail("{}: an attachment's name of {} bytes cannot be saved, must be 1 to {}", file->path().string(),
             attachment.name.size(), snapshot_name_bytes);
      }
      std::erase_if(saved, [&](const SavedAttachment& other) { return other.name == attachment.name; });
      if (saved.size() == snapshot_attachments) {
        fail("{}: holds {} attachments already, the most that there may be", file->path().string(), saved.size());
      }
      saved.push_back(
          {attachment.name, next.header.file_bytes, attachment.bytes.size(), snapshot_checksum(attachment.bytes)});
      write(next.header.file_bytes, attachment.bytes);
      next.header.file_bytes += aligned(attachment.bytes.size());
    }
    if (next.header.version < 3) next.header.version = saved.empty() ? 1 : 2;
  }

  void require_syncing() const {
    if (failed_sync) {
      fail("{}: an earlier sync to the disk failed; {}; check the disk, then run the same command again",
           file->path().string(), kept());
    }
  }
};

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
    if (!overwrite) fail("{}: exists; name another file or remove it", path.string());
    replaced = open_locked(path);  // nobody may be writing to it
  }

  SnapshotState first;
  first.header.description = description;
  if (description.shape.rows != RowFormat::f16) first.header.version = 3;
  first.header.file_bytes = snapshot_header_bytes;
  first.layout = BlockLayout(description.shape);
  const std::size_t sums =
      static_cast<std::size_t>(description.shape.kv_heads) * static_cast<std::size_t>(description.shape.head_dim);
  const std::size_t spread = description.shape.columns == ColumnFormat::planes ? sums : 0;
  first.metadata.layers.assign(static_cast<std::size_t>(description.shape.layers),
                               SavedLayer{0, {}, std::vector<double>(sums), std::vector<double>(spread)});
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
      fail("{}: cannot be written: {}", path.string(), std::generic_category().message(errno));
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
  impl->state = std::make_shared<const SnapshotState>(impl->file->last_checkpoint());
  impl->drop_leftovers();
  return SnapshotWriter(std::move(impl));
}

Snapshot SnapshotWriter::snapshot() const {
  return Snapshot(impl_->file, impl_->state);
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
  impl_->write_new_blocks(next, store);
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
