#pragma once

namespace hayloft::simt::ptx {

// The manual says how far off an .approx instruction may be, not what it gives. `exact` off by at most
// approximation_ulp() units in its last place, always by the same for the same argument; as it is where the result is
// exact on every device (0, 1, infinity, NaN) or would leave the normal numbers.
float approximately(float exact, float argument);

unsigned approximation_ulp();  // 0 unless set
void set_approximation_ulp(unsigned ulp);

}  // namespace hayloft::simt::ptx
