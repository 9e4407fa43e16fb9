#include "offload/host/pages.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <fstream>
#include <iterator>
#include <string>

namespace hayloft::offload {
namespace {

constexpr std::uint64_t transparent_huge_page = std::uint64_t{2} << 20;

std::byte* map_anonymous(std::uint64_t bytes, int flags) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

// Older kernels align a mapping to 4 KiB only, which costs a huge page at either end: map more and trim.
std::byte* map_aligned(std::uint64_t bytes) {
  const std::uint64_t slack = transparent_huge_page;
  std::byte* const data = map_anonymous(bytes + slack, 0);
  if (!data) return map_anonymous(bytes, 0);
  const std::uint64_t before = (slack - reinterpret_cast<std::uintptr_t>(data) % slack) % slack;
  if (before > 0) munmap(data, before);
  if (before < slack) munmap(data + before + bytes, slack - before);
  return data + before;
}

}  // namespace

PageKind ordinary_pages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");  // "always [madvise] never"
  const std::string modes{std::istreambuf_iterator<char>(file), {}};
  if (modes.empty() || modes.find("[never]") != std::string::npos) return {};
  return {transparent_huge_page, true};
}

PageKind arena_pages(const std::vector<PagePool>& pools, std::uint64_t bytes, const PageKind& ordinary) {
  for (const PagePool& pool : pools) {  // the largest first
    if (pool.free_pages >= (bytes + pool.page_bytes - 1) / pool.page_bytes) return {pool.page_bytes, false};
  }
  return ordinary;
}

Pages map_pages(std::uint64_t bytes, std::uint64_t limit, const std::vector<std::uint64_t>& page_bytes) noexcept {
  for (const std::uint64_t page : page_bytes) {
    const std::uint64_t whole = (bytes + page - 1) / page * page;
    if (whole > limit) continue;
    // Without MAP_NORESERVE the kernel sets the pages aside now and refuses now if there are too few.
    if (std::byte* data = map_anonymous(whole, MAP_HUGETLB | (std::countr_zero(page) << MAP_HUGE_SHIFT))) {
      return {data, whole, true};
    }
  }
  std::byte* const data = bytes >= transparent_huge_page ? map_aligned(bytes) : map_anonymous(bytes, 0);
  if (!data) return {};
  if (bytes >= transparent_huge_page) madvise(data, bytes, MADV_HUGEPAGE);  // a wish; kernels without it refuse
  return {data, bytes, false};
}

void prefer_node(std::byte* data, std::uint64_t bytes, int node) noexcept {
  constexpr int word = 64;
  unsigned long nodes[16] = {};  // a bit per node
  if (node < 0 || node >= 16 * word) return;
  nodes[node / word] = 1ul << (node % word);
  // libc has no name for the call. It takes the number of bits, counted as one more than there are.
  syscall(SYS_mbind, data, bytes, MPOL_PREFERRED, nodes, 16ul * word + 1, 0u);
}

int node_of(const std::byte* data) noexcept {
  int node = -1;
  return syscall(SYS_get_mempolicy, &node, nullptr, 0ul, data, MPOL_F_NODE | MPOL_F_ADDR) == 0 ? node : -1;
}

void unmap_pages(const Pages& pages) noexcept {
  if (pages.data) munmap(pages.data, pages.bytes);
}

void want_small_pages(std::byte* data, std::uint64_t bytes) noexcept {
  madvise(data, bytes, MADV_NOHUGEPAGE);
}

bool drop_pages(std::byte* data, std::uint64_t bytes) noexcept {
  return madvise(data, bytes, MADV_DONTNEED) == 0;
}

}  // namespace hayloft::offload
