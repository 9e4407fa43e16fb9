#pragma once

#include <hwy/aligned_allocator.h>

#include <cstddef>
#include <new>

namespace hayloft::gpu {

// This thread's working memory, aligned for any vector: at least `floats` uninitialised floats, valid until the same
// thread asks again. Kept between calls, because a fresh megabyte costs more in page faults than a small tile's work.
// A task that holds it must not start parallel work: another task could run on its thread meanwhile.
inline float* scratch(std::size_t floats) {
  thread_local std::size_t capacity = 0;
  thread_local hwy::AlignedFreeUniquePtr<float[]> memory;
  if (capacity < floats) {
    memory = hwy::AllocateAligned<float>(floats);
    capacity = memory ? floats : 0;
    if (!memory) throw std::bad_alloc();
  }
  return memory.get();
}

}  // namespace hayloft::gpu
