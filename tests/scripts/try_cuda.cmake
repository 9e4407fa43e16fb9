# scripts/try on a machine without a GPU leaves the build folder's choice of CUDA as it was, also when the build fails.
# The build and the program are stand-ins.
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK}/scripts ${WORK}/build/release/bin ${WORK}/path)
file(COPY ${SOURCE}/scripts/try DESTINATION ${WORK}/scripts)
set(executable FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
set(cache ${WORK}/build/release/CMakeCache.txt)

function(program path text)
  file(WRITE ${path} "#!/bin/sh\n${text}\n")
  file(CHMOD ${path} ${executable})
endfunction()

program(${WORK}/path/nvidia-smi "exit 9")
program(${WORK}/build/release/bin/hayloft "[ \"$1\" = --list-devices ] || exit 0
echo 'cpu   a processor; 3.0 GiB of the memory can be taken'
[ -z \"$DEVICE\" ] || echo \"$DEVICE\"")
file(MAKE_DIRECTORY ${WORK}/system)
set(environment "PATH=${WORK}/path:$ENV{PATH}" "HAYLOFT_SYSTEM_ROOT=${WORK}/system")

# before: what the folder is configured with, empty for a new one; build_status: how the build ends.
function(check before build_status expected)
  file(REMOVE ${cache})
  if(NOT before STREQUAL "")
    file(WRITE ${cache} "A:BOOL=ON\nHAYLOFT_CUDA:STRING=${before}\nHAYLOFT_CUDA_ARCHITECTURES:STRING=80\n")
  endif()
  program(${WORK}/scripts/build "case \"$*\" in *-DHAYLOFT_CUDA=OFF*) ;; *) exit 8 ;; esac
printf 'A:BOOL=ON\\nHAYLOFT_CUDA:STRING=OFF\\nHAYLOFT_CUDA_ARCHITECTURES:STRING=80\\n' > build/release/CMakeCache.txt
exit ${build_status}")
  execute_process(COMMAND ${CMAKE_COMMAND} -E env ${environment} ${WORK}/scripts/try
                  RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE said)
  if(NOT status EQUAL build_status)
    message(FATAL_ERROR "scripts/try ended with ${status}: ${said}")
  endif()
  file(READ ${cache} after)
  set(whole "A:BOOL=ON\nHAYLOFT_CUDA:STRING=${expected}\nHAYLOFT_CUDA_ARCHITECTURES:STRING=80\n")
  if(NOT after STREQUAL whole)
    message(FATAL_ERROR "configured with '${before}', then left with:\n${after}")
  endif()
  if(before STREQUAL OFF AND NOT said MATCHES "without CUDA")
    message(FATAL_ERROR "nothing says that there is no CUDA: ${said}")
  endif()
endfunction()

check("" 0 AUTO)
check(AUTO 0 AUTO)
check(ON 0 ON)
check(OFF 0 OFF)
check(AUTO 3 AUTO)

# What is built for a GPU that is here, and which device the last line names.
function(check_device device options built last)
  program(${WORK}/scripts/build "echo \"$*\" > built")
  execute_process(COMMAND ${CMAKE_COMMAND} -E env ${environment} "DEVICE=${device}" ${WORK}/scripts/try ${options}
                  RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE said WORKING_DIRECTORY ${WORK})
  file(READ ${WORK}/built asked)
  string(STRIP "${asked}" asked)
  string(REGEX REPLACE "^.*\n([^\n]+\n)$" "\\1" end "${said}")
  if(NOT status EQUAL 0 OR NOT asked STREQUAL built OR NOT end MATCHES "${last}")
    message(FATAL_ERROR "device '${device}', options '${options}': built with '${asked}'; said:\n${said}")
  endif()
endfunction()

set(none "cuda  none: the driver is too old")
set(card "cuda  a card of 16 GiB")
check_device("" "" "release -DHAYLOFT_CUDA=OFF hayloft" "computed on cpu a processor")
file(WRITE ${WORK}/system/dev/nvidia0 "")
check_device("${card}" "" "release -DHAYLOFT_CUDA=AUTO hayloft" "computed on cuda a card")
check_device("${card}" "--device;cpu" "release -DHAYLOFT_CUDA=AUTO hayloft" "computed on cpu a processor")
check_device("${none}" "" "release -DHAYLOFT_CUDA=AUTO hayloft" "computed on cpu a processor")
program(${WORK}/path/nvidia-smi "printf '12.0\\n8.9\\n8.9\\n'")
check_device("${card}" "" "release -DHAYLOFT_CUDA=AUTO -DHAYLOFT_CUDA_ARCHITECTURES=89;120 hayloft" "computed on cuda a card")
