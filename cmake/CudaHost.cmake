# The machine that CUDA is built on: whether it has a GPU, and which C++ compiler its nvcc takes.

# What shows that an NVIDIA GPU is here, under root in place of /; empty when nothing does.
function(hayloft_nvidia_gpu root out)
  set(shown "")
  file(GLOB nodes ${root}/dev/nvidia[0-9]*)
  if(nodes)
    list(GET nodes 0 node)
    file(RELATIVE_PATH node ${root}/ ${node})
    set(shown /${node})
  elseif(EXISTS ${root}/proc/driver/nvidia/version)
    set(shown /proc/driver/nvidia)
  elseif(EXISTS ${root}/dev/dxg AND EXISTS ${root}/usr/lib/wsl/lib/libcuda.so.1)
    set(shown /usr/lib/wsl/lib/libcuda.so.1)
  endif()
  set(${out} "${shown}" PARENT_SCOPE)
endfunction()

# The first of these C++ compilers that nvcc takes; empty when it takes none, and then problem is what it says of the first.
# A newer compiler than nvcc knows is refused by its headers, or by what it makes of the standard library's. folder is for
# what is compiled.
function(hayloft_cuda_host_compiler nvcc compilers folder out problem)
  file(WRITE ${folder}/host_compiler.cu "#include <cmath>\n#include <functional>\n#include <source_location>\n#include <string>\n\
__global__ void kernel(float* x) { *x = 1; }\nint main() { kernel<<<1, 1>>>(nullptr); return std::string(\"x\").empty(); }\n")
  set(first "")
  foreach(compiler ${compilers})
    execute_process(COMMAND ${nvcc} -std=c++20 -ccbin=${compiler} -c ${folder}/host_compiler.cu -o ${folder}/host_compiler.o
                    RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
    if(status EQUAL 0)
      set(${out} ${compiler} PARENT_SCOPE)
      set(${problem} "" PARENT_SCOPE)
      return()
    endif()
    if(first STREQUAL "")
      string(REGEX MATCH "[^\n]*error[^\n]*" first "${said}")
      string(REGEX REPLACE "^ +| +$" "" first "${compiler} is refused: ${first}")
    endif()
  endforeach()
  set(${out} "" PARENT_SCOPE)
  set(${problem} "${first}" PARENT_SCOPE)
endfunction()
