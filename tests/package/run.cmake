# Installs the build tree HAYLOFT_BUILD below WORK, builds the consumer project against it there and runs it; then asks
# the installed program for its version.
set(prefix ${WORK}/prefix)
set(consumer ${WORK}/consumer)
file(REMOVE_RECURSE ${WORK})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(NOTICE "${output}")  # not in the error, which CMake would break into lines anew
    message(FATAL_ERROR "failed: ${command}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${HAYLOFT_BUILD} --prefix ${prefix})
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${consumer} -G ${GENERATOR} -D CMAKE_BUILD_TYPE=Release
    -D CMAKE_CXX_COMPILER=${CXX_COMPILER} -D CMAKE_CXX_COMPILER_LAUNCHER=${CXX_LAUNCHER} -D CMAKE_PREFIX_PATH=${prefix})
run(${CMAKE_COMMAND} --build ${consumer})
run(${consumer}/consumer)

run(${prefix}/${BINDIR}/hayloft --version)
if(MPIRUN)  # the installed program finds its library for MPI
  run(${CMAKE_COMMAND} -E env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
      ${MPIRUN} -n 2 --oversubscribe ${prefix}/${BINDIR}/hayloft needle --ctx-size 1k --depths 1 --attn dense)
endif()
