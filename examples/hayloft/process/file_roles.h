#pragma once

#include <CLI/CLI.hpp>

namespace hayloft::cli {

// Compares the files that a command line names, before anything is read: no output may be one of the inputs or another
// output, by whatever name. Files of a folder that is read, a model's, are inputs. Throws Error naming both options;
// also for a file option that names nothing, and for "-" of one that does not write to standard output.
void check_files(const CLI::App& command);

// Throws Error when `path`, which is about to be read and which the command line does not name, is one of the outputs
// that check_files() saw. A folder stands for the files in it.
void require_not_output(const std::filesystem::path& path);

}  // namespace hayloft::cli
