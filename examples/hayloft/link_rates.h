#pragma once

#include <string>

#include "runtime/machine/profile.h"

// The rates of a machine profile as hayloft link prints them: every figure that was measured, with its slowest and its
// fastest turn, and a mark on those that another run may contradict.
namespace hayloft::cli {

std::string rates_table(const runtime::plan::MachineProfile& profile);  // Markdown
std::string rates_csv(const runtime::plan::MachineProfile& profile);

}  // namespace hayloft::cli
