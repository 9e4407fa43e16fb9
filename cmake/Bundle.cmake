# Packages. cpack -G DEB: a package for this Debian, in DebianPackage.cmake. cpack -G TGZ: one folder that runs on another x86-64 Linux with at least this system's glibc. It holds the program, the
# bundled model, the CUDA tests, scripts/gpu-check, scripts/gpu-judge and every shared library they need but glibc itself and
# what belongs to the machine's GPU. Not part of cmake --install.
if(NOT PROJECT_IS_TOP_LEVEL OR HAYLOFT_SANITIZE)
  return()
endif()

set(bundle_libraries lib/hayloft)
get_property(bundle_programs GLOBAL PROPERTY HAYLOFT_BUNDLE_PROGRAMS)  # beside the program itself
foreach(program hayloft ${bundle_programs})
  # DT_RPATH, not DT_RUNPATH: it also serves the libraries' own needs, so they are taken along as they are.
  target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
  set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../${bundle_libraries}")
  install(TARGETS ${program} RUNTIME_DEPENDENCY_SET hayloft_bundle RUNTIME DESTINATION bin COMPONENT bundle
          EXCLUDE_FROM_ALL)
endforeach()
install(RUNTIME_DEPENDENCY_SET hayloft_bundle
        PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv|util)\\.so" "^libcuda\\.so" "^libcublas" "^libnv"
        LIBRARY DESTINATION ${bundle_libraries} COMPONENT bundle EXCLUDE_FROM_ALL)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/needle-model/model/ DESTINATION share/hayloft/needle-model
        COMPONENT bundle EXCLUDE_FROM_ALL)
if(bundle_programs)  # the names of the CUDA tests, and what they read
  get_property(bundle_links GLOBAL PROPERTY HAYLOFT_BUNDLE_LINKS)
  install(FILES ${bundle_links} DESTINATION bin COMPONENT bundle EXCLUDE_FROM_ALL)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/tests/golden/models DESTINATION share/hayloft/golden COMPONENT bundle
          EXCLUDE_FROM_ALL)
endif()
install(PROGRAMS ${PROJECT_SOURCE_DIR}/scripts/gpu-check ${PROJECT_SOURCE_DIR}/scripts/gpu-judge
                 ${PROJECT_SOURCE_DIR}/scripts/make-shape-gguf DESTINATION bin COMPONENT bundle EXCLUDE_FROM_ALL)
install(CODE "
  execute_process(COMMAND git -C ${PROJECT_SOURCE_DIR} rev-parse HEAD ERROR_QUIET OUTPUT_VARIABLE commit)
  file(WRITE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/doc/hayloft/commit\" \"\${commit}\")
" COMPONENT bundle EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/README.md DESTINATION share/doc/hayloft COMPONENT bundle EXCLUDE_FROM_ALL)

# Licences. What has no library of its own in the bundle: headers, archives, and gtest in the CUDA tests.
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION share/doc/hayloft COMPONENT bundle EXCLUDE_FROM_ALL)
set(included_in_program libfaiss-dev nlohmann-json3-dev libcli11-dev)
set(included ${included_in_program})
if(bundle_programs)
  list(APPEND included libgtest-dev)
endif()
install(CODE "
  include(${PROJECT_SOURCE_DIR}/cmake/BundleNotices.cmake)
  set(root \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")
  hayloft_bundle_notices(\"\${root}/${bundle_libraries}\" \"${CMAKE_LIBRARY_ARCHITECTURE}\" \"${included}\"
                         \"\${root}/share/doc/hayloft/notices\")
" COMPONENT bundle EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_FILE_NAME hayloft-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_PACKAGE_VENDOR hayloft)
set(CPACK_COMPONENTS_ALL bundle)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_THREADS 0)
include(DebianPackage)
include(CPack)
