#include "examples/hayloft/options/attention.h"

#include <algorithm>
#include <cctype>

#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/values.h"
#include "examples/hayloft/process/messages.h"
#include "offload/error.h"
#include "offload/text/list.h"
#include "runtime/attention/method_option_table.h"

namespace hayloft::cli {
namespace {

// With the methods that use it in front, where not nearly all do.
std::string method_help(const runtime::MethodOption& option) {
  const std::vector<std::string_view> methods = split_list(option.methods, ' ');
  const bool nearly_all = methods.size() + 1 == runtime::method_names().size();
  if (!nearly_all) return fmt::format("{}: {}", fmt::join(methods, ", "), option.help);
  std::string help(option.help);
  help.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(help.front())));
  return help;
}

void note_unless_used(const runtime::MethodOption& option, const std::vector<runtime::MethodOptions>& methods) {
  std::string names;
  std::string idle;
  for (const runtime::MethodOptions& method : methods) {
    const bool used = runtime::uses(method.name, option);
    if (used) idle = runtime::idle_reason(method, option);
    if (used && idle.empty()) return;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", method.name);
  }
  if (!idle.empty()) return note("note: {} has no effect: {}\n", runtime::flag(option), idle);
  note("note: {} has no effect: not used by {}, but by {}\n", runtime::flag(option), names,
       fmt::join(split_list(option.methods, ' '), ", "));
}

bool is_needed_often(const runtime::MethodOption& option) {
  return option.key == "r" || option.key == "k";
}

void add_flag(CLI::App& app, AttentionOptions& options, const runtime::MethodOption& option) {
  const std::string flag = runtime::flag(option);
  add_text(
      app, option.also.empty() ? flag : fmt::format("{},{}", flag, option.also), std::string(option.value),
      [&, flag](const std::string& text) {
        runtime::read_method_option(option, options.defaults, text, flag);
        options.flags.emplace(option.key);
      },
      method_help(option))
      ->default_str(std::string(option.standard));
  (is_needed_often(option) ? common : advanced)(app, Section::attention, {flag.c_str()});
}

// An index is saved as ann's factory and aware say; each search has k, nprobe and the like of its own.
void note_unless_saved(const runtime::MethodOptions& options, const std::string& item) {
  if (options.name != "ann") return;
  runtime::MethodOptions saved;
  saved.name = options.name;
  saved.factory = options.factory;
  saved.query_aware = options.query_aware;
  if (options == saved) return;
  note("note: --index {}: what it says of searches has no effect: an index is made by factory and aware\n", item);
}

const runtime::MethodOptions& only(const std::vector<runtime::MethodOptions>& methods, const char* subcommand) {
  if (methods.size() != 1) fail("--attn: {} takes one method, and {} are given", subcommand, methods.size());
  return methods.front();
}

}  // namespace

void add_attention_options(CLI::App& app, AttentionOptions& options, std::vector<std::string> default_attn) {
  options.app = &app;
  options.attn = std::move(default_attn);
  app.add_option("--attn", options.attn,
                 fmt::format("{}; options follow as in sparq:r=8:k=256; may be repeated",
                             fmt::join(runtime::method_names(), ", ")))
      ->type_name("METHOD,...")
      ->allow_extra_args(false)
      ->capture_default_str();
  common(app, Section::attention, {"--attn"});
  for (const bool often : {true, false}) {
    for (const runtime::MethodOption& option : runtime::method_option_table()) {
      if (is_needed_often(option) == often) add_flag(app, options, option);
    }
  }
}

std::vector<runtime::MethodOptions> AttentionOptions::methods() const {
  std::vector<runtime::MethodOptions> methods;
  for (const std::string& list : attn) {
    for (const std::string& item : runtime::split_methods(list)) {
      methods.push_back(named("--attn", [&] { return runtime::parse_method(item, defaults); }));
      if (std::find(methods.begin(), methods.end() - 1, methods.back()) != methods.end() - 1) {
        fail("--attn: {} stands there twice", runtime::method_label(methods.back()));
      }
    }
  }
  for (const std::string& key : flags) note_unless_used(*runtime::find_method_option(key), methods);
  return methods;
}

runtime::MethodOptions AttentionOptions::one_method(const char* subcommand) const {
  return only(methods(), subcommand);
}

std::vector<runtime::MethodOptions> AttentionOptions::methods(offload::ColumnFormat& columns) const {
  std::vector<runtime::MethodOptions> all = methods();
  if (app->count("--columns") == 0 && std::any_of(all.begin(), all.end(), runtime::needs_planes)) {
    columns = offload::ColumnFormat::planes;
  }
  return all;
}

runtime::MethodOptions AttentionOptions::one_method(const char* subcommand, offload::ColumnFormat& columns) const {
  return only(methods(columns), subcommand);
}

void add_index_option(CLI::App& app, std::vector<std::string>& indices) {
  app.add_option("--index", indices,
                 "Also save what a method keeps of the context: the index of ann:FACTORY, the positions of h2o:k=K; "
                 "may be repeated")
      ->type_name("METHOD,...")
      ->allow_extra_args(false);
  common(app, Section::output, {"--index"});
}

std::vector<std::shared_ptr<const runtime::Method>> make_indices(const std::vector<std::string>& indices,
                                                                 int head_dim) {
  std::vector<std::shared_ptr<const runtime::Method>> methods;
  for (const std::string& list : indices) {
    for (const std::string& item : runtime::split_methods(list)) {
      const runtime::MethodOptions options = named("--index", [&] { return runtime::parse_method(item, {}); });
      if (options.name != "ann" && options.name != "h2o") {
        fail("--index {}: keeps nothing that would be worth saving; ann and h2o do", item);
      }
      methods.push_back(runtime::make_method(options, head_dim));
      note_unless_saved(options, item);
    }
  }
  return methods;
}

}  // namespace hayloft::cli
