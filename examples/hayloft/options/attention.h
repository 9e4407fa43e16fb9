#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/attention/method.h"

// --attn, the options of its methods as flags (runtime/attention/method_option_table.h defines them), and --index.
namespace hayloft::cli {

struct AttentionOptions {
  std::vector<std::string> attn;
  runtime::MethodOptions defaults;  // what the items of --attn start from
  std::set<std::string> flags;      // keys that were given as flags, as in --attn-r

  // Prints a line on standard error for a flag that none of the methods uses. Throws Error.
  std::vector<runtime::MethodOptions> methods() const;
  // Throws Error when several are given to a subcommand that takes one.
  runtime::MethodOptions one_method(const char* subcommand) const;

  // The same; and where --columns was not given, `columns` becomes planes if a method needs them.
  std::vector<runtime::MethodOptions> methods(offload::ColumnFormat& columns) const;
  runtime::MethodOptions one_method(const char* subcommand, offload::ColumnFormat& columns) const;

  const CLI::App* app = nullptr;
};
void add_attention_options(CLI::App& app, AttentionOptions& options, std::vector<std::string> default_attn);

// --index METHOD,...: methods whose indices are to be saved with a context.
void add_index_option(CLI::App& app, std::vector<std::string>& indices);
std::vector<std::shared_ptr<const runtime::Method>> make_indices(const std::vector<std::string>& indices, int head_dim);

}  // namespace hayloft::cli
