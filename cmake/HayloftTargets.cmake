# hayloft_library(NAME SOURCES... ) makes the target hayloft_NAME, alias hayloft::NAME. Libraries follow the rooms that an
# embedder chooses between: offload <- index <- gpu <- runtime <- {eval, plan, serve}. scripts/layers.txt has the rooms inside.
add_library(hayloft_options INTERFACE)
target_compile_options(hayloft_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor
                       $<$<AND:$<BOOL:${HAYLOFT_WARNINGS_AS_ERRORS}>,$<NOT:$<COMPILE_LANGUAGE:CUDA>>>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 sees overlapping copies inside std::string where there are none (GCC bug 105651).
  target_compile_options(hayloft_options INTERFACE -Wno-restrict)
endif()
if(HAYLOFT_SANITIZE)
  # Instrumented code makes g++ take initialised members for uninitialised ones, as its manual says of -fsanitize.
  target_compile_options(hayloft_options INTERFACE -fsanitize=${HAYLOFT_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all -Wno-maybe-uninitialized)
  target_link_options(hayloft_options INTERFACE -fsanitize=${HAYLOFT_SANITIZE})
endif()

function(hayloft_library name)
  add_library(hayloft_${name} STATIC ${ARGN})
  add_library(hayloft::${name} ALIAS hayloft_${name})
  set_target_properties(hayloft_${name} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(hayloft_${name} PUBLIC cxx_std_20)
  target_include_directories(hayloft_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/hayloft>)
  target_link_libraries(hayloft_${name} PRIVATE $<BUILD_INTERFACE:hayloft_options>)
endfunction()
