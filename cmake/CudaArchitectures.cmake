# Which code nvcc makes for a list of compute capabilities, and which devices have a use for it.

# 90-virtual is for 10.x and 11.x, for which 120 is too new: their driver translates it at a program's first run.
set(HAYLOFT_DEFAULT_CUDA_ARCHITECTURES 75 80 86 89 90 90-virtual 120)

# Of architectures, those that an nvcc knows which lists these: compute_75, compute_80 and so on.
function(hayloft_cuda_known architectures listed out)
  set(known "")
  foreach(architecture ${architectures})
    string(REGEX MATCH "^[0-9]+" capability ${architecture})
    list(FIND listed compute_${capability} at)
    if(at GREATER_EQUAL 0)
      list(APPEND known ${architecture})
    endif()
  endforeach()
  set(${out} "${known}" PARENT_SCOPE)
endfunction()

# In CMake's words: machine code for each, and for the last one the portable form too; what says -real or -virtual stays.
function(hayloft_cuda_targets architectures out)
  list(TRANSFORM architectures APPEND -real REGEX "^[0-9]+[a-z]?$" OUTPUT_VARIABLE targets)
  list(GET architectures -1 newest)
  if(NOT newest MATCHES "-")
    list(APPEND targets ${newest}-virtual)
  endif()
  set(${out} ${targets} PARENT_SCOPE)
endfunction()

# Of devices, as 103 for 10.3, those that nothing in targets runs on: neither machine code for the same major version and
# at most the same minor, nor a portable form that is no newer than the device.
function(hayloft_cuda_uncovered targets devices out)
  set(uncovered "")
  foreach(device ${devices})
    math(EXPR major "${device} / 10")
    set(covered OFF)
    foreach(target ${targets})
      string(REGEX MATCH "^[0-9]+" capability ${target})
      math(EXPR target_major "${capability} / 10")
      if(capability LESS_EQUAL device AND (target MATCHES "-virtual$" OR target_major EQUAL major))
        set(covered ON)
      endif()
    endforeach()
    if(NOT covered)
      list(APPEND uncovered ${device})
    endif()
  endforeach()
  set(${out} "${uncovered}" PARENT_SCOPE)
endfunction()
