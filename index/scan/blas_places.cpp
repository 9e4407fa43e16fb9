#include "index/scan/blas_places.h"

#include <cblas.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <string_view>
#include <vector>

#include "offload/error.h"
#include "offload/text/format.h"

// OpenBLAS' own functions that take a buffer from its pool and give it back; exported, in no header. Weak: a build of
// it without them, or another BLAS, allocates when it likes.
extern "C" {
__attribute__((weak)) void* blas_memory_alloc(int position);
__attribute__((weak)) void blas_memory_free(void* buffer);
}

namespace hayloft::index {
namespace {

int read_blas_places() {
  const std::string_view config = openblas_get_config();
  constexpr std::string_view key = "MAX_THREADS=";
  const std::size_t at = config.find(key);
  int most = 0;
  if (at != std::string_view::npos) {
    std::from_chars(config.data() + at + key.size(), config.data() + config.size(), most);
  }
  return most > 0 ? most : std::numeric_limits<int>::max();
}

struct Places {
  std::mutex mutex;
  std::condition_variable freed;
  int free = blas_places();
};

Places& places() {
  static Places all;
  return all;
}

thread_local int held = 0;  // by this thread, one in another

constexpr std::uint64_t buffer_bytes = std::uint64_t{128} << 20;  // the largest of the builds that are packaged
constexpr std::uint64_t stack_bytes = std::uint64_t{8} << 20;     // of a worker that is yet to be started
constexpr std::uint64_t margin_bytes = std::uint64_t{32} << 20;   // so that an error can still be told

// Makes OpenBLAS take the buffers of so many threads.
void take_buffers(int threads) {
  static std::mutex mutex;
  static int taken = 0;
  const std::lock_guard lock(mutex);
  if (threads <= taken || !blas_memory_alloc || !blas_memory_free) return;

  // If all of it fits in one piece, each buffer does.
  const auto more = static_cast<std::uint64_t>(threads - taken);
  const std::uint64_t bytes = more * (buffer_bytes + stack_bytes) + margin_bytes;
  void* const room = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) {
    fail(
        "the system refused {} of address space ({}), of which searches by Faiss and the stack take {} for each of {} "
        "threads; raise the process' limit (ulimit -v, ulimit -d) or lower --threads",
        format_bytes(bytes), std::strerror(errno), format_bytes(buffer_bytes + stack_bytes), more);
  }
  munmap(room, bytes);

  std::vector<void*> buffers(static_cast<std::size_t>(threads));  // all at once, since a free one is given out again
  for (void*& buffer : buffers) buffer = blas_memory_alloc(0);
  const auto given = std::count_if(buffers.begin(), buffers.end(), [](void* buffer) { return buffer != nullptr; });
  for (void* buffer : buffers) {
    if (buffer) blas_memory_free(buffer);
  }
  if (given < threads) {
    fail("--threads {}: OpenBLAS has working memory for {} threads at most; lower --threads", threads, given);
  }
  taken = threads;
}

}  // namespace

int blas_places() {
  static const int most = read_blas_places();
  return most;
}

void prepare_blas(const offload::Threads& threads) {
  openblas_set_num_threads(1);
  take_buffers(std::min(threads.count(), blas_places()));
}

BlasPlace::BlasPlace() {
  if (held++ > 0) return;
  Places& all = places();
  std::unique_lock lock(all.mutex);
  all.freed.wait(lock, [&] { return all.free > 0; });
  --all.free;
}

BlasPlace::~BlasPlace() {
  if (--held > 0) return;
  Places& all = places();
  {
    const std::lock_guard lock(all.mutex);
    ++all.free;
  }
  all.freed.notify_one();
}

}  // namespace hayloft::index
