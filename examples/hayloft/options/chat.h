#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <string>

#include "examples/hayloft/options/machine.h"
#include "runtime/chat/chat_template.h"
#include "runtime/decode/sampler.h"

// Says how a conversation is written for a model, and how its answers are drawn.
namespace hayloft::cli {

struct ChatChoices {
  std::string chat_template = "model";  // or what runtime::ChatTemplate::named() takes
  std::string system;                   // empty: no such message
};
// --chat-template and --system.
void add_chat_options(CLI::App& app, ChatChoices& choices);

// The model's own template, or the one that was named. Throws Error when it is to be the model's and there is none, and
// where it has no place for the system message that was given.
runtime::ChatTemplate chosen_template(const ChatChoices& choices, const std::filesystem::path& model);

// Says which recommendations of a model's makers hold: all of them, or only the rules that hold for greedy texts too,
// where a text that is no answer is continued.
enum class Recommended : std::uint8_t { all, rules };

// The sampling options of a command once parsed, those that were not given replaced by what the model's makers
// recommend; says so with -v. As they are with --no-model-sampling.
runtime::SamplerOptions sampling_for(const CLI::App& app, const runtime::SamplerOptions& given,
                                     const std::filesystem::path& model, Recommended what, bool verbose);

}  // namespace hayloft::cli
