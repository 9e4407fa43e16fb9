# The CUDA backend: whether it is built, and how. Sets HAYLOFT_HAS_CUDA.
set(HAYLOFT_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO (when nvcc 12 or newer is found), ON or OFF")
set_property(CACHE HAYLOFT_CUDA PROPERTY STRINGS AUTO ON OFF)
include(CudaArchitectures)

set(HAYLOFT_HAS_CUDA OFF)
set(cuda_wanted ${HAYLOFT_CUDA})
if(HAYLOFT_CUDA STREQUAL AUTO AND HAYLOFT_SANITIZE)
  set(cuda_wanted OFF)  # the kernels' own source runs under sanitizers in tests/simt
endif()
if(cuda_wanted)
  find_program(HAYLOFT_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda /opt/cuda
               PATH_SUFFIXES bin)
  set(cuda_problem "no nvcc in PATH, CUDA_HOME or /usr/local/cuda")
  if(HAYLOFT_NVCC)
    execute_process(COMMAND ${HAYLOFT_NVCC} --version OUTPUT_VARIABLE version ERROR_QUIET)
    if(version MATCHES "release ([0-9]+)\\.([0-9]+)" AND CMAKE_MATCH_1 GREATER_EQUAL 12)
      set(cuda_problem "")
      set(HAYLOFT_HAS_CUDA ON)
    else()
      set(cuda_problem "${HAYLOFT_NVCC} is older than CUDA 12")
    endif()
  endif()
  if(cuda_problem AND HAYLOFT_CUDA STREQUAL AUTO)
    message(STATUS "hayloft is built without CUDA: ${cuda_problem}")
  elseif(cuda_problem)
    message(FATAL_ERROR "HAYLOFT_CUDA is ${HAYLOFT_CUDA}, but ${cuda_problem}")
  endif()
endif()
if(NOT HAYLOFT_HAS_CUDA)
  return()
endif()

execute_process(COMMAND ${HAYLOFT_NVCC} --list-gpu-arch OUTPUT_VARIABLE listed OUTPUT_STRIP_TRAILING_WHITESPACE)
string(REPLACE "\n" ";" listed "${listed}")
hayloft_cuda_known("${HAYLOFT_DEFAULT_CUDA_ARCHITECTURES}" "${listed}" default_architectures)
set(HAYLOFT_CUDA_ARCHITECTURES "${default_architectures}" CACHE STRING
    "Compute capabilities that kernels are compiled for; newer ones translate the last, or one with -virtual, at their first run")

set(CMAKE_CUDA_COMPILER ${HAYLOFT_NVCC})
if(NOT CMAKE_CUDA_HOST_COMPILER)
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
endif()
if(NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER AND CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
hayloft_cuda_targets("${HAYLOFT_CUDA_ARCHITECTURES}" CMAKE_CUDA_ARCHITECTURES)
enable_language(CUDA)
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know nvcc's C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()

# For targets with CUDA sources. A kernel that spills registers or keeps arrays in local memory waits for device memory
# where nobody meant it to, so that is a warning, and an error where warnings are.
add_library(hayloft_cuda_options INTERFACE)
target_compile_options(hayloft_cuda_options INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-warn-spills,-warn-lmem-usage
  $<$<BOOL:${HAYLOFT_WARNINGS_AS_ERRORS}>:-Werror=all-warnings -Xptxas=-Werror>>)
