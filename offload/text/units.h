#pragma once

#include <string>

namespace hayloft {

// Quantities as people read them, in three significant digits at most. Negative ones are written as 0.

// "350 us", "4.2 ms", "12.5 s", "7.3 min", "65.6 h", "12 days".
std::string format_duration(double seconds);

// Bytes as format_bytes() writes them, also more of them than 64 bits count: "52.7 EiB".
std::string format_large_bytes(double bytes);

// Floating-point operations: "812 MFLOP", "1.25 TFLOP".
std::string format_flops(double operations);

}  // namespace hayloft
