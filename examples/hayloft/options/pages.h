#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

// What is generated from the table of options besides help: a script by which a shell completes commands, options and
// their values, and manual pages.
namespace hayloft::cli {

// An option of a command as help, man pages and completions show it.
struct HelpEntry {
  const CLI::Option* option;
  std::string_view section;  // its heading: "Model"
  bool advanced;
};
// By section, without --help and --help-all.
std::vector<HelpEntry> help_entries(const CLI::App& command);
// Its description with its default: "Temperature; 0 takes the most likely token [0.8]".
std::string help_of(const CLI::Option& option);

// For "bash", "zsh" or "fish", to be put where the shell looks for such scripts. Throws Error naming other shells.
std::string completion_script(const CLI::App& program, const std::string& shell);

// The page of a command, hayloft-COMMAND(1), or that of the program where `command` is its name, in roff. Throws Error
// on one that there is not.
std::string man_page(const CLI::App& program, const std::string& command, const std::string& version);

}  // namespace hayloft::cli
