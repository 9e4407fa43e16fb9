#pragma once

namespace hayloft::gpu {

// OpenBLAS takes working memory, a buffer of 128 MiB of address space for each thread that multiplies, when it is first
// needed, and tries again for ever when the system refuses. This makes it take the buffers of `threads` threads now;
// they are kept. Throws Error when the process' limits leave no room for them.
void take_blas_memory(int threads);

}  // namespace hayloft::gpu
