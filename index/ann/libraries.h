#pragma once

#include <string>

namespace hayloft::index {

// The libraries that indices and matrix products run on, as a report of a defect should name them.
std::string faiss_version();  // of the headers: "1.7.3"
std::string
blas_version();  // of the library that was loaded, with the kernels that it chose: "OpenBLAS 0.3.21 ... Zen"

}  // namespace hayloft::index
