#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "examples/hayloft/audit_options.h"
#include "examples/hayloft/process/environment.h"
#include "offload/progress.h"
#include "offload/snapshot/snapshot.h"
#include "runtime/decode/drafting.h"
#include "runtime/decode/sampler.h"
#include "runtime/decode/session.h"

// Generating text from a session and printing it as it comes.
namespace hayloft::cli {

// Keeps what a conversation has of an answer besides what is printed.
struct Answer {
  std::vector<std::int32_t> drawn;  // the token that ends it included
  std::string text;
};

struct Decoded {
  int tokens = 0;  // generated, the end-of-text token not counted
  double seconds = 0;
  runtime::DraftFigures drafts = {};    // where tokens were drafted
  runtime::ExpertTraffic experts = {};  // where experts come over the link
};

// Shows how far the building of indices is, one after another.
runtime::StateProgress index_progress(std::optional<Progress>& progress);

// Session::prepare with its progress on standard error; says nothing where there is nothing to do.
void prepare_method(runtime::Session& session, const runtime::Method& method);

// Says how tokens are drawn, and when that ends.
struct Drawing {
  runtime::SamplerOptions sampling;
  int most = 0;                                      // tokens
  int answers = 1;                                   // to the same text
  std::vector<std::int32_t> ends = {};               // besides the model's end-of-text tokens
  std::optional<runtime::DraftOptions> drafts = {};  // of which exact attention verifies several a pass ...
  bool drafts_where_exact = false;                   // ... only where the method attends exactly anyhow
  bool channels = false;                             // the model writes messages of several channels, as gpt-oss does
};

// Has tokens drafted: as --exact asks, or where there is no --exact by copies from the text wherever `auto` attends
// exactly, unless --draft none is asked for. Throws as require_drafts().
void set_drafts(Drawing& drawing, const std::optional<runtime::DraftOptions>& exact, const std::string& draft,
                const runtime::MethodOptions& method, const Environment& environment);

// Throws Error where the drawing names tokens that the model does not have, or all answers would be the same.
void check_drawing(const Environment& environment, const Drawing& drawing);

// The tokens before an answer, of which rules of drawing go: those of a saved context, where there is one, and what
// follows it up to the token that is decoded first.
struct TokensBefore {
  const offload::Snapshot* saved = nullptr;
  std::span<const std::int32_t> prompt;
};

// Decodes from the last token of the prompt, which is not yet in the session, until a token that ends the text or as
// many as are allowed, and prints the text to standard output; what it holds of reasoning in a channel of its own goes
// to standard error. `done`, and `answer` unless it is null, are kept up to date, also when Interrupted is thrown.
void decode_and_print(const Environment& environment, runtime::Session& session, WatchedMethod& method,
                      const Drawing& drawing, const TokensBefore& before, Decoded& done, Answer* answer = nullptr);

// Calls answer() for each answer that is wanted, one after another: in a fork of the session where there are several,
// with a seed of its own. Behind each but the last there is an empty line on standard output.
using AnswerOnce = std::function<void(runtime::Session& session, const Drawing& drawing)>;
void each_answer(runtime::Session& session, const Drawing& drawing, const AnswerOnce& answer);

// "generated: N tokens, X ms/token", `beside` behind that, and the bytes read per token by place.
std::string decode_summary(const runtime::Session& session, const Decoded& done, const std::string& beside);

}  // namespace hayloft::cli
