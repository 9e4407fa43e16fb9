# hayloft_library(NAME [PRECOMPILED TARGET] [SOURCES FILE...] [COLD FILE...]) makes the target hayloft_NAME, alias hayloft::NAME.
# Libraries follow the rooms that an embedder chooses between: offload <- index <- gpu <- runtime <- {eval, plan, serve}.
# scripts/layers.txt has the rooms inside.
#
# A first build takes minutes (docs/building.md has the figures of each):
# - Files of a library are compiled together (HAYLOFT_UNITY), so names in their anonymous namespaces differ.
# - The headers that most files include are compiled once (HAYLOFT_PRECOMPILED); TARGET has them already.
# - COLD files run once, not per token: they are compiled at -O1.
option(HAYLOFT_UNITY "Compile the files of a folder together; OFF suits those who edit one file again and again" ON)
option(HAYLOFT_PRECOMPILED "Compile the headers that most files include once" ON)

add_library(hayloft_options INTERFACE)
target_compile_options(hayloft_options INTERFACE -Wall -Wextra -Wnon-virtual-dtor
                       $<$<AND:$<BOOL:${HAYLOFT_WARNINGS_AS_ERRORS}>,$<NOT:$<COMPILE_LANGUAGE:CUDA>>>:-Werror>)
if(HAYLOFT_UNITY)  # names of other files in the unit are no shadows, and their anonymous namespaces are the unit's own
  target_compile_options(hayloft_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wshadow=local -Wno-subobject-linkage>)
else()
  target_compile_options(hayloft_options INTERFACE -Wshadow)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 sees overlapping and endless copies inside std::string where there are none (GCC bug 105651).
  target_compile_options(hayloft_options INTERFACE -Wno-restrict -Wno-stringop-overflow)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # Units take 0.9 to 1.3 GB. Collecting garbage before half of that is there costs g++ an eighth of its time.
  target_compile_options(hayloft_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=524288>)
endif()
if(HAYLOFT_PRECOMPILED AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(hayloft_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)  # for ccache
endif()
if(CMAKE_SYSTEM_PROCESSOR STREQUAL x86_64)
  # Kernels are compiled for this baseline (processors since 2009), AVX2 and AVX-512; Highway chooses at run time.
  target_compile_options(hayloft_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-march=x86-64-v2>)
  target_compile_definitions(hayloft_options INTERFACE HWY_SHARED_DEFINE HWY_DISABLE_PCLMUL_AES)
endif()
if(HAYLOFT_SANITIZE)
  # Instrumented code makes g++ take initialised members for uninitialised ones, as its manual says of -fsanitize.
  target_compile_options(hayloft_options INTERFACE -fsanitize=${HAYLOFT_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all -Wno-maybe-uninitialized)
  if(HAYLOFT_SANITIZE MATCHES "address")
    # Loads and stores are watched for addresses already: without these checks at each of them files compile in four fifths
    # of the time. Given up is what loads nothing, as a reference to null, and what this processor allows, alignment.
    target_compile_options(hayloft_options INTERFACE -fno-sanitize=null,alignment,object-size)
  endif()
  # Tests are watched for addresses alone, in three fifths of the compile time; what they call is for both.
  target_compile_options(hayloft_options INTERFACE $<$<BOOL:$<TARGET_PROPERTY:HAYLOFT_TEST>>:-fno-sanitize=undefined>)
  target_link_options(hayloft_options INTERFACE -fsanitize=${HAYLOFT_SANITIZE})
  target_compile_definitions(hayloft_options INTERFACE _GLIBCXX_ASSERTIONS)
  # Kernels for AVX-512 would not run on a machine without it, and are half of what instrumented kernels take to compile.
  include(CheckCXXSourceRuns)
  check_cxx_source_runs("int main() { return __builtin_cpu_supports(\"avx512bw\") ? 0 : 1; }" HAYLOFT_RUNS_AVX512)
  if(NOT HAYLOFT_RUNS_AVX512)
    target_compile_definitions(hayloft_options INTERFACE "HWY_DISABLED_TARGETS=(HWY_AVX3|HWY_AVX3_DL)")
  endif()
endif()
if(HAYLOFT_FUZZ)
  # libFuzzer follows what an input reaches: g++ calls tests/fuzz/coverage.cpp at every branch of the rooms with readers.
  add_library(hayloft_coverage STATIC ${PROJECT_SOURCE_DIR}/tests/fuzz/coverage.cpp)
  target_link_libraries(hayloft_options INTERFACE hayloft_coverage)
  target_link_options(hayloft_options INTERFACE -Wl,--wrap=__sanitizer_cov_trace_pc)
endif()

# hayloft_compile_together(TARGET SOURCES...): one unit for each 28 files of a library, or of a folder of tests. Files
# that are compiled for each instruction set stay alone; those that use Boost's headers have units of their own.
# The sanitizers do not watch arithmetic of pointers in those that are compiled for each instruction set, nor scopes:
# vectors whose scopes are watched stay in memory, each access with a check, and a file takes twice as long to compile.
function(hayloft_compile_together target)
  if(HAYLOFT_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  endif()
  foreach(source ${ARGN})
    get_filename_component(path ${source} ABSOLUTE)
    get_source_file_property(language ${source} LANGUAGE)
    if(NOT path MATCHES "\\.cpp$" AND NOT language STREQUAL CXX OR NOT EXISTS ${path})
      continue()
    endif()
    file(STRINGS ${path} alone REGEX "foreach_target\\.h" LIMIT_COUNT 1)
    if(alone AND HAYLOFT_SANITIZE MATCHES "undefined")
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON
        COMPILE_OPTIONS "-fno-sanitize=pointer-overflow;-fno-sanitize-address-use-after-scope;\
$<$<BOOL:${HAYLOFT_FUZZ}>:-fno-sanitize-coverage=trace-pc,trace-cmp>")
    endif()
    if(NOT HAYLOFT_UNITY OR alone OR path MATCHES "/eval/plot/|/gpu/no_cuda\\.cpp$")  # tests/simt links another in no_cuda's place
      continue()
    endif()
    get_filename_component(folder ${path} DIRECTORY)
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${folder})
    string(REPLACE "/" "_" folder ${folder})
    file(STRINGS ${path} boost REGEX "boost/(asio|beast)" LIMIT_COUNT 1)
    if(boost)
      set(folder boost)
    elseif(path MATCHES "/gpu/cuda/")  # tests/simt has others in their place
      set(folder cuda)
    elseif(NOT folder MATCHES "^tests")
      set(folder unit)
    endif()
    if(NOT DEFINED count_${folder})
      set(count_${folder} 0)
    endif()
    math(EXPR part "${count_${folder}} / 28")
    math(EXPR count_${folder} "${count_${folder}} + 1")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}_${part})
  endforeach()
endfunction()

# hayloft_precompile(TARGET [REUSE_FROM TARGET | HEADER...]): the standard library and fmt as most files include them, and HEADERs.
# REUSE_FROM names a target that is compiled by the same options and has them already.
set(hayloft_precompiled algorithm array charconv filesystem fstream functional map memory optional set span string vector fmt/format.h)
list(TRANSFORM hayloft_precompiled REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:<\\1$<ANGLE-R>>")
function(hayloft_precompile target)
  if(HAYLOFT_PRECOMPILED AND "${ARGV1}" STREQUAL REUSE_FROM)
    target_precompile_headers(${target} ${ARGN})
  elseif(HAYLOFT_PRECOMPILED)
    target_precompile_headers(${target} PRIVATE ${hayloft_precompiled} ${ARGN})
  endif()
endfunction()

function(hayloft_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "PRECOMPILED" "SOURCES;COLD")
  set(cold_option $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
  add_library(hayloft_${name} STATIC ${arg_SOURCES})
  add_library(hayloft::${name} ALIAS hayloft_${name})
  set_target_properties(hayloft_${name} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(hayloft_${name} PUBLIC cxx_std_20)
  target_include_directories(hayloft_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/hayloft>)
  target_link_libraries(hayloft_${name} PRIVATE $<BUILD_INTERFACE:hayloft_options>)
  set(coverage "")
  if(HAYLOFT_FUZZ AND name MATCHES "^(offload|runtime|serve)$")
    set(coverage $<$<COMPILE_LANGUAGE:CXX>:-fsanitize-coverage=trace-pc,trace-cmp>)
  endif()
  target_compile_options(hayloft_${name} PRIVATE ${coverage})
  if(arg_COLD AND arg_SOURCES)  # apart, as one target has one level of optimisation
    add_library(hayloft_${name}_cold OBJECT ${arg_COLD})
    target_sources(hayloft_${name} PRIVATE $<TARGET_OBJECTS:hayloft_${name}_cold>)
    target_link_libraries(hayloft_${name}_cold PRIVATE hayloft_options)
    target_include_directories(hayloft_${name}_cold PRIVATE $<TARGET_PROPERTY:hayloft_${name},INCLUDE_DIRECTORIES>)
    target_compile_definitions(hayloft_${name}_cold PRIVATE $<TARGET_PROPERTY:hayloft_${name},COMPILE_DEFINITIONS>)
    target_compile_options(hayloft_${name}_cold PRIVATE ${cold_option} ${coverage})
    hayloft_compile_together(hayloft_${name}_cold ${arg_COLD})
    if(TARGET hayloft_offload_cold AND NOT name STREQUAL offload)
      hayloft_precompile(hayloft_${name}_cold REUSE_FROM hayloft_offload_cold)
    else()
      hayloft_precompile(hayloft_${name}_cold <nlohmann/json.hpp>)
    endif()
  elseif(arg_COLD)
    target_sources(hayloft_${name} PRIVATE ${arg_COLD})
    target_compile_options(hayloft_${name} PRIVATE ${cold_option})
  endif()
  get_target_property(sources hayloft_${name} SOURCES)
  hayloft_compile_together(hayloft_${name} ${sources})
  if(arg_PRECOMPILED)
    hayloft_precompile(hayloft_${name} REUSE_FROM ${arg_PRECOMPILED})
  else()
    hayloft_precompile(hayloft_${name})
  endif()
endfunction()
