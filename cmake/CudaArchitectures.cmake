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

# Of architectures that were asked for, what this nvcc can make: those that it knows; in place of those that are too new for
# it, the newest that it knows below them, in the portable form that their driver translates. said: what was replaced, and
# what no code can be made for; empty when nothing.
function(hayloft_cuda_supported architectures listed out said)
  set(supported "")
  set(words "")
  foreach(architecture ${architectures})
    string(REGEX MATCH "^[0-9]+" capability ${architecture})
    hayloft_cuda_known(${architecture} "${listed}" known)
    if(capability STREQUAL "" OR NOT known STREQUAL "")  # or "native", which nvcc knows about
      list(APPEND supported ${architecture})
      continue()
    endif()
    set(below "")
    foreach(name ${listed})
      if(name MATCHES "^compute_([0-9]+)$" AND CMAKE_MATCH_1 GREATER_EQUAL 75 AND CMAKE_MATCH_1 LESS capability AND
         (below STREQUAL "" OR CMAKE_MATCH_1 GREATER below))
        set(below ${CMAKE_MATCH_1})
      endif()
    endforeach()
    if(below STREQUAL "")
      list(APPEND words "makes no code for compute capability ${capability}, which is too old: 75 is the oldest")
    else()
      list(APPEND supported ${below}-virtual)
      list(APPEND words "does not know compute capability ${capability}: kernels are built for ${below} in the portable form, \
which the driver translates at the first run")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES supported)
  list(JOIN words "; " words)
  set(${out} "${supported}" PARENT_SCOPE)
  set(${said} "${words}" PARENT_SCOPE)
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
