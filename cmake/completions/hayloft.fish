# fish completion of hayloft: commands and options with their descriptions, as the program's help has them; else files.
complete -c hayloft -n __fish_use_subcommand -f -a "(hayloft --help 2>/dev/null | string match -rg '^  ([a-z]+  +.*)' | string replace -r '  +' \t)"
complete -c hayloft -n 'not __fish_use_subcommand; and string match -q -- "-*" (commandline -ct)' -f -a "(hayloft (commandline -opc)[2] --help-all 2>/dev/null | string match -r '^  (?:-., |    )--.*' | string replace -r '^  (?:-., |    )(--[a-z-]+)\S*(?: \S+)?(?:  +(.*))?\$' '\$1\t\$2')"
