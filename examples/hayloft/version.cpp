#include "examples/hayloft/version.h"

#include <fmt/format.h>

#include "index/ann/libraries.h"
#include "offload/instruction_set.h"

namespace hayloft::cli {
namespace {

std::string compiler() {
#ifdef __clang__
  return "Clang " __clang_version__;
#else
  return "GCC " __VERSION__;
#endif
}

// HAYLOFT_CUDA_VERSION is empty where the build has no CUDA backend.
std::string cuda() {
  const std::string version = HAYLOFT_CUDA_VERSION;
  return version.empty() ? "absent: built without the CUDA backend (-DHAYLOFT_CUDA=ON builds it)" : version;
}

// HAYLOFT_MPI_VERSION is empty where the build has no MPI.
std::string mpi() {
  const std::string version = HAYLOFT_MPI_VERSION;
  return version.empty() ? "absent: built without it (-DHAYLOFT_MPI=ON builds it)"
                         : version + ", loaded when mpirun starts several ranks";
}

}  // namespace

std::string version_text() {
  return fmt::format(
      "hayloft {}\n"
      "compiler         {}, {} build\n"
      "CUDA             {}\n"
      "MPI              {}\n"
      "Faiss            {}\n"
      "BLAS             {}\n"
      "instruction set  {}",
      HAYLOFT_VERSION, compiler(), HAYLOFT_BUILD_TYPE, cuda(), mpi(), index::faiss_version(), index::blas_version(),
      offload::instruction_set());
}

}  // namespace hayloft::cli
