#pragma once

namespace hayloft::offload {

// The instruction set that the vector code of this process uses, by Highway's name for it: "AVX3_ZEN4", "AVX2", "NEON".
const char* instruction_set();

}  // namespace hayloft::offload
