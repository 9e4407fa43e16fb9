#include "offload/host/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <system_error>
#include <vector>

#include "offload/error.h"
#include "offload/text/format.h"

namespace hayloft::offload {
namespace {

constexpr std::uintptr_t page_bytes = 4096;

// One mapped file, as the handler needs it: it may run at any moment, in any thread, so it takes no lock and only reads
// words that are written atomically. A slot is in use while end > begin.
struct Slot {
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};
  std::atomic<bool> truncated{false};
  const MappedFile* file = nullptr;  // guarded by `mutex`
};

std::array<Slot, 1024> slots;
std::atomic<bool> any_truncated{false};
std::mutex mutex;

// Puts zeros in place of what is missing, up to the end of the mapping, and makes a note of it.
void handle_bus_error(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (Slot& slot : slots) {
    if (info->si_code != BUS_ADRERR) break;  // sent by a process, or broken memory
    const std::uintptr_t end = slot.end.load(std::memory_order_acquire);
    if (address < slot.begin.load(std::memory_order_acquire) || address >= end) continue;
    const std::uintptr_t page = address / page_bytes * page_bytes;
    const int cause = errno;
    void* const zeros = ::mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    errno = cause;
    if (zeros == MAP_FAILED) break;
    slot.truncated.store(true);
    any_truncated.store(true);
    return;
  }
  // Not ours: the system does what it would have done.
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGBUS, &action, nullptr);
  ::raise(SIGBUS);
}

int take_slot(const MappedFile* file, std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = slots[i];
    if (slot.file) continue;
    slot.file = file;
    slot.truncated.store(false);
    const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
    slot.begin.store(begin, std::memory_order_release);
    slot.end.store((begin + bytes.size() + page_bytes - 1) / page_bytes * page_bytes, std::memory_order_release);
    return static_cast<int>(i);
  }
  return -1;
}

void free_slot(int index) {
  if (index < 0) return;
  const std::lock_guard lock(mutex);
  Slot& slot = slots[static_cast<std::size_t>(index)];
  slot.end.store(0, std::memory_order_release);
  slot.begin.store(0, std::memory_order_release);
  slot.file = nullptr;
}

}  // namespace

MappedFile::MappedFile(int descriptor, std::uint64_t bytes, const std::filesystem::path& path)
    : bytes_(bytes), path_(path) {
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) {
    fail_for_memory("{}: {} cannot be mapped: {}; raise the process' limit (ulimit -v) if there is one", path.string(),
                    format_bytes(bytes), std::generic_category().message(errno));
  }
  data_ = static_cast<const std::byte*>(mapped);
  slot_ = take_slot(this, this->bytes());
}

MappedFile::~MappedFile() {
  free_slot(slot_);
  ::munmap(const_cast<std::byte*>(data_), bytes_);
}

bool MappedFile::is_whole() const {
  return slot_ < 0 || !slots[static_cast<std::size_t>(slot_)].truncated.load();
}

void MappedFile::check() const {
  if (is_whole()) return;
  fail("{}: was cut short by another program while it was in use; what was read of it is lost: restore the file",
       path_.string());
}

std::shared_ptr<const MappedFile> map_shared(int descriptor, std::uint64_t bytes, const std::filesystem::path& path) {
  struct Shared {
    dev_t device;
    ino_t inode;
    std::filesystem::path path;
    std::weak_ptr<const MappedFile> file;
  };
  static std::mutex of_shared;
  static std::vector<Shared> all;
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return std::make_shared<const MappedFile>(descriptor, bytes, path);
  const std::lock_guard lock(of_shared);
  std::erase_if(all, [](const Shared& shared) { return shared.file.expired(); });
  for (const Shared& shared : all) {
    if (shared.device != status.st_dev || shared.inode != status.st_ino || shared.path != path) continue;
    auto file = shared.file.lock();
    if (file && file->bytes().size() >= bytes && file->is_whole()) return file;
  }
  auto file = std::make_shared<const MappedFile>(descriptor, bytes, path);
  all.push_back({status.st_dev, status.st_ino, path, file});
  return file;
}

void drop_mapped_pages(std::span<const std::byte> bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::lock_guard lock(mutex);
  for (const Slot& slot : slots) {
    if (!slot.file || begin < slot.begin.load() || begin + bytes.size() > slot.end.load()) continue;
    const std::uintptr_t page = begin / page_bytes * page_bytes;
    ::madvise(reinterpret_cast<void*>(page), begin + bytes.size() - page, MADV_DONTNEED);
    return;
  }
}

void survive_truncated_files() {
  struct sigaction action {};
  action.sa_sigaction = handle_bus_error;
  action.sa_flags = static_cast<int>(SA_SIGINFO | SA_RESTART);
  ::sigaction(SIGBUS, &action, nullptr);
}

void check_mapped_files() {
  if (!any_truncated.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex);
  for (const Slot& slot : slots) {
    if (slot.file) slot.file->check();
  }
}

}  // namespace hayloft::offload
