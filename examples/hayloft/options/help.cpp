#include "examples/hayloft/options/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "offload/text/list.h"

namespace hayloft::cli {
namespace {

constexpr std::size_t width = 100;
constexpr std::size_t help_column = 32;

// By Section.
constexpr std::string_view headings[] = {"Model",     "Server",  "Text",  "Context", "Task",   "Sampling",
                                         "Attention", "Prefill", "Audit", "Memory",  "Device", "Output"};
constexpr std::string_view advanced_mark = " (advanced)";

// An option is kept with its section as the name of its group, CLI11's only room for such a note.
void place(CLI::App& app, Section section, std::string_view mark, std::initializer_list<const char*> options) {
  for (const char* option : options) {
    app.get_option(option)->group(fmt::format("{}{}", headings[static_cast<std::size_t>(section)], mark));
  }
}

struct Entry {
  const CLI::Option* option;
  std::size_t section;
  bool advanced;
};

Entry entry_of(const CLI::Option* option) {
  std::string_view group = option->get_group();
  const bool advanced = group.ends_with(advanced_mark);
  if (advanced) group.remove_suffix(advanced_mark.size());
  const auto heading = std::find(std::begin(headings), std::end(headings), group);
  if (heading == std::end(headings)) {
    throw std::logic_error(option->get_name() + " is declared neither common nor advanced");
  }
  return {option, static_cast<std::size_t>(heading - std::begin(headings)), advanced};
}

std::string default_of(const CLI::Option* option) {
  std::string text = option->get_default_str();
  if (text.size() > 1 && text.front() == '[') text = text.substr(1, text.size() - 2);  // of a list
  return text.empty() || text == "\"\"" ? "" : " [" + text + "]";
}

// "-c, --ctx-size TOKENS", with room for the short name where there is none.
std::string names_of(const CLI::Option* option) {
  if (option->get_positional() && !option->nonpositional()) return option->get_type_name();
  std::string text = option->get_snames().empty() ? "    " : "";
  for (const std::string& name : option->get_snames()) text += fmt::format("-{}, ", name);
  text += fmt::format("--{}", fmt::join(option->get_lnames(), ", --"));
  if (option->get_items_expected_max() == 0) return text;  // a flag
  const std::string type = option->get_type_name();
  return text + (option->get_items_expected_min() == 0 ? "[=" + type + "]" : " " + type);
}

// Names on the left, help on the right, both on one line where the names leave room.
std::string lines_of(const std::string& names, const std::string& help) {
  std::string text = "  " + names;
  if (text.size() + 2 > help_column) text += "\n";
  std::size_t column = text.back() == '\n' ? 0 : text.size();
  for (const std::string_view word : split_list(help, ' ')) {
    const bool starts = column < help_column;
    if (!starts && column + 1 + word.size() > width) {
      text += "\n";
      column = 0;
    }
    if (column < help_column) {
      text.append(help_column - column, ' ');
      column = help_column;
    } else {
      text += " ";
      ++column;
    }
    text += word;
    column += word.size();
  }
  return text + "\n";
}

std::string lines_of(const CLI::Option* option) {
  const bool required = option->get_required() && option->nonpositional();
  return lines_of(names_of(option), option->get_description() + default_of(option) + (required ? " (required)" : ""));
}

// --help and --help-all of a command, or what the program itself takes.
std::string general_options(const CLI::App* app) {
  std::string text;
  for (const CLI::Option* option : app->get_options()) {
    const bool general = option == app->get_help_ptr() || option == app->get_help_all_ptr() || !app->get_parent();
    if (general) text += lines_of(option);
  }
  return text;
}

std::vector<Entry> entries_of(const CLI::App* app) {
  std::vector<Entry> entries;
  for (const CLI::Option* option : app->get_options()) {
    if (option != app->get_help_ptr() && option != app->get_help_all_ptr()) entries.push_back(entry_of(option));
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.section < b.section; });
  return entries;
}

std::string command_help(const CLI::App* app, const std::string& name, bool all) {
  std::string usage = "Usage: " + name;
  for (const CLI::Option* option : app->get_options([](const CLI::Option* o) { return o->get_positional(); })) {
    usage += " " + option->get_type_name();
  }
  std::string text = fmt::format("{} [OPTIONS]\n{}\n\n", usage, app->get_description());
  std::size_t section = std::size(headings);
  if (!all) text += "Options:\n";
  for (const Entry& entry : entries_of(app)) {
    if (entry.advanced && !all) continue;
    if (all && entry.section != section) {
      text += fmt::format("{}{}:\n", section == std::size(headings) ? "" : "\n", headings[entry.section]);
      section = entry.section;
    }
    text += lines_of(entry.option);
  }
  return fmt::format("{}{}{}\n{}\n", text, all ? "\nHelp:\n" : "", general_options(app), app->get_footer());
}

std::string program_help(const CLI::App* app, const std::string& name) {
  std::string text = fmt::format("Usage: {} COMMAND [OPTIONS]\n{}\n\nCommands:\n", name, app->get_description());
  for (const CLI::App* command : app->get_subcommands({})) {
    text += fmt::format("  {:10}{}\n", command->get_name(), command->get_description());
  }
  return fmt::format("{}\nOptions:\n{}\n{}\n", text, general_options(app), app->get_footer());
}

}  // namespace

void common(CLI::App& app, Section section, std::initializer_list<const char*> options) {
  place(app, section, "", options);
}

void advanced(CLI::App& app, Section section, std::initializer_list<const char*> options) {
  place(app, section, advanced_mark, options);
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
  const bool all = mode == CLI::AppFormatMode::All;
  if (app->get_parent()) return command_help(app, name, all);
  std::string text = program_help(app, name);
  if (!all) return text;
  for (const CLI::App* command : app->get_subcommands({})) {
    text += "\n" + command_help(command, name + " " + command->get_name(), true);
  }
  return text;
}

}  // namespace hayloft::cli
