# Every library comes from the system. Missing ones are collected, so that one message names all of them together with
# the Debian packages that bring them: hayloft_missing and hayloft_missing_packages.

# hayloft_need(PACKAGE DEBIAN [ARGUMENT...]): find_package(PACKAGE ARGUMENT...).
macro(hayloft_need package debian)
  find_package(${package} ${ARGN} QUIET)
  if(NOT ${package}_FOUND)
    list(APPEND hayloft_missing ${package})
    list(APPEND hayloft_missing_packages ${debian})
  endif()
endmacro()

# hayloft_need_module(NAME MODULE DEBIAN): the pkg-config module MODULE as the target PkgConfig::NAME.
macro(hayloft_need_module name module debian)
  if(PkgConfig_FOUND)
    pkg_check_modules(${name} QUIET IMPORTED_TARGET ${module})
  endif()
  if(NOT ${name}_FOUND)
    list(APPEND hayloft_missing ${module})
    list(APPEND hayloft_missing_packages ${debian})
  endif()
endmacro()

# Sets OUTPUT to the message about what is missing, or to nothing.
function(hayloft_missing_message output)
  set(${output} "" PARENT_SCOPE)
  if(hayloft_missing)
    list(JOIN hayloft_missing ", " names)
    list(JOIN hayloft_missing_packages " " packages)
    set(${output} "hayloft needs ${names}. On Debian or Ubuntu: apt-get install ${packages}" PARENT_SCOPE)
  endif()
endfunction()
