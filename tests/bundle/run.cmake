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
