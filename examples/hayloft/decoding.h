#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "examples/hayloft/audit_options.h"
#include "examples/hayloft/streams/environment.h"
#include "offload/progress.h"
#include "runtime/decode/sampler.h"
#include "runtime/decode/session.h"

// Generating text from a session and printing it as it comes.
namespace hayloft::cli {

struct Decoded {
  int tokens = 0;  // generated, the end-of-text token not counted
  double seconds = 0;
};

// Shows how far the building of indices is, one after another.
runtime::StateProgress index_progress(std::optional<Progress>& progress);

// Session::prepare with its progress on standard error; says nothing where there is nothing to do.
void prepare_method(runtime::Session& session, const runtime::Method& method);

// Decodes from `token`, the last of the prompt and not yet in the session, until an end-of-text token or `most` tokens,
// and prints the text to standard output. `done` is kept up to date, also when Interrupted is thrown.
void decode_and_print(const Environment& environment, runtime::Session& session, WatchedMethod& method,
                      const runtime::SamplerOptions& sampling, std::int32_t token, int most, Decoded& done);

// "generated: N tokens, X ms/token", `beside` behind that, and the bytes read per token by place.
std::string decode_summary(const runtime::Session& session, const Decoded& done, const std::string& beside);

}  // namespace hayloft::cli
