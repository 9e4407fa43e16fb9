#pragma once

#include <CLI/CLI.hpp>

#include "runtime/checkpoint/rope.h"

// The rotary position embedding that a model is run with, in llama.cpp's spelling.
namespace hayloft::cli {

// --rope-scaling, --rope-scale, --yarn-orig-ctx, --rope-freq-base.
void add_rope_options(CLI::App& app, runtime::RopeOverrides& rope);

}  // namespace hayloft::cli
