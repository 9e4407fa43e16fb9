#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "runtime/decode/session.h"

// Options that a saved context has already decided: it goes on in the way it was begun.
namespace hayloft::cli {

// Compares the options that the command line gives with those that stay. Throws Error naming the first that differs and
// shapes what is in the file: --block-tokens, --columns, --prefill and the options of the prefill that stays. Another
// --batch, which changes speed and the last bits, is said in one line on standard error. `file` is named in both.
void check_kept_options(const CLI::App& app, const runtime::SessionOptions& asked, const runtime::SessionOptions& kept,
                        const std::string& file);

}  // namespace hayloft::cli
