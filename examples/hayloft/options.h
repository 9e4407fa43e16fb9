#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpu/backend.h"
#include "gpu/device_options.h"
#include "offload/error.h"
#include "offload/store/layout.h"
#include "runtime/attention/method.h"
#include "runtime/decode/sampler.h"
#include "runtime/decode/session.h"
#include "runtime/plan/plan.h"

// The options that several subcommands share, and the ways of reading a value. What is typed wrong throws Error or
// CLI::ParseError while the command line is being parsed.
namespace hayloft::cli {

struct MachineOptions {
  int threads = 0;                // 0: all processors this process may use
  std::string device = "auto";    // auto, cpu, cuda
  gpu::CudaOptions cuda;          // what of it `--device cuda` takes
  std::uint64_t host_memory = 0;  // bytes for K and V; 0: what is free, less a tenth
  int block_tokens = 4096;        // 0, which cannot be asked for: a subcommand chooses by the length of a context
  bool verbose = false;
  std::string profile;  // a file; empty: the one that hayloft link keeps
};
void add_machine_options(CLI::App& app, MachineOptions& options);
void add_profile_option(CLI::App& app, MachineOptions& options);

struct AttentionOptions {
  std::vector<std::string> attn;
  runtime::MethodOptions defaults;  // what the items of --attn start from
  std::set<std::string> flags;      // keys that were given as flags, as in --attn-r

  // Prints a line on standard error for a flag that none of the methods uses. Throws Error.
  std::vector<runtime::MethodOptions> methods() const;
  // Throws Error when several are given to a subcommand that takes one.
  runtime::MethodOptions one_method(const char* subcommand) const;
};
void add_attention_options(CLI::App& app, AttentionOptions& options, std::vector<std::string> default_attn);

// --index METHOD,...: methods whose indices are to be saved with a context.
void add_index_option(CLI::App& app, std::vector<std::string>& indices);
std::vector<std::shared_ptr<const runtime::Method>> make_indices(const std::vector<std::string>& indices, int head_dim);

void add_sampling_options(CLI::App& app, runtime::SamplerOptions& options);
void add_prefill_options(CLI::App& app, runtime::SessionOptions& options);  // --prefill and its own, --batch

void add_columns_option(CLI::App& app, offload::ColumnFormat& columns);  // --columns

// A context length: parse_count's notation, at least 1, and few enough for positions of 32 bits.
std::int64_t context_length(const std::string& text);
std::vector<std::int64_t> context_lengths(const std::string& text);  // one at least, with commas between them

// --shape: LAYERS,HEADS,KV-HEADS,HEAD-DIM.
runtime::plan::ShapeOptions read_shape(const std::string& text);

// The columns of K: f16, int8 or int4.
offload::ColumnFormat column_format(const std::string& text);

// An option whose text `read` turns into a value. Given twice, the last one counts.
template <class Read>
CLI::Option* add_text(CLI::App& app, const std::string& names, const std::string& type, Read read,
                      const std::string& help) {
  return app.add_option_function<std::string>(names, read, help)->type_name(type)->take_last();
}

// A check of a number: finite, and within [least, most]. CLI::Range lets "nan" through.
inline CLI::Validator finite(double least, double most) {
  const auto check = [=](const std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most) return {};
    return fmt::format("{}: must be a number from {} to {}", text, least, most);
  };
  return {check, fmt::format("FLOAT in [{} - {}]", least, most)};
}

// One of a few words, each standing for a value.
template <class T>
CLI::Option* add_choice(CLI::App& app, const std::string& name, std::vector<std::pair<std::string, T>> choices,
                        const std::string& help, std::function<void(T)> choose) {
  std::string words;
  for (const auto& [word, value] : choices) words += (words.empty() ? "" : "|") + word;
  const auto read = [=](const std::string& text) {
    for (const auto& [word, value] : choices) {
      if (text == word) return choose(value);
    }
    fail("{} {}: must be one of {}", name, text, words);
  };
  return add_text(app, name, words, read, help);
}

// parse_count and parse_bytes with the option's name in what they throw; counts within [least, most].
int read_int(const std::string& option, const std::string& text, int least = 1);
std::uint64_t read_bytes(const std::string& option, const std::string& text);

}  // namespace hayloft::cli
