# cmake --install: libraries and headers for find_package(hayloft), the program, and the bundled model.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/hayloft)

# The public headers; the rest of a folder is its own business. tests/package compiles each of them alone, as installed.
set(offload_headers arena.h cgroup.h error.h format.h half.h layout.h snapshot.h snapshot_writer.h store.h threads.h
    topology.h)
set(index_headers ann.h search.h)
set(gpu_headers backend.h no_device.h)
set(runtime_headers attention_stats.h audit.h audit_report.h audit_sample.h cache.h config.h counters.h figure.h
    haystack.h host_tail.h method.h method_options.h method_state.h model.h needle.h prefill.h ranking.h recall.h
    safetensors.h sampler.h session.h spills.h step_observer.h tokenizer.h weights.h words.h)

foreach(folder offload index gpu runtime)
  install(TARGETS hayloft_${folder} EXPORT hayloftTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  # Headers keep their folder, since they include each other as "offload/store.h".
  list(TRANSFORM ${folder}_headers PREPEND ${PROJECT_SOURCE_DIR}/${folder}/ OUTPUT_VARIABLE headers)
  install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/hayloft/${folder})
endforeach()

install(EXPORT hayloftTargets NAMESPACE hayloft:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/hayloftConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/hayloftConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/hayloftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/hayloftConfig.cmake ${PROJECT_BINARY_DIR}/hayloftConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/Dependencies.cmake ${PROJECT_SOURCE_DIR}/cmake/Need.cmake
        DESTINATION ${package_dir})

install(TARGETS hayloft RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/needle-model/model/
        DESTINATION ${CMAKE_INSTALL_DATADIR}/hayloft/needle-model OPTIONAL)
