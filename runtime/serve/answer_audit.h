#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/decode/session.h"
#include "runtime/tokenizer/tokenizer.h"

namespace hayloft::runtime {
class Auditor;
}

namespace hayloft::runtime::serve {

// A place of the text that an answer attended to.
struct Quote {
  std::int64_t position = 0;  // of its first token
  std::int64_t tokens = 0;
  double share = 0;  // of the attention of the sampled steps, over all positions
  std::string text;
  std::string before = {}, after = {};  // what stands around it, where the map is told
};

// Says what was read for an answer, what was caught by it, and from where.
struct AnswerAudit {
  double attended_share = 0;     // of the positions, as Session::attended_share
  PredictedError predicted;      // by Session::predicted_error
  std::uint64_t read_bytes = 0;  // of K and V and their columns, over all steps and places
  std::int64_t steps = 0;
  std::int64_t samples = 0;  // steps of single layers that were measured against exact attention
  double recall = 0;         // of the true top k, mean over the samples' heads
  double mass = 0;           // of the exact softmax that was attended: mean
  double least_mass = 0;     // and least, of a head's mean
  std::vector<Quote> quotes;
  std::int64_t mapped = 0;  // tokens that the map is of
  // Shares of the attention of the sampled steps by equal parts of the text: of each head's what it had on one token
  // beyond a tenth, where there was such, since what is less and always there is where attention rests.
  std::vector<double> map;
};

// The attention on each of `parts` equal parts of a text, as shares of `total`; the first tokens, on which attention
// rests for want of anything better, left out.
std::vector<double> map_of(std::span<const double> mass, double total, int parts);

// The places of a text with the most of `looks` [tokens], as windows that do not overlap, the heaviest first: at most
// `count`, none of the first tokens, on which attention rests for want of anything better. Their share is that of
// `mass` [tokens] in `total`, which is all attention there was. Their text is left empty.
std::vector<Quote> heaviest_places(std::span<const double> looks, std::span<const double> mass, double total,
                                   int count);

// Measures samples of one session's steps, of one layer in five at most, and takes up to three tenths of the decoding
// time for it, or as long as that where places are wanted. For one answer; the session must not outlive it as an
// observed one.
class AnswerAuditor {
 public:
  AnswerAuditor(Session& session, const gpu::Backend& backend, int quotes, int map);
  ~AnswerAuditor();
  AnswerAuditor(const AnswerAuditor&) = delete;
  AnswerAuditor& operator=(const AnswerAuditor&) = delete;

  // Ends it. Quotes come from the first `quotable` tokens of the session, as far as text_tokens has them.
  AnswerAudit finish(const Session& session, const Tokenizer& tokenizer, std::int64_t quotable,
                     std::span<const std::int32_t> text_tokens);

 private:
  struct Places;
  int quotes_, map_;
  std::shared_ptr<Places> places_;
  std::shared_ptr<Auditor> auditor_;
};

}  // namespace hayloft::runtime::serve
