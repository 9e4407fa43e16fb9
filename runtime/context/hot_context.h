#pragma once

#include "gpu/backend.h"
#include "offload/snapshot/snapshot.h"
#include "runtime/decode/session.h"

// Notes what decoding read often of a saved context, kept beside its file for the next time it is opened on a device
// that keeps such reads (gpu::Backend::keeps_reads). A hint: without it, or with one that is damaged or of another
// context, nothing but time differs.
namespace hayloft::runtime {

// Reads now, into the device's memory, what the file says, as far as the method reads such things at all: columns, and
// rows of lists. The session was opened from the snapshot. Whether there was anything to read: not where the device has
// no room for it. Other sessions of the backend may take their steps meanwhile, this one may not.
bool warm(const Session& session, const Method& method, gpu::Backend& backend, const offload::Snapshot& snapshot);

// Writes what the device keeps of the context's blocks for warm(); a file that is there is replaced. Nothing is written
// where the device keeps nothing, and over ranks, each of which has blocks of its own. Throws Error, naming the file,
// where it cannot be written. Whether it was.
bool keep_hot(const Session& session, gpu::Backend& backend, const offload::Snapshot& snapshot);

}  // namespace hayloft::runtime
