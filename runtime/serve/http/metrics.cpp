#include "runtime/serve/http/metrics.h"

#include <fmt/format.h>

namespace hayloft::runtime::serve::http {
namespace {

template <class Value>
void add(std::string& text, const char* name, const char* type, const char* help, Value value) {
  text += fmt::format("# HELP hayloft_{0} {2}\n# TYPE hayloft_{0} {1}\nhayloft_{0} {3}\n", name, type, help, value);
}

}  // namespace

std::string metrics_text(const EngineFigures& figures) {
  std::string text;
  add(text, "requests_total", "counter", "Generations asked for", figures.requests);
  add(text, "finished_total", "counter", "Generations answered to their end", figures.finished);
  add(text, "cancelled_total", "counter", "Generations whose client left", figures.cancelled);
  add(text, "failed_total", "counter", "Generations that ended in an error", figures.failed);
  add(text, "refused_total", "counter", "Generations refused because the queue was full", figures.refused);
  add(text, "prompt_tokens_total", "counter", "Tokens of prompts read", figures.prompt_tokens);
  add(text, "cached_tokens_total", "counter", "Tokens of prompts that did not have to be read", figures.cached_tokens);
  text +=
      "# HELP hayloft_reread_tokens_total Tokens of prompts read again, by why: behind the last whole chunk, of a "
      "session let go, behind something that changed\n# TYPE hayloft_reread_tokens_total counter\n";
  const ReadAgain& again = figures.read_again;
  for (const auto& [why, tokens] :
       {std::pair("chunk", again.chunk), std::pair("let_go", again.let_go), std::pair("changed", again.changed)}) {
    text += fmt::format("hayloft_reread_tokens_total{{why=\"{}\"}} {}\n", why, tokens);
  }
  add(text, "generated_tokens_total", "counter", "Tokens generated", figures.generated_tokens);
  add(text, "rows_fetched_total", "counter", "Rows of K and V attended to while decoding",
      figures.counters.rows_fetched);
  add(text, "columns_ahead_bytes_total", "counter", "Bytes of columns fetched over the link ahead of a step",
      figures.counters.ahead_fetched);
  add(text, "columns_ahead_used_bytes_total", "counter", "Of them, those that the step read",
      figures.counters.ahead_used);
  add(text, "exact_passes_total", "counter", "Passes of exact attention that verified drafts", figures.drafts.passes);
  add(text, "drafted_tokens_total", "counter", "Tokens drafted for them", figures.drafts.drafted);
  add(text, "accepted_tokens_total", "counter", "Drafted tokens that were the ones drawn", figures.drafts.accepted);
  add(text, "exact_link_bytes_total", "counter", "Bytes that passes and drafts read over the link",
      figures.drafts.link_bytes);
  add(text, "experts_asked_total", "counter", "Experts asked for beside a device, once a layer and pass",
      figures.experts.asked);
  add(text, "experts_held_total", "counter", "Of them, those that the device had", figures.experts.held);
  add(text, "experts_link_bytes_total", "counter", "Bytes of the others that came over the link",
      figures.experts.link_bytes);
  text +=
      "# HELP hayloft_read_bytes_total Bytes read while decoding, by place and kind\n"
      "# TYPE hayloft_read_bytes_total counter\n";
  for (int place = 0; place < place_count; ++place) {
    for (int kind = 0; kind < kind_count; ++kind) {
      text += fmt::format("hayloft_read_bytes_total{{place=\"{}\",kind=\"{}\"}} {}\n", name(static_cast<Place>(place)),
                          name(static_cast<Kind>(kind)),
                          figures.counters.at(static_cast<Place>(place), static_cast<Kind>(kind)));
    }
  }
  add(text, "queue", "gauge", "Generations that wait", figures.waiting);
  add(text, "active", "gauge", "Generations being read or decoded", figures.active);
  add(text, "kept_sessions", "gauge", "Sessions kept for requests that begin like them", figures.kept_sessions);
  add(text, "kept_bytes", "gauge",
      "Memory that they hold: blocks that several share once, newest tokens and what a method keeps for each",
      figures.kept_bytes);
  add(text, "saved_prompts", "gauge", "Prompts on the disk", figures.saved.files);
  add(text, "saved_prompt_bytes", "gauge", "What they take there", figures.saved.bytes);
  add(text, "saved_prompt_failures_total", "counter", "Prompts that could not be saved or opened",
      figures.saved.failures);
  add(text, "host_memory_bytes", "gauge", "Host memory in use for whole blocks of keys and values", figures.host_bytes);
  add(text, "host_memory_limit_bytes", "gauge", "What may be used of it", figures.host_budget);
  return text;
}

}  // namespace hayloft::runtime::serve::http
