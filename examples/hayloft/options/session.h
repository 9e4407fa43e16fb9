#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>

#include "runtime/decode/sampler.h"
#include "runtime/decode/session.h"

// Says how a prompt is read and how tokens are chosen.
namespace hayloft::cli {

void add_sampling_options(CLI::App& app, runtime::SamplerOptions& options);
// Says which of the options given a temperature of 0 passes over; `options` are those that tokens are drawn by.
void note_unused_sampling(const CLI::App& app, const runtime::SamplerOptions& options);
// --prefill and its own, --batch. With `ways` --prefill may list several, which then have kind and sparse alone; what
// is said of all is in the options.
void add_prefill_options(CLI::App& app, runtime::SessionOptions& options,
                         std::vector<runtime::PrefillOptions>* ways = nullptr);
// Says which of the options given none of these ways of reading uses.
void note_unused_prefill(const CLI::App& app, std::span<const runtime::PrefillOptions> ways);

// -n,--n-predict; `tokens` holds the default.
void add_predict_option(CLI::App& app, int& tokens);
// --answers.
void add_answers_option(CLI::App& app, int& answers);

}  // namespace hayloft::cli
