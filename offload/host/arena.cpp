#include "offload/host/arena.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "offload/error.h"
#include "offload/host/pages.h"
#include "offload/text/format.h"

namespace hayloft::offload {
namespace {

constexpr std::uint64_t chunks_at_once = 16;                      // that a request for many extents may take as one
constexpr std::uint64_t largest_chunk = std::uint64_t{64} << 30;  // one registration of more fails on recent drivers

std::uint64_t page_floor(std::uint64_t bytes) {
  return bytes / Arena::alignment * Arena::alignment;
}

// A piece of free memory; `dirty` if it may hold anything but zeros.
struct Run {
  std::uint64_t bytes;
  bool dirty;
};

// Memory committed at once, and what of it is free: runs by address, neighbours always joined.
struct Chunk {
  Pages pages;
  std::map<std::byte*, Run> free;

  bool idle() const { return free.size() == 1 && free.begin()->second.bytes == pages.bytes; }

  std::uint64_t largest_run() const {
    std::uint64_t bytes = 0;
    for (const auto& [data, run] : free) bytes = std::max(bytes, run.bytes);
    return bytes;
  }
};

void insert_run(std::map<std::byte*, Run>& free, std::byte* data, Run run) {
  auto next = free.lower_bound(data);
  if (next != free.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.bytes == data) {
      data = before->first;
      run = {before->second.bytes + run.bytes, before->second.dirty || run.dirty};
      free.erase(before);
    }
  }
  if (next != free.end() && data + run.bytes == next->first) {
    run = {run.bytes + next->second.bytes, run.dirty || next->second.dirty};
    next = free.erase(next);
  }
  free.emplace_hint(next, data, run);
}

}  // namespace

class ArenaState {
 public:
  ArenaState(std::uint64_t budget, ArenaOptions options, std::vector<std::uint64_t> huge_page_bytes)
      : budget_(budget), options_(std::move(options)), huge_page_bytes_(std::move(huge_page_bytes)) {}

  ~ArenaState() {
    while (!chunks_.empty()) decommit(chunks_.begin());
  }

  // One of `wanted` > 0 extents of that size, which the caller goes on to take.
  std::byte* take(std::uint64_t bytes, std::uint64_t wanted) {
    std::pair<std::byte*, Run> found;
    {
      const std::lock_guard lock(mutex_);
      if (bytes > (budget_ - used_) / wanted) {
        const std::uint64_t asked = bytes > UINT64_MAX / wanted ? UINT64_MAX : bytes * wanted;
        fail_for_memory("host memory budget of {} is exhausted: asked for {}, {} left; raise {} or lower the context",
                        format_bytes(budget_), format_bytes(asked), format_bytes(budget_ - used_),
                        options_.budget_option);
      }
      found = take_free(bytes);
      if (!found.first) {
        commit(bytes, wanted);
        found = take_free(bytes);
      }
      used_ += bytes;
      peak_ = std::max(peak_, used_);
    }
    if (found.second.dirty) std::memset(found.first, 0, bytes);
    return found.first;
  }

  void give_back(std::byte* data, std::uint64_t bytes) noexcept {
    Chunk* chunk;
    {
      const std::lock_guard lock(mutex_);
      chunk = &std::prev(chunks_.upper_bound(data))->second;
    }
    // A device that has pinned the pages would go on reading the old ones if they were exchanged for new.
    const bool exchangeable = !chunk->pages.explicit_huge && !options_.listener;
    const bool dirty = !(exchangeable && drop_pages(data, bytes));
    const std::lock_guard lock(mutex_);
    used_ -= bytes;
    try {
      insert_run(chunk->free, data, {bytes, dirty});
    } catch (const std::bad_alloc&) {  // no memory to note it: the piece stays unused until the arena goes
    }
  }

  std::uint64_t budget() const { return budget_; }
  std::uint64_t used() const {
    const std::lock_guard lock(mutex_);
    return used_;
  }
  std::uint64_t peak() const {
    const std::lock_guard lock(mutex_);
    return peak_;
  }

 private:
  using Chunks = std::map<std::byte*, Chunk>;

  // The first free run that is large enough, cut to size; null if there is none.
  std::pair<std::byte*, Run> take_free(std::uint64_t bytes) {
    for (auto& [base, chunk] : chunks_) {
      for (auto at = chunk.free.begin(); at != chunk.free.end(); ++at) {
        const auto [data, run] = *at;
        if (run.bytes < bytes) continue;
        if (run.bytes > bytes) chunk.free.emplace_hint(at, data + bytes, Run{run.bytes - bytes, run.dirty});
        chunk.free.erase(at);
        return {data, run};
      }
    }
    return {nullptr, {0, false}};
  }

  // Returns the size of a chunk for so many extents.
  std::uint64_t chunk_for(std::uint64_t bytes, std::uint64_t wanted) const {
    if (!huge_page_bytes_.empty()) return options_.chunk_bytes;
    const std::uint64_t most = std::min(largest_chunk, chunks_at_once * options_.chunk_bytes);
    return std::clamp(bytes > most / wanted ? most : bytes * wanted, options_.chunk_bytes, most);
  }

  // Adds a chunk with room for an extent of `bytes`: a whole number of such extents, so that a store, whose blocks are
  // all of one size, leaves nothing over.
  void commit(std::uint64_t bytes, std::uint64_t wanted) {
    if (budget_ - committed_ < bytes) release_idle();
    const std::uint64_t room = budget_ - committed_;
    if (room < bytes) fail_fragmented(bytes);
    const std::uint64_t chunk_bytes = chunk_for(bytes, wanted);
    const std::uint64_t many = std::min(room, std::max<std::uint64_t>(1, chunk_bytes / bytes) * bytes);
    const std::uint64_t limit = std::min(room, std::max(chunk_bytes, bytes));
    Pages pages = map_pages(many, limit, huge_page_bytes_);
    if (!pages.data && many > bytes) pages = map_pages(bytes, limit, huge_page_bytes_);
    if (!pages.data) {
      const int error = errno;
      fail_for_memory(
          "the system refused {} of host memory ({}), with {} of the budget of {} in use; lower {} or the context, or "
          "raise the process' limit (ulimit -v)",
          format_bytes(bytes), std::strerror(error), format_bytes(used_), format_bytes(budget_),
          options_.budget_option);
    }
    Chunks::iterator chunk;
    try {
      chunk = chunks_.emplace(pages.data, Chunk{pages, {{pages.data, Run{pages.bytes, false}}}}).first;
    } catch (...) {
      unmap_pages(pages);
      throw;
    }
    try {
      if (options_.listener) options_.listener->committed(pages.data, pages.bytes);
    } catch (...) {
      chunks_.erase(chunk);
      unmap_pages(pages);
      throw;
    }
    committed_ += pages.bytes;
  }

  Chunks::iterator decommit(Chunks::iterator chunk) noexcept {
    const Pages pages = chunk->second.pages;
    if (options_.listener) options_.listener->releasing(pages.data, pages.bytes);
    unmap_pages(pages);
    committed_ -= pages.bytes;
    return chunks_.erase(chunk);
  }

  void release_idle() noexcept {
    for (auto chunk = chunks_.begin(); chunk != chunks_.end();) {
      chunk = chunk->second.idle() ? decommit(chunk) : std::next(chunk);
    }
  }

  [[noreturn]] void fail_fragmented(std::uint64_t bytes) const {
    std::uint64_t largest = budget_ - committed_;
    for (const auto& [base, chunk] : chunks_) largest = std::max(largest, chunk.largest_run());
    fail_for_memory(
        "host memory budget of {} is exhausted: asked for {}, {} left but no more than {} in one piece; raise {} or "
        "lower the context",
        format_bytes(budget_), format_bytes(bytes), format_bytes(budget_ - used_), format_bytes(largest),
        options_.budget_option);
  }

  const std::uint64_t budget_;
  const ArenaOptions options_;
  const std::vector<std::uint64_t> huge_page_bytes_;  // largest first
  mutable std::mutex mutex_;                          // guards all below
  Chunks chunks_;                                     // by address; an entry stays where it is while an extent is in it
  std::uint64_t committed_ = 0;                       // of all chunks, at most the budget
  std::uint64_t used_ = 0;
  std::uint64_t peak_ = 0;
};

Extent::Extent(std::shared_ptr<ArenaState> state, std::byte* data, std::uint64_t bytes)
    : state_(std::move(state)), data_(data), bytes_(bytes) {}

Extent::Extent(Extent&& other) noexcept
    : state_(std::move(other.state_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Extent& Extent::operator=(Extent&& other) noexcept {
  Extent taken(std::move(other));
  std::swap(state_, taken.state_);
  std::swap(data_, taken.data_);
  std::swap(bytes_, taken.bytes_);
  return *this;
}

Extent::~Extent() {
  if (data_) state_->give_back(data_, bytes_);
}

Arena::Arena(const Topology& topology, ArenaOptions options) {
  std::uint64_t budget = options.budget_bytes;
  if (budget == 0) {
    const std::uint64_t available = topology.available_bytes();
    budget = available - available / 10;
  }
  options.chunk_bytes = std::clamp(options.chunk_bytes, alignment, largest_chunk);
  std::vector<std::uint64_t> huge_page_bytes;
  for (const PagePool& pool : topology.huge_pages()) huge_page_bytes.push_back(pool.page_bytes);
  state_ = std::make_shared<ArenaState>(page_floor(budget), std::move(options), std::move(huge_page_bytes));
}

Arena::~Arena() = default;

Extent Arena::allocate(std::uint64_t bytes) {
  return std::move(allocate(bytes, 1).front());
}

std::vector<Extent> Arena::allocate(std::uint64_t bytes, std::size_t count) {
  // A request within a page of 2^64 would wrap to nothing when rounded up; cut, it still exceeds every budget.
  const std::uint64_t pages = page_floor(std::min(bytes, page_floor(UINT64_MAX)) + alignment - 1);
  std::vector<Extent> extents;
  while (extents.size() < count) {
    if (bytes == 0) {
      extents.emplace_back();
    } else {
      extents.push_back(Extent(state_, state_->take(pages, count - extents.size()), pages));
    }
  }
  return extents;
}

std::uint64_t Arena::budget_bytes() const {
  return state_->budget();
}
std::uint64_t Arena::used_bytes() const {
  return state_->used();
}
std::uint64_t Arena::peak_bytes() const {
  return state_->peak();
}

}  // namespace hayloft::offload
