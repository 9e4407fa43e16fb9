# What the libraries link. Used by the build and, installed beside it, by hayloftConfig.cmake: static libraries hand
# their dependencies on to whoever links them.
include(${CMAKE_CURRENT_LIST_DIR}/Need.cmake)

find_package(Threads REQUIRED)
hayloft_need(PkgConfig pkg-config)
hayloft_need(OpenMP libomp-dev COMPONENTS CXX)  # before faiss, whose package uses its target; g++ has its own
hayloft_need(faiss libfaiss-dev CONFIG)
hayloft_need(TBB libtbb-dev CONFIG)
hayloft_need(fmt libfmt-dev CONFIG)
hayloft_need_module(HWY libhwy libhwy-dev)
hayloft_need_module(HWLOC hwloc libhwloc-dev)
hayloft_need_module(XXHASH libxxhash libxxhash-dev)
hayloft_need_module(OPENBLAS openblas libopenblas-dev)
hayloft_need_module(PCRE2 libpcre2-8 libpcre2-dev)
hayloft_need_module(UTF8PROC libutf8proc libutf8proc-dev)
if(HAYLOFT_HAS_CUDA)  # the runtime, linked statically so that programs start without a driver
  hayloft_need(CUDAToolkit cuda-toolkit)
endif()
