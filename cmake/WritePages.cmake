# cmake -D program=HAYLOFT -D folder=FOLDER -P WritePages.cmake: what cmake/Pages.cmake installs.
function(write file)
  execute_process(COMMAND ${program} ${ARGN} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  file(WRITE ${folder}/${file} "${text}")
endfunction()

file(REMOVE_RECURSE ${folder})
write(hayloft --completion bash)
write(_hayloft --completion zsh)
write(hayloft.fish --completion fish)
write(man1/hayloft.1 --man hayloft)

# The names under "Commands:".
execute_process(COMMAND ${program} --help OUTPUT_VARIABLE help COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE ".*\nCommands:\n" "" help "${help}")
string(REGEX REPLACE "\n\n.*" "" help "${help}")
string(REGEX MATCHALL "(^|\n)  [a-z]+" lines "${help}")
foreach(line IN LISTS lines)
  string(STRIP "${line}" command)
  write(man1/hayloft-${command}.1 --man ${command})
endforeach()
file(TOUCH ${folder}/made)
