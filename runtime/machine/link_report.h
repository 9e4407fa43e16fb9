#pragma once

#include <string>

#include "gpu/link.h"
#include "gpu/link_choice.h"
#include "runtime/machine/profile.h"

// Writes what `hayloft link` prints of a measured link. Thread-safe: functions of their arguments.
namespace hayloft::runtime::plan {

std::string link_table(const gpu::LinkReport& report);  // Markdown
std::string link_csv(const gpu::LinkReport& report);    // one row per figure

// One object: "link", every figure; and "nvbandwidth", those that mean the same as its testcases, in the shape of its
// own JSON output, for tools that read it.
std::string link_json(const gpu::LinkReport& report);

// Puts the best rates of whole copies and of column streams over the link, at the largest footprint on the pages that
// keys and values lie on, into a profile, in the place of what it had of them.
void note_link(const gpu::LinkReport& report, MachineProfile& profile);

// Returns what --link auto will take once that is in the profile.
gpu::LinkChoice best_link(const gpu::LinkReport& report);

}  // namespace hayloft::runtime::plan
