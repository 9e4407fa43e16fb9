#include <fmt/format.h>

#include <string_view>

#include "examples/hayloft/options/pages.h"
#include "offload/error.h"

namespace hayloft::cli {
namespace {

// Text in roff: backslashes and hyphens as they are typed, and no line that begins like a request.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if ((out.empty() || out.back() == '\n') && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out;
}

std::string names_in_man(const CLI::Option& option) {
  std::string names;
  const auto add = [&](const std::string& name) { names += (names.empty() ? "\\fB" : ", \\fB") + roff(name) + "\\fR"; };
  for (const std::string& name : option.get_snames()) add("-" + name);
  for (const std::string& name : option.get_lnames()) add("--" + name);
  if (option.get_items_expected_max() == 0) return names;
  const std::string type = "\\fI" + roff(option.get_type_name()) + "\\fR";
  if (names.empty()) return type;
  return names + (option.get_items_expected_min() == 0 ? "[=" + type + "]" : " " + type);
}

std::string entry(const std::string& names, const std::string& help) {
  return fmt::format(".TP\n{}\n{}\n", names, roff(help));
}

std::string heading(const std::string& name, const std::string& what, const std::string& version) {
  return fmt::format(".TH {} 1 \"\" \"hayloft {}\" \"hayloft\"\n.SH NAME\n{} \\- {}\n", roff(name), version, roff(name),
                     roff(what));
}

// As it is printed, line by line.
std::string literally(const std::string& text) {
  return ".nf\n" + roff(text) + "\n.fi\n";
}

constexpr std::string_view exit_status = R"(.SH EXIT STATUS
.TP
0
done
.TP
1
an error, said in a line on standard error
.TP
2
wrong usage
.TP
3
hayloft plan: a length does not fit
.TP
130
interrupted
)";

std::string command_page(const CLI::App& command, const std::string& version) {
  const std::string name = "hayloft-" + command.get_name();
  std::string page = heading(name, command.get_description(), version);
  page += fmt::format(".SH SYNOPSIS\n\\fBhayloft {}\\fR", command.get_name());
  for (const HelpEntry& one : help_entries(command)) {
    if (one.option->get_positional() && !one.option->nonpositional()) page += " " + names_in_man(*one.option);
  }
  page += " [\\fIOPTIONS\\fR]\n.SH OPTIONS\n";
  std::string_view section;
  for (const HelpEntry& one : help_entries(command)) {
    if (one.section != section) page += fmt::format(".SS {}\n", section = one.section);
    page += entry(names_in_man(*one.option), help_of(*one.option));
  }
  page += ".SS Help\n";
  page += entry(names_in_man(*command.get_help_ptr()), command.get_help_ptr()->get_description());
  page += entry(names_in_man(*command.get_help_all_ptr()), command.get_help_all_ptr()->get_description());
  std::string examples = command.get_footer();
  if (const std::string title = "Examples:\n"; examples.rfind(title, 0) == 0) examples.erase(0, title.size());
  page += ".SH EXAMPLES\n" + literally(examples);
  return page + std::string(exit_status) + ".SH SEE ALSO\n.BR hayloft (1)\n";
}

std::string program_page(const CLI::App& program, const std::string& version) {
  std::string page = heading("hayloft", program.get_description(), version);
  page += ".SH SYNOPSIS\n\\fBhayloft\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n.SH COMMANDS\n";
  for (const CLI::App* command : program.get_subcommands({})) {
    page += entry(fmt::format("\\fBhayloft\\-{}\\fR(1)", command->get_name()), command->get_description());
  }
  page += ".SH OPTIONS\n";
  for (const CLI::Option* option : program.get_options()) page += entry(names_in_man(*option), help_of(*option));
  return page + std::string(exit_status);
}

}  // namespace

std::string man_page(const CLI::App& program, const std::string& command, const std::string& version) {
  if (command == program.get_name()) return program_page(program, version);
  for (const CLI::App* one : program.get_subcommands({})) {
    if (one->get_name() == command) return command_page(*one, version);
  }
  fail("--man {}: no command of this name; hayloft --help lists them", command);
}

}  // namespace hayloft::cli
