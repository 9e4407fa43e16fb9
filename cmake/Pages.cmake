# Manual pages and completions: the program makes them from its own table of options, so that they say what it does.
# They are installed where man, bash, zsh and fish look for them.
set(pages ${PROJECT_BINARY_DIR}/pages)
add_custom_command(
  OUTPUT ${pages}/made
  COMMAND ${CMAKE_COMMAND} -D program=$<TARGET_FILE:hayloft> -D folder=${pages} -P ${PROJECT_SOURCE_DIR}/cmake/WritePages.cmake
  DEPENDS hayloft ${PROJECT_SOURCE_DIR}/cmake/WritePages.cmake
  COMMENT "Manual pages and completions"
  VERBATIM)
add_custom_target(hayloft_pages ALL DEPENDS ${pages}/made)

# A build of the program alone has not made them.
install(DIRECTORY ${pages}/man1/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
install(FILES ${pages}/hayloft DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions OPTIONAL)
install(FILES ${pages}/_hayloft DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions OPTIONAL)
install(FILES ${pages}/hayloft.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d OPTIONAL)
