#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "runtime/decode/session.h"

// Options that a saved context has already decided: it goes on in the way it was begun.
namespace hayloft::cli {

// Compare the options that the command line gives with those that stay. Throw Error naming the first that differs and
// shapes what is in the file. Another --batch, which changes speed and the last bits, is said in one line on standard
// error. `file` is named in both.

// Checks what the file and its tokens decide for whatever goes on behind them, which may attend by another --prefill:
// --block-tokens, --columns and --batch, likewise.
void check_kept_layout(const CLI::App& app, const runtime::SessionOptions& asked, const runtime::SessionOptions& kept,
                       const std::string& file);

// Checks --block-tokens alone, of a command that takes nothing else of these.
void check_kept_blocks(const CLI::App& app, int asked, int kept, const std::string& file);

// All of them. Throws for --prefill and the options of the prefill that stays, too.
void check_kept_options(const CLI::App& app, const runtime::SessionOptions& asked, const runtime::SessionOptions& kept,
                        const std::string& file);

}  // namespace hayloft::cli
