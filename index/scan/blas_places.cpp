#include "index/scan/blas_places.h"

#include <cblas.h>

#include <charconv>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <string_view>

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

}  // namespace

int blas_places() {
  static const int most = read_blas_places();
  return most;
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
