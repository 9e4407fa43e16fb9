#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>

#include "examples/hayloft/options/machine.h"
#include "runtime/decode/session.h"

// Checks what commands that run over ranks look at before they begin.
namespace hayloft::cli {

// Throws Error naming the option that ranks cannot do together: a budget of a device that none uses, an
// approximate prefill, a method.
void require_over_ranks(const MachineOptions& machine, const runtime::SessionOptions& session,
                        std::span<const runtime::MethodOptions> methods);
// Throws Error naming the first of these options that was given.
void refuse_over_ranks(const CLI::App& command, std::initializer_list<const char*> options);

// Everything that was typed but what may differ between machines: where files lie, memory, threads.
std::string shared_options(const CLI::App& command);

}  // namespace hayloft::cli
