#include "examples/hayloft/options/llama_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace hayloft::cli {
namespace {

struct Habit {
  std::array<std::string_view, 3> names;  // as llama.cpp has them; empty ones are none
  std::string_view instead;
};

constexpr Habit habits[] = {
    {{"-ngl", "--gpu-layers", "--n-gpu-layers"},
     "all weights lie on the device and keys and values in host memory; --gpu-memory bounds what is taken there, "
     "--device cpu leaves the device alone"},
    {{"-nkvo", "--no-kv-offload", ""}, "keys and values are in host memory always; leave it out"},
    {{"-fa", "--flash-attn", ""}, "attention never holds a matrix of scores; leave it out, --attn chooses the method"},
    {{"-ctk", "--cache-type-k", ""},
     "--rows int8 or int4 is the format of keys and values, --columns that of key columns"},
    {{"-ctv", "--cache-type-v", ""}, "--rows int8 or int4 is the format of keys and values"},
    {{"--mlock", "", ""}, "memory that a device reads is pinned already, see --kv-host; leave it out"},
    {{"--no-mmap", "--mmap", ""}, "weights are read into memory, saved contexts are mapped; leave it out"},
    {{"-ub", "--ubatch-size", ""}, "--batch is the tokens of a prompt read at a time, and there is one size"},
    {{"-sm", "--split-mode", ""}, "a model is on one device; --device cuda:N chooses it"},
    {{"-ts", "--tensor-split", ""}, "a model is on one device; --device cuda:N chooses it"},
    {{"-mg", "--main-gpu", ""}, "--device cuda:N chooses the device"},
    {{"-dev", "", ""}, "--device cpu or cuda:N chooses the device; hayloft --list-devices names them"},
    {{"-tb", "--threads-batch", ""}, "-t holds for prompts as well"},
    {{"--numa", "", ""}, "memory is spread over the nodes and threads stay on theirs; leave it out"},
    {{"-np", "--parallel", ""}, "hayloft serve answers its clients in turns; leave it out"},
    {{"-cb", "--cont-batching", ""}, "hayloft serve answers its clients in turns; leave it out"},
    {{"--prompt-cache", "", ""},
     "hayloft ingest --save CTX.hay reads a text once, hayloft ask CTX.hay answers about it"},
    {{"-cnv", "--conversation", "-i"}, "hayloft chat holds a conversation"},
    {{"--jinja", "", ""}, "the model's own chat template is used; leave it out"},
    {{"-hf", "--hf-repo", "-hfr"}, "nothing is downloaded; -m names a GGUF file or a folder that is there"},
    {{"-mu", "--model-url", ""}, "nothing is downloaded; -m names a GGUF file or a folder that is there"},
    {{"--keep", "", ""}, "nothing is dropped from a context; --attn window:sinks=N attends to its first tokens"},
    {{"--no-context-shift", "--context-shift", ""}, "nothing is dropped from a context; leave it out"},
    {{"-ncmoe", "--n-cpu-moe", "--cpu-moe"}, "experts lie where the other weights do: in host memory by --device cpu"},
    {{"-ot", "--override-tensor", ""}, "weights lie on the device and keys and values in host memory; leave it out"},
    {{"--no-warmup", "--warmup", ""}, "nothing is run beforehand; leave it out"},
};

// Options whose values may look like any other.
constexpr std::string_view free_text[] = {"-p", "--prompt", "--template", "--system", "-sys", "--stop"};

bool has(const CLI::App& command, std::string_view name) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->check_name(std::string(name))) return true;
  }
  return false;
}

}  // namespace

std::optional<std::string> llama_hint(std::span<char* const> arguments, const CLI::App& command) {
  std::string_view before;
  for (const char* const argument : arguments) {
    const std::string_view text = argument;
    const bool is_text = std::ranges::find(free_text, before) != std::end(free_text);
    before = text;
    if (is_text || text.empty() || text.front() != '-') continue;
    const std::string_view name = text.substr(0, text.find('='));
    for (const Habit& habit : habits) {
      if (std::ranges::find(habit.names, name) == habit.names.end() || has(command, name)) continue;
      return fmt::format("{} is an option of llama.cpp: {}", name, habit.instead);
    }
  }
  return std::nullopt;
}

}  // namespace hayloft::cli
