#include "offload/snapshot/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

#include "offload/error.h"
#include "offload/snapshot/shards.h"

namespace hayloft::offload {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const char* what, int cause) {
  const bool for_now = cause == EMFILE || cause == ENFILE || cause == ENOMEM;  // of this process, or of the system
  if (for_now) fail_for_memory("{}: {}: {}", path.string(), what, std::generic_category().message(cause));
  fail("{}: {}: {}", path.string(), what, std::generic_category().message(cause));
}

}  // namespace

SnapshotFile::SnapshotFile(std::filesystem::path path, int descriptor)
    : path_(std::move(path)), descriptor_(descriptor) {}

SnapshotFile::~SnapshotFile() {
  ::close(descriptor_);
}

std::shared_ptr<SnapshotFile> SnapshotFile::open(const std::filesystem::path& path, Mode mode) {
  // Not to wait for the other end of a pipe.
  const int flags = (mode == Mode::read ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NONBLOCK;
  const int descriptor = ::open(path.c_str(), flags);
  if (descriptor < 0) refuse(path, mode == Mode::read ? "cannot be opened" : "cannot be opened for writing", errno);
  std::shared_ptr<SnapshotFile> file(new SnapshotFile(path, descriptor));
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) refuse(path, "cannot be examined", errno);
  if (!S_ISREG(status.st_mode)) fail("{}: not a hayloft context: not a regular file", path.string());
  return file;
}

std::shared_ptr<SnapshotFile> SnapshotFile::create(const std::filesystem::path& path,
                                                   const std::filesystem::path& temporary) {
  const int descriptor = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) refuse(path, "cannot be written", errno);
  return std::shared_ptr<SnapshotFile>(new SnapshotFile(path, descriptor));
}

std::uint64_t SnapshotFile::bytes() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) refuse(path_, "cannot be examined", errno);
  return static_cast<std::uint64_t>(status.st_size);
}

void SnapshotFile::read(std::uint64_t offset, std::span<std::byte> to) const {
  constexpr std::size_t most = std::size_t{1} << 30;  // Linux reads a little under 2 GiB at a time
  while (!to.empty()) {
    const ssize_t got = ::pread(descriptor_, to.data(), std::min(to.size(), most), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(path_, "cannot be read", errno);
    if (got == 0) fail("{}: truncated while it was being read, at byte {}", path_.string(), offset);
    offset += static_cast<std::uint64_t>(got);
    to = to.subspan(static_cast<std::size_t>(got));
  }
}

void SnapshotFile::lock() const {
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  if (errno == EWOULDBLOCK) fail("{}: another process is writing to it; wait until it ends", path_.string());
  refuse(path_, "cannot be locked", errno);
}

void SnapshotFile::unlock() const noexcept {
  ::flock(descriptor_, LOCK_UN);
}

void SnapshotFile::refuse_damaged(const std::string& what) const {
  fail("{}: damaged: {}; make the context again or restore the file from a copy", path_.string(), what);
}

std::string SnapshotFile::damaged_slot(const SnapshotHeader& last) const {
  for (const std::uint64_t slot : {0, 1}) {
    std::vector<std::byte> bytes(snapshot_slot_bytes);
    read(slot * snapshot_slot_bytes, bytes);
    if (decode_slot(bytes).kind == SnapshotSlot::Kind::valid) continue;
    // Nothing is there before the second checkpoint, nor of shards after one that was taken back.
    const bool empty = std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{}; });
    if (empty && (!last.complete || !last.description.shard.alone())) continue;
    return fmt::format("{}: slot {} of the two of its header is damaged", path_.string(), slot);
  }
  return "";
}

SnapshotHeader SnapshotFile::newest_header() const {
  const std::uint64_t size = bytes();
  std::vector<std::byte> header(snapshot_header_bytes);
  read(0, std::span(header).first(std::min(size, snapshot_header_bytes)));
  std::array<SnapshotSlot, 2> slots;
  const SnapshotSlot* newest = nullptr;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    slots[i] = decode_slot(std::span(header).subspan(i * snapshot_slot_bytes, snapshot_slot_bytes));
    if (slots[i].kind != SnapshotSlot::Kind::valid) continue;
    if (slots[i].header.sequence % 2 != i) refuse_damaged("a header slot is in the other's place");
    if (!newest || slots[i].header.sequence > newest->header.sequence) newest = &slots[i];
  }
  for (const SnapshotSlot& slot : slots) {
    if (slot.kind == SnapshotSlot::Kind::newer) {
      fail("{}: written by a newer hayloft (format version {}); update hayloft to read it", path_.string(),
           slot.version);
    }
  }
  if (!newest) {
    if (slots[0].kind == SnapshotSlot::Kind::foreign && slots[1].kind == SnapshotSlot::Kind::foreign) {
      if (read_manifest(path_)) {
        fail(
            "{}: is a context in shards, to which one process cannot add; start as many ranks as there are shards, "
            "or make another context",
            path_.string());
      }
      fail("{}: not a hayloft context", path_.string());
    }
    if (size < snapshot_header_bytes) fail("{}: truncated at {} bytes, within its header", path_.string(), size);
    refuse_damaged("its header does not match its checksum");
  }
  try {
    check_header(newest->header);
  } catch (const Error& error) {
    refuse_damaged(fmt::format("its header says: {}", error.what()));
  }
  if (size < newest->header.file_bytes) {
    fail("{}: truncated at {} of {} bytes; copy it again or make it again", path_.string(), size,
         newest->header.file_bytes);
  }
  return newest->header;
}

SnapshotState SnapshotFile::last_checkpoint() const {
  SnapshotHeader header = newest_header();
  while (true) {
    std::vector<std::byte> image(header.metadata.bytes);
    read(header.metadata.offset, image);
    if (snapshot_checksum(image) == header.metadata_checksum) {
      try {
        return decode_metadata(header, image);
      } catch (const Error& error) {
        refuse_damaged(fmt::format("its metadata say: {}", error.what()));
      }
    }
    // Two checkpoints written meanwhile would have put theirs in the same place.
    const SnapshotHeader again = newest_header();
    if (again.sequence == header.sequence) refuse_damaged("its metadata do not match their checksum");
    header = again;
  }
}

std::optional<SnapshotState> SnapshotFile::checkpoint_before(const SnapshotHeader& last) const {
  const std::uint64_t sequence = last.sequence - 1;
  if (sequence == 0 || bytes() < snapshot_header_bytes) return std::nullopt;
  std::vector<std::byte> bytes_of_slot(snapshot_slot_bytes);
  read(sequence % 2 * snapshot_slot_bytes, bytes_of_slot);
  const SnapshotSlot slot = decode_slot(bytes_of_slot);
  if (slot.kind != SnapshotSlot::Kind::valid || slot.header.sequence != sequence) return std::nullopt;
  try {
    check_header(slot.header);
    if (bytes() < slot.header.file_bytes) return std::nullopt;
    std::vector<std::byte> image(slot.header.metadata.bytes);
    read(slot.header.metadata.offset, image);
    if (snapshot_checksum(image) != slot.header.metadata_checksum) return std::nullopt;
    return decode_metadata(slot.header, image);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace hayloft::offload
