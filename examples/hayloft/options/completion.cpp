#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "examples/hayloft/options/pages.h"
#include "offload/error.h"
#include "offload/text/list.h"
#include "runtime/attention/method_option_table.h"

namespace hayloft::cli {
namespace {

// What an option's value is, as its type says it.
struct Value {
  bool taken = false;              // none: a flag
  bool file = false;               // a path, or a folder
  std::vector<std::string> words;  // else, where they are known
};

Value value_of(const CLI::Option& option) {
  Value value;
  if (option.get_items_expected_max() == 0) return value;
  const std::string type = option.get_type_name();
  value.taken = option.get_items_expected_min() > 0;
  const auto has = [&](const char* part) { return type.find(part) != std::string::npos; };
  if (type.rfind("METHOD", 0) == 0) {
    for (const std::string_view name : runtime::method_names()) value.words.emplace_back(name);
  } else if (has("FILE") || has(".hay") || has(".json") || type == "MODEL" || type == "DIR") {
    value.file = true;
  } else if (has("|")) {
    for (const std::string_view word : split_list(type, '|')) {
      if (std::ranges::all_of(word,
                              [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; })) {
        value.words.emplace_back(word);
      }
    }
  } else if (option.check_name("--columns")) {
    value.words = {"f16", "int8", "int4", "planes"};
  } else if (option.check_name("--rows")) {
    value.words = {"f16", "int8", "int4"};
  }
  return value;
}

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

bool takes_files(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional() && !option->nonpositional()) return true;
  }
  return false;
}

std::vector<const CLI::Option*> options_of(const CLI::App& command) {
  std::vector<const CLI::Option*> options;
  for (const HelpEntry& entry : help_entries(command)) {
    if (entry.option->nonpositional()) options.push_back(entry.option);
  }
  options.push_back(command.get_help_ptr());
  options.push_back(command.get_help_all_ptr());
  return options;
}

std::string command_names(const CLI::App& program) {
  std::string names;
  for (const CLI::App* command : program.get_subcommands({})) names += (names.empty() ? "" : " ") + command->get_name();
  return names;
}

constexpr std::string_view general = "--help --help-all --version --list-devices --completion --man";

// In single quotes of a POSIX shell.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

// `case $1 in` bodies of what an option's value may be, for bash.
std::string bash_values(const CLI::App& command) {
  std::string text;
  for (const CLI::Option* option : options_of(command)) {
    const Value value = value_of(*option);
    if (!value.taken) continue;
    const std::string what =
        value.file ? "files" : fmt::format("words {}", quoted(fmt::format("{}", fmt::join(value.words, " "))));
    text += fmt::format("        {}) _hayloft_{}; return ;;\n", fmt::join(names_of(*option), "|"), what);
  }
  return text;
}

std::string bash_script(const CLI::App& program) {
  std::string cases;
  for (const CLI::App* command : program.get_subcommands({})) {
    std::vector<std::string> names;
    for (const CLI::Option* option : options_of(*command)) {
      for (const std::string& name : names_of(*option)) names.push_back(name);
    }
    cases += fmt::format("    {})\n      case $before in\n{}      esac\n      options={}\n      positional={} ;;\n",
                         command->get_name(), bash_values(*command), quoted(fmt::format("{}", fmt::join(names, " "))),
                         takes_files(*command) ? "files" : "none");
  }
  return fmt::format(R"(# bash completion of hayloft, made by hayloft --completion bash
_hayloft_words() {{ COMPREPLY=($(compgen -W "$1" -- "$current")); }}
_hayloft_files() {{ compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$current")); }}
_hayloft() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} options= positional=none
  if ((COMP_CWORD == 1)); then
    _hayloft_words '{} {}'
    return
  fi
  case ${{COMP_WORDS[1]}} in
{}    --completion) _hayloft_words 'bash zsh fish'; return ;;
    --man) _hayloft_words '{}'; return ;;
  esac
  if [[ $current == -* || $positional == none ]]; then
    _hayloft_words "$options"
  else
    _hayloft_files
  fi
}}
complete -F _hayloft hayloft
)",
                     command_names(program), general, cases, command_names(program));
}

// zsh's _arguments: '--name[help]:value:action'.
std::string zsh_script(const CLI::App& program) {
  const auto escaped = [](std::string text) {
    for (std::size_t at = 0; (at = text.find_first_of("[]:\\", at)) != std::string::npos; at += 2)
      text.insert(at, 1, '\\');
    return text;
  };
  std::string commands, cases;
  for (const CLI::App* command : program.get_subcommands({})) {
    commands += fmt::format("    {}\n", quoted(escaped(command->get_name()) + ":" + command->get_description()));
    cases += fmt::format("    {})\n      _arguments -s \\\n", command->get_name());
    for (const CLI::Option* option : options_of(*command)) {
      const Value value = value_of(*option);
      std::string action;
      if (value.taken) {
        action = fmt::format(":{}:{}", escaped(option->get_type_name()),
                             value.file            ? "_files"
                             : value.words.empty() ? " "
                                                   : fmt::format("({})", fmt::join(value.words, " ")));
      }
      for (const std::string& name : names_of(*option)) {
        cases += fmt::format("        {} \\\n",
                             quoted(fmt::format("*{}[{}]{}", name, escaped(option->get_description()), action)));
      }
    }
    cases += fmt::format("        {} ;;\n", takes_files(*command) ? "'*:file:_files'" : "'*: :'");
  }
  return fmt::format(R"(#compdef hayloft
# zsh completion of hayloft, made by hayloft --completion zsh
_hayloft() {{
  local -a commands
  commands=(
{}  )
  if ((CURRENT == 2)); then
    _describe command commands
    compadd -- {}
    return
  fi
  local command=$words[2]
  shift words
  ((CURRENT--))
  case $command in
{}  esac
}}
if [[ $funcstack[1] == _hayloft ]]; then _hayloft "$@"; else compdef _hayloft hayloft; fi
)",
                     commands, general, cases);
}

std::string fish_script(const CLI::App& program) {
  std::string text = "# fish completion of hayloft, made by hayloft --completion fish\ncomplete -c hayloft -f\n";
  const std::string none = "-n __fish_use_subcommand";
  for (const std::string_view name : split_list(general, ' ')) {
    text += fmt::format("complete -c hayloft {} -l {}\n", none, name.substr(2));
  }
  for (const CLI::App* command : program.get_subcommands({})) {
    text += fmt::format("complete -c hayloft {} -a {} -d {}\n", none, command->get_name(),
                        quoted(command->get_description()));
    const std::string here =
        fmt::format("complete -c hayloft -n '__fish_seen_subcommand_from {}'", command->get_name());
    for (const CLI::Option* option : options_of(*command)) {
      const Value value = value_of(*option);
      std::string line = here;
      for (const std::string& name : option->get_snames()) line += " -s " + name;
      for (const std::string& name : option->get_lnames()) line += " -l " + name;
      if (value.taken) line += value.file ? " -r -F" : " -x";
      if (!value.words.empty()) line += " -a " + quoted(fmt::format("{}", fmt::join(value.words, " ")));
      text += fmt::format("{} -d {}\n", line, quoted(option->get_description()));
    }
    if (takes_files(*command)) text += here + " -F\n";
  }
  return text;
}

}  // namespace

std::string completion_script(const CLI::App& program, const std::string& shell) {
  if (shell == "bash") return bash_script(program);
  if (shell == "zsh") return zsh_script(program);
  if (shell == "fish") return fish_script(program);
  fail("--completion {}: must be one of bash|zsh|fish", shell);
}

}  // namespace hayloft::cli
