#include "runtime/decode/drafting.h"

#include <fmt/format.h>

#include <algorithm>

#include "offload/error.h"
#include "offload/text/format.h"
#include "runtime/attention/method.h"
#include "runtime/decode/session.h"

namespace hayloft::runtime {
namespace {

bool begins_draft(std::string_view text, std::string_view word) {
  return text == word || (text.starts_with(word) && (text[word.size()] == ':' || text[word.size()] == ','));
}

}  // namespace

DraftOptions parse_draft(std::string_view text) {
  DraftOptions options;
  options.lookup = false;
  if (text == "none") return options;
  for (std::string_view left = text; !left.empty();) {
    if (begins_draft(left, "lookup")) {
      options.lookup = true;
      left.remove_prefix(std::string_view("lookup").size());
      if (left.starts_with(':')) fail("--draft {}: lookup has no options", text);
    } else if (begins_draft(left, "self")) {
      if (options.self) fail("--draft {}: names self twice; one method drafts", text);
      const std::size_t end = std::min({left.find(",lookup"), left.find(",self"), left.find(",mtp")});
      std::string_view method = left.substr(0, end).substr(std::string_view("self").size());
      if (method.starts_with(':')) method.remove_prefix(1);
      options.self = parse_method(method.empty() ? "sparq" : method, {});
      check_draft_method(*options.self);
      left = end == std::string_view::npos ? std::string_view() : left.substr(end);
    } else if (begins_draft(left, "mtp")) {
      options.head = true;
      left.remove_prefix(std::string_view("mtp").size());
      if (left.starts_with(':')) fail("--draft {}: mtp has no options", text);
    } else {
      fail(
          "--draft {}: must be lookup, self, self:METHOD or mtp, lookup and another with a comma between them, or none",
          text);
    }
    if (left.starts_with(',')) {
      left.remove_prefix(1);
      if (left.empty()) fail("--draft {}: ends in a comma", text);
    }
  }
  if (!options.any()) fail("--draft: names no source of drafts; lookup, self, mtp, lookup,self, lookup,mtp or none");
  if (options.self && options.head) fail("--draft {}: names self and mtp; one of them drafts", text);
  return options;
}

void check_draft_method(const MethodOptions& method) {
  if (method.name == "dense") fail("--draft self:dense: drafts nothing sooner; use none, or another method");
  if (method.name == "h2o" || is_registered_method(method.name)) {
    fail(
        "--draft self:{}: may keep what a drafted token attended to, which cannot be taken back; use sparq, topk or "
        "planes",
        method.name);
  }
}

DraftFigures& DraftFigures::operator+=(const DraftFigures& other) {
  passes += other.passes;
  tokens += other.tokens;
  drafted += other.drafted;
  accepted += other.accepted;
  link_bytes += other.link_bytes;
  return *this;
}

DraftFigures DraftFigures::operator-(const DraftFigures& before) const {
  return {passes - before.passes, tokens - before.tokens, drafted - before.drafted, accepted - before.accepted,
          link_bytes - before.link_bytes};
}

std::string draft_line(const DraftFigures& figures) {
  return fmt::format(
      "{} passes for {} tokens, {} of {} drafted tokens accepted, {} over the link per token", figures.passes,
      figures.tokens, figures.accepted, figures.drafted,
      format_bytes(figures.link_bytes / static_cast<std::uint64_t>(std::max<std::int64_t>(1, figures.tokens))));
}

void Drafting::next(Session& session, Sampler& sampler, int most, const Take& take) {
  const std::uint64_t before = session.counters().total(Place::link) + session.draft_counters().total(Place::link);
  std::vector<std::int32_t> tokens = draft(session, sampler, std::min(most, session.verified_at_once()) - 1);
  tokens.insert(tokens.begin(), text_.back());
  std::vector<std::int32_t> drawn;
  int drafted = 0;
  session.verify(tokens, [&](const float* logits, int T) {
    drafted = T - 1;
    for (int i = 0;; ++i) {
      drawn.push_back(session.draw(logits + static_cast<std::int64_t>(i) * session.config().vocab_size, sampler));
      const bool goes_on = take(drawn.back());
      if (!goes_on || i + 1 == T || drawn.back() != tokens[static_cast<std::size_t>(i) + 1]) return i + 1;
    }
  });
  text_.read(drawn);
  // The last token drawn is a draft that was accepted where it is the one drafted, and the text ended behind it.
  int accepted = static_cast<int>(drawn.size()) - 1;
  if (accepted < drafted && drawn.back() == tokens[static_cast<std::size_t>(accepted) + 1]) ++accepted;
  if (source_ != nullptr && drafted > 0) source_->add(accepted, drafted);
  ++figures_.passes;
  figures_.tokens += static_cast<std::int64_t>(drawn.size());
  figures_.drafted += drafted;
  figures_.accepted += accepted;
  figures_.link_bytes += session.counters().total(Place::link) + session.draft_counters().total(Place::link) - before;
}

std::vector<std::int32_t> Drafting::draft(Session& session, const Sampler& sampler, int most) {
  source_ = nullptr;
  most = std::min(most, options_.most);
  if (most < 1) return {};
  if (options_.lookup) {
    if (const Lookup::Found found = text_.find(); found.length > 0) {
      Acceptance& copies = copies_.of(found.length);
      const int count = worth(copies, session, DraftSource::text, most);
      if (count > 0) {
        source_ = &copies;
        return text_.copy(found, count);
      }
      copies.pass_over();
    }
  }
  if ((!options_.self && !options_.head) || sampler.has_filter()) return {};  // a draft would move the filter on
  if (options_.head && !session.head_knows_text()) {
    return session.draft_by_head(text_.back(), sampler, 0);  // nothing, or the refusal of a model without a head
  }
  const int count = worth(own_, session, options_.head ? DraftSource::head : DraftSource::method, most);
  if (count == 0) {
    own_.pass_over();
    return {};
  }
  source_ = &own_;
  return options_.head ? session.draft_by_head(text_.back(), sampler, count) : decoded(session, sampler, count);
}

int Drafting::worth(const Acceptance& acceptance, const Session& session, DraftSource source, int most) const {
  return tokens_worth_drafting(acceptance.share(), options_.costs ? *options_.costs : session.draft_costs(source),
                               most);
}

std::vector<std::int32_t> Drafting::decoded(Session& session, Sampler sampler, int most) {
  std::vector<std::int32_t> tokens;
  const Session::Drafts drafts(session);
  for (std::int32_t token = text_.back(); static_cast<int>(tokens.size()) < most;) {
    token = session.draft(token, sampler);
    tokens.push_back(token);
  }
  return tokens;
}

}  // namespace hayloft::runtime
