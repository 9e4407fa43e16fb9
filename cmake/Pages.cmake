# Manual pages, made by help2man from the program's own help, and completions, which read that help when they are used.
# They are installed where man, bash, zsh and fish look for them.
set(pages ${PROJECT_BINARY_DIR}/pages)
find_program(HAYLOFT_HELP2MAN help2man)
if(HAYLOFT_HELP2MAN)
  add_custom_command(
    OUTPUT ${pages}/made
    COMMAND ${CMAKE_COMMAND} -D program=$<TARGET_FILE:hayloft> -D help2man=${HAYLOFT_HELP2MAN} -D version=${PROJECT_VERSION}
            -D folder=${pages} -P ${PROJECT_SOURCE_DIR}/cmake/WritePages.cmake
    DEPENDS hayloft ${PROJECT_SOURCE_DIR}/cmake/WritePages.cmake
    COMMENT "Manual pages"
    VERBATIM)
  add_custom_target(hayloft_pages ALL DEPENDS ${pages}/made)
else()
  add_custom_target(hayloft_pages COMMAND ${CMAKE_COMMAND} -E echo "no manual pages are made: help2man is not installed")
endif()

# A build of the program alone has not made them.
install(DIRECTORY ${pages}/man1/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
set(completions ${PROJECT_SOURCE_DIR}/cmake/completions)
install(FILES ${completions}/hayloft DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${completions}/_hayloft DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${completions}/hayloft.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
