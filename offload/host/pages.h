#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "offload/host/topology.h"

namespace hayloft::offload {

// Memory taken from the system. Page-aligned, zeroed, readable and writable.
struct Pages {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  bool explicit_huge = false;  // from the kernel's pools of huge pages, not ordinary pages
};

// A kind of page that memory can lie on.
struct PageKind {
  std::uint64_t bytes = 4096;  // above 4096: from the kernel's pools of huge pages, unless
  bool transparent = false;    // given by the kernel to memory that wants them, as far as it has any at the time

  friend bool operator==(const PageKind&, const PageKind&) = default;
};

// Transparent huge pages, or 4 KiB where the kernel never gives those. Read at each call.
PageKind ordinary_pages();

// Returns the kind of pages that most of an arena of so many bytes lies on: the largest explicit pages of which there
// are enough free ones, else `ordinary`.
PageKind arena_pages(const std::vector<PagePool>& pools, std::uint64_t bytes,
                     const PageKind& ordinary = ordinary_pages());

// Maps at least `bytes` and at most `limit` bytes (bytes <= limit, both multiples of 4096): whole huge pages of the
// first size in `page_bytes` that fits the limit and has enough of them free; else ordinary pages, exactly `bytes`,
// aligned for transparent huge pages and marked to want them. Empty, with errno set, when the system refuses.
Pages map_pages(std::uint64_t bytes, std::uint64_t limit, const std::vector<std::uint64_t>& page_bytes) noexcept;

// Wishes that pages of [data, data + bytes) not yet touched be taken from the memory of a NUMA node (its OS index) as
// long as that has some. Nothing happens where the system has no say in it.
void prefer_node(std::byte* data, std::uint64_t bytes, int node) noexcept;

// The NUMA node (its OS index) of the page at `data`, which has been touched; -1 where the system does not say.
int node_of(const std::byte* data) noexcept;

void unmap_pages(const Pages& pages) noexcept;

// Wishes for pages of 4 KiB where the system would rather give large ones; for memory not yet touched.
void want_small_pages(std::byte* data, std::uint64_t bytes) noexcept;

// Gives ordinary pages back to the system while keeping their addresses; they read as zero afterwards. False if the
// system refuses, with the contents unchanged.
bool drop_pages(std::byte* data, std::uint64_t bytes) noexcept;

}  // namespace hayloft::offload
