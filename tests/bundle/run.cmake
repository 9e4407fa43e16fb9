# Packs the bundle, unpacks it elsewhere, and runs its program without anything of the environment: every library but
# glibc's own must come from the bundle.
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
function(run)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${WORK} RESULT_VARIABLE result OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(result)
    message(FATAL_ERROR "${ARGN}: ${result}\n${out}")
  endif()
  set(out ${out} PARENT_SCOPE)
endfunction()

run(${CPACK} --config ${HAYLOFT_BUILD}/CPackConfig.cmake -G TGZ -B ${WORK})
file(GLOB archive ${WORK}/hayloft-*.tar.gz)
file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${WORK}/elsewhere)
file(GLOB root ${WORK}/elsewhere/hayloft-*)

run(ldd ${root}/bin/hayloft)
string(REPLACE "\n" ";" lines "${out}")
foreach(line ${lines})
  if(NOT line MATCHES "${root}/|linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|resolv|util)\\.so")
    message(FATAL_ERROR "not in the bundle:${line}")
  endif()
endforeach()

run(env -i ${root}/bin/hayloft needle --ctx-size 4k --attn sparq --depths 2 --json -)
if(NOT out MATCHES "\"hit\": true")
  message(FATAL_ERROR "the bundle's program found no needle:\n${out}")
endif()

# Where there is no device, or none may be seen, gpu-check says so at once and leaves its report.
execute_process(COMMAND env -i PATH=/usr/bin:/bin CUDA_VISIBLE_DEVICES= ${root}/bin/gpu-check ${WORK}/checked
                RESULT_VARIABLE result ERROR_VARIABLE said TIMEOUT 60)
file(READ ${WORK}/checked/summary.md summary)
if(NOT result EQUAL 1 OR NOT said MATCHES "gpu-check: none: " OR NOT summary MATCHES "there is no CUDA device to run on")
  message(FATAL_ERROR "gpu-check without a device: ${result}\n${said}\n${summary}")
endif()
