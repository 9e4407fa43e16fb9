#pragma once

#include <string>

namespace hayloft {

// Quantities as people read them, in three significant digits at most. Negative ones are written as 0.

// "350 us", "4.2 ms", "12.5 s", "7.3 min", "65.6 h", "12 days".
std::string format_duration(double seconds);

// Floating-point operations: "812 MFLOP", "1.25 TFLOP".
std::string format_flops(double operations);

}  // namespace hayloft
