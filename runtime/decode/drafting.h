#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/attention/method_options.h"
#include "runtime/decode/draft_length.h"
#include "runtime/decode/lookup.h"
#include "runtime/decode/sampler.h"

namespace hayloft::runtime {

class Session;

// Says where drafts come from.
struct DraftOptions {
  bool lookup = true;                 // copied from the text, where its end has occurred before
  std::optional<MethodOptions> self;  // decoded by this method, where nothing is copied
  bool head = false;                  // likewise by the model's head that predicts further tokens, in place of a method
  int most = 24;                      // tokens drafted for one pass; fewer where fewer pay
  std::optional<DraftCosts> costs;    // none: as the session says of itself

  bool any() const { return lookup || self || head; }
};

// "lookup", "self", "self:sparq:r=8:k=256", "mtp", "lookup,self", "lookup,mtp", "none". `self` alone is by sparq, `mtp`
// by the model's head, which the model has to be loaded with. Throws Error.
DraftOptions parse_draft(std::string_view text);

// Throws Error where tokens cannot be drafted by the method: by `dense`, which would save nothing, and by one that
// keeps of the sequence what steps have changed.
void check_draft_method(const MethodOptions& method);

// Counts what drafting has come to.
struct DraftFigures {
  std::int64_t passes = 0;       // of exact attention
  std::int64_t tokens = 0;       // that they have given
  std::int64_t drafted = 0;      // tokens
  std::int64_t accepted = 0;     // of them
  std::uint64_t link_bytes = 0;  // read over the link for all of that, drafts included

  DraftFigures& operator+=(const DraftFigures& other);
  DraftFigures operator-(const DraftFigures& before) const;
};

// "12 passes for 96 tokens, 84 of 90 drafted tokens accepted, 1.2 MiB over the link per token".
std::string draft_line(const DraftFigures& figures);

// Decodes one text exactly, several tokens a pass: drafts what comes next and has the session verify it. Every token is
// drawn from the logits of exact attention, with the random numbers that it would be drawn with one by one, so the text
// is that of single steps by `dense`, token for token, whatever is drafted, sampled or greedy. Of one text; not
// thread-safe.
class Drafting {
 public:
  explicit Drafting(DraftOptions options) : options_(std::move(options)), own_(options_.head ? 0.75 : 0.9) {}

  // The text so far, in any number of parts: from its last token on it is decoded, and that one is not in the session.
  void read(std::span<const std::int32_t> tokens) { text_.read(tokens); }

  // Called with each token as it is drawn; returns whether the text goes on behind it. It must not use the session.
  using Take = std::function<bool(std::int32_t token)>;
  // Decodes the last token of the text, draws what follows, and goes on as long as that was drafted, up to `most`
  // tokens, which are taken and belong to the text. All but the last of them are in the session then. Throws Error.
  void next(Session& session, Sampler& sampler, int most, const Take& take);

  const DraftFigures& figures() const { return figures_; }

 private:
  std::vector<std::int32_t> draft(Session& session, const Sampler& sampler, int most);
  int worth(const Acceptance& acceptance, const Session& session, DraftSource source, int most) const;
  std::vector<std::int32_t> decoded(Session& session, Sampler sampler, int most);

  DraftOptions options_;
  Lookup text_;
  CopyAcceptance copies_;
  Acceptance own_;
  Acceptance* source_ = nullptr;  // of the newest drafts
  DraftFigures figures_;
};

}  // namespace hayloft::runtime
