#include "index/ann/libraries.h"

#include <cblas.h>
#include <faiss/Index.h>
#include <fmt/format.h>

namespace hayloft::index {

std::string faiss_version() {
  return fmt::format("{}.{}.{}", FAISS_VERSION_MAJOR, FAISS_VERSION_MINOR, FAISS_VERSION_PATCH);
}

std::string blas_version() {
  return openblas_get_config();
}

}  // namespace hayloft::index
