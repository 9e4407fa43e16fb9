#pragma once

namespace hayloft::offload {

// Holds kernels to the instruction set that HAYLOFT_INSTRUCTION_SET names: sse4, avx2, or avx512, which is without
// VNNI. For measurements: what a machine without the better ones would do. Without the variable, or where it is empty,
// kernels take the best there is. To be called before any kernel runs. Throws Error when the name is another or the
// processor has no such instructions.
void limit_instruction_set();

}  // namespace hayloft::offload
