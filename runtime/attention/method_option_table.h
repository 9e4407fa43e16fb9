#pragma once

#include <span>
#include <string>
#include <string_view>

#include "runtime/attention/method_options.h"

namespace hayloft::runtime {

// One option of attention methods. The table of them is the only place where they are defined: the program's flags, the
// form sparq:r=8, help, labels in tables and error messages come from it. A new option is a field of MethodOptions and
// an entry here.
struct MethodOption {
  std::string_view key;       // behind a method's name, as in sparq:r=8; the program's flag is --attn-KEY
  std::string_view also;      // another name of the flag; empty: none
  std::string_view value;     // what help puts for its value: "R", "on|off"
  std::string_view methods;   // those that use it, with spaces between them
  std::string_view standard;  // what it is when nobody gives it, as it would be written; empty: `help` says
  std::string_view help;

  // Sets the field from text. `named` is how messages call the option: "--attn-r", "--attn sparq: r". Throws Error.
  void (*read)(MethodOptions& options, std::string_view text, std::string_view named);
  // Returns what method_label() says of it; empty where there is nothing to tell.
  std::string (*label)(const MethodOptions& options);
  // Throws Error, naming the flag, on values that do not fit a head dimension or another option; may be null.
  void (*check)(const MethodOptions& options, int head_dim);
};

// These as options are written: "softmax", "kv-head", "coverage".
std::string_view name(index::GroupRule rule);
std::string_view name(index::SelectPer per);
std::string_view name(index::Temperature temperature);
std::string_view name(index::ComponentOrder order);
std::string_view name(Rest::Kind rest);

// In the order of labels.
std::span<const MethodOption> method_option_table();

const MethodOption* find_method_option(std::string_view key);  // null: there is none
std::string flag(const MethodOption& option);                  // "--attn-r"
bool uses(std::string_view method, const MethodOption& option);

// Returns why an option that the method uses changes nothing beside its others; empty where it does.
std::string idle_reason(const MethodOptions& options, const MethodOption& option);

// MethodOption::read, with the option's name in front of every message.
void read_method_option(const MethodOption& option, MethodOptions& options, std::string_view text,
                        std::string_view named);

// Every check of an option that the method uses. Throws Error.
void check_method_options(const MethodOptions& options, int head_dim);

}  // namespace hayloft::runtime
