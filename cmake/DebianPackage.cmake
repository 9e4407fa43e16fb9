# cpack -G DEB: hayloft_VERSION_ARCHITECTURE.deb, the program and the bundled model under /usr for the release of Debian
# that builds it. What it needs is found by dpkg-shlibdeps in the program itself. Set before CPack is included.
set(HAYLOFT_PAGES ${PROJECT_BINARY_DIR}/pages) # as Pages.cmake makes them
set(debian_doc share/doc/hayloft)
install(TARGETS hayloft RUNTIME DESTINATION bin COMPONENT debian EXCLUDE_FROM_ALL)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/needle-model/model/ DESTINATION share/hayloft/needle-model
        COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/README.md DESTINATION ${debian_doc} COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${debian_doc} RENAME copyright COMPONENT debian
        EXCLUDE_FROM_ALL)
# Licences of what is compiled and linked into the program; its libraries' are in packages of their own.
install(CODE "
  include(${PROJECT_SOURCE_DIR}/cmake/BundleNotices.cmake)
  set(notices \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${debian_doc}/notices\")
  hayloft_bundle_notices(\"\${notices}/libraries\" \"${CMAKE_LIBRARY_ARCHITECTURE}\" \"${included_in_program}\" \"\${notices}\")
" COMPONENT debian EXCLUDE_FROM_ALL)
install(DIRECTORY ${HAYLOFT_PAGES}/man1/ DESTINATION share/man/man1 COMPONENT debian EXCLUDE_FROM_ALL OPTIONAL)
set(completions ${PROJECT_SOURCE_DIR}/cmake/completions)
install(FILES ${completions}/hayloft DESTINATION share/bash-completion/completions COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES ${completions}/_hayloft DESTINATION share/zsh/vendor-completions COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES ${completions}/hayloft.fish DESTINATION share/fish/vendor_completions.d COMPONENT debian
        EXCLUDE_FROM_ALL)

set(CPACK_DEBIAN_PACKAGE_NAME hayloft)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "the hayloft authors <hayloft@localhost>")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "Generates from book-sized contexts on small GPUs or none, serves them over
 OpenAI's API, measures attention methods and the link between host and GPU.")

# What is chosen by generator: CPack reads this file once for each.
file(WRITE ${PROJECT_BINARY_DIR}/CPackGenerator.cmake [[
if(CPACK_GENERATOR STREQUAL DEB)
  set(CPACK_COMPONENTS_ALL debian)
  set(CPACK_DEB_COMPONENT_INSTALL ON)
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY OFF)
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
endif()
]])
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_BINARY_DIR}/CPackGenerator.cmake)
