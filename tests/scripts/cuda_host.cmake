# Which C++ compiler an nvcc takes, and what shows that a GPU is here. nvcc is a stand-in that refuses all compilers but
# g++-12, in the words of CUDA 12.0's headers.
include(${SOURCE}/cmake/CudaHost.cmake)
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
file(WRITE ${WORK}/nvcc "#!/bin/sh
case \"$*\" in *-ccbin=g++-12*) exit 0 ;; esac
echo \"In file included from <command-line>:\" >&2
echo \"host_config.h:132:2: error: #error -- unsupported GNU version! gcc versions later than 12 are not supported!\" >&2
exit 1
")
file(CHMOD ${WORK}/nvcc FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)

function(expect what is wanted)
  if(NOT "${is}" STREQUAL "${wanted}")
    message(FATAL_ERROR "${what}: '${is}', not '${wanted}'")
  endif()
endfunction()
hayloft_cuda_host_compiler(${WORK}/nvcc "g++-12;g++-13" ${WORK} compiler problem)
expect("a compiler that nvcc takes" "${compiler}/${problem}" "g++-12/")
hayloft_cuda_host_compiler(${WORK}/nvcc "g++-13;g++-12" ${WORK} compiler problem)
expect("the next after one that is refused" "${compiler}/${problem}" "g++-12/")
hayloft_cuda_host_compiler(${WORK}/nvcc "g++-13;g++-14" ${WORK} compiler problem)
expect("nothing that nvcc takes" "${compiler}" "")
if(NOT problem MATCHES "^g\\+\\+-13 is refused: host_config.h.*unsupported GNU version")
  message(FATAL_ERROR "why it is refused: '${problem}'")
endif()

hayloft_nvidia_gpu(${WORK} shown)
expect("a machine without a GPU" "${shown}" "")
file(WRITE ${WORK}/dev/nvidiactl "")
hayloft_nvidia_gpu(${WORK} shown)
expect("a driver's own node" "${shown}" "")
file(WRITE ${WORK}/proc/driver/nvidia/version "")
hayloft_nvidia_gpu(${WORK} shown)
expect("a driver that is loaded" "${shown}" "/proc/driver/nvidia")
file(WRITE ${WORK}/dev/nvidia0 "")
hayloft_nvidia_gpu(${WORK} shown)
expect("a GPU's node" "${shown}" "/dev/nvidia0")
