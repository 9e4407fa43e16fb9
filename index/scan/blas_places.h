#pragma once

#include "offload/host/threads.h"

namespace hayloft::index {

// Returns the number of threads that may be in OpenBLAS at once, as many as its build was made for (MAX_THREADS).
// Beyond that it takes working memory from an auxiliary list, and what it then gives back it marks at a wrong place:
// buffers are lost, and from some 500 threads on the heap is overwritten. Without a limit for another BLAS, which does
// not tell one.
int blas_places();

// Readies OpenBLAS for what so many threads of ours do with it, before they call it or Faiss: it starts none of its
// own, and has its working memory, a buffer of 128 MiB of address space for each thread that multiplies. Without this
// it takes a buffer when one is first needed, and tries again for ever where the system refuses. Buffers are kept.
// Throws Error where the process' limits leave no room for them. Any threads may call it.
void prepare_blas(const offload::Threads& threads);

// One of these places, for as long as it lives; waits for one to become free. A thread that has one takes no second.
// Around every call of BLAS or Faiss that several threads make. Nothing within waits for other threads.
class BlasPlace {
 public:
  BlasPlace();
  ~BlasPlace();
  BlasPlace(const BlasPlace&) = delete;
  BlasPlace& operator=(const BlasPlace&) = delete;
};

}  // namespace hayloft::index
