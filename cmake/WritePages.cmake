# cmake -D program=HAYLOFT -D help2man=HELP2MAN -D version=VERSION -D folder=FOLDER -P WritePages.cmake: the manual pages
# that cmake/Pages.cmake installs, hayloft(1) and hayloft-COMMAND(1), as FOLDER/man1/NAME.1.
file(REMOVE_RECURSE ${folder})
file(MAKE_DIRECTORY ${folder}/man1)
set(exit_status "[exit status]\n0: done. 1: an error, said in a line on standard error. 2: wrong usage.
3: hayloft plan: a length does not fit. 130: interrupted.\n")

# The folder comes first in PATH, so that pages say hayloft and not where it was built.
cmake_path(GET program PARENT_PATH bin)
set(ENV{PATH} "${bin}:$ENV{PATH}")
set(ENV{SOURCE_DATE_EPOCH} 0)
function(write_page page call name option)
  # Examples as they are printed, which help2man would fill like prose.
  separate_arguments(words UNIX_COMMAND "${call} ${option}")
  execute_process(COMMAND ${words} OUTPUT_VARIABLE help COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "^.*\nExamples:\n" "" examples "${help}")
  string(REPLACE "\\" "\\e" examples "${examples}")
  string(REPLACE "-" "\\-" examples "${examples}")
  file(WRITE ${folder}/include "${exit_status}\n[=examples]\n.nf\n${examples}\n.fi\n")
  execute_process(COMMAND ${help2man} --no-info --name=${name} --version-string=${version} --help-option=${option}
                          --include=${folder}/include ${call} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  string(TOUPPER ${page} title)
  string(REGEX REPLACE "\n\\.TH [A-Z]+ \"1\" \"[^\"]*\"" "\n.TH ${title} \"1\" \"\"" text "${text}")
  string(REPLACE "\n${call} \\- " "\n${page} \\- " text "${text}")
  file(WRITE ${folder}/man1/${page}.1 "${text}")
endfunction()

# The lines under "Commands:", a name and what it does each.
execute_process(COMMAND ${program} --help OUTPUT_VARIABLE help COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE ".*\nCommands:\n" "" help "${help}")
string(REGEX REPLACE "\n\n.*" "" help "${help}")
string(REPLACE ";" "," help "${help}")
string(REPLACE "\n" ";" lines "${help}")
write_page(hayloft hayloft "million-token contexts with keys and values in host memory" --help)
foreach(line IN LISTS lines)
  string(REGEX MATCH "^  ([a-z]+) +(.*)$" matched "${line}")
  set(command ${CMAKE_MATCH_1})
  write_page(hayloft-${command} "hayloft ${command}" "${CMAKE_MATCH_2}" --help-all)
endforeach()
file(REMOVE ${folder}/include)
file(TOUCH ${folder}/made)
