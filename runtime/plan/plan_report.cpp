#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "offload/error.h"
#include "offload/text/format.h"
#include "offload/text/json_text.h"
#include "offload/text/text_table.h"
#include "offload/text/units.h"
#include "runtime/plan/plan.h"

// A plan as people and as programs read it.
namespace hayloft::runtime::plan {
namespace {

struct Term {
  const char* name;
  double PlanTime::*ms;
};
constexpr Term terms[] = {{"search", &PlanTime::search},   {"rows", &PlanTime::rows},
                          {"dense", &PlanTime::dense},     {"tail", &PlanTime::tail},
                          {"weights", &PlanTime::weights}, {"experts", &PlanTime::experts},
                          {"fixed", &PlanTime::fixed},     {"network", &PlanTime::network}};

// Leaves out the network's where there is none, and that of experts that lie on a device.
std::vector<Term> terms_of(const Plan& plan) {
  std::vector<Term> all(std::begin(terms), std::end(terms));
  const auto is_zero = [&](const PlannedMethod& method) { return !method.ms || method.ms->experts == 0; };
  if (std::ranges::all_of(plan.methods, is_zero)) {
    std::erase_if(all, [](const Term& term) { return term.ms == &PlanTime::experts; });
  }
  if (plan.ranks == 1) all.pop_back();
  return all;
}

std::uint64_t bytes_read(const Counters& counters) {
  return counters.total(Place::link) + counters.total(Place::near) + counters.total(Place::device);
}

// The stages of all methods, each in the order of a step.
std::vector<std::string> stages_of(const std::vector<PlannedMethod>& methods) {
  std::vector<std::string> all;
  for (const PlannedMethod& method : methods) {
    auto next = all.begin();
    for (const PredictedStage& stage : method.predicted) {
      const auto found = std::find(all.begin(), all.end(), stage.stage);
      next = (found != all.end() ? found : all.insert(next, stage.stage)) + 1;
    }
  }
  return all;
}

// Says which stages of a method's prediction were not counted at its shape, and what is not in it.
std::string basis_text(const PlannedMethod& method) {
  std::string text;
  for (const Basis basis : {Basis::scaled, Basis::bytes, Basis::assumed}) {
    std::string stages;
    for (const PredictedStage& stage : method.predicted) {
      if (stage.basis == basis) stages += (stages.empty() ? "" : ", ") + stage.stage;
    }
    constexpr const char* said[] = {"", "counted at another shape and scaled", "by bytes alone", "assumed"};
    if (!stages.empty())
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", said[static_cast<int>(basis)], stages);
  }
  const std::uint64_t near = method.counters.total(Place::near);
  if (near > 0) text += fmt::format("; not in it: the search of {} beside the memory", format_bytes(near));
  if (rest_of(method.attn).by_scores()) text += "; not in it: the estimate of the rest";
  return fmt::format("{}: {}\n", method_label(method.attn), text);
}

// Three digits are what a prediction is worth.
std::string ms_text(double ms) {
  return fmt::format("{:.{}f}", ms, ms < 1 ? 3 : ms < 10 ? 2 : ms < 100 ? 1 : 0);
}

// The longest context that fits and the cheapest change, each a line.
std::string remedy_text(const Plan& plan) {
  if (!plan.remedy) return "";
  const Remedy& remedy = *plan.remedy;
  std::string text = remedy.longest_tokens > 0
                         ? fmt::format("\nThe longest context that fits: {} tokens.\n", remedy.longest_tokens)
                         : "\nNo context fits, however short.\n";
  if (remedy.change.empty()) return text + "No other format of weights, rows and columns makes this one fit.\n";
  text += fmt::format("The cheapest change that makes this one fit: {} (then {} in the machine's memory", remedy.change,
                      format_bytes(remedy.memory_bytes));
  if (plan.memory.apart) text += fmt::format(", {} on the device", format_bytes(remedy.device_bytes));
  return text + ").\n";
}

// Shows the decode step on the given card: a row of what is predicted, with what bounds it, and one of what issuing the
// instructions takes of that.
std::string predicted_table(const std::vector<PlannedMethod>& methods) {
  const std::vector<std::string> stages = stages_of(methods);
  if (stages.empty()) return {};
  std::string text = "\n| predicted ms per token on the given card |", rule = "\n|---|";
  for (const std::string& stage : stages) text += fmt::format(" {} |", stage), rule += "---:|";
  text += " **all** |" + rule + "---:|\n";
  std::string bases;
  for (const PlannedMethod& method : methods) {
    if (method.predicted.empty()) continue;
    std::string bounded = fmt::format("| {} |", method_label(method.attn)), issuing = "| of instructions alone |";
    double total = 0;
    for (const std::string& name : stages) {
      const auto stage = std::find_if(method.predicted.begin(), method.predicted.end(),
                                      [&](const PredictedStage& one) { return one.stage == name; });
      const bool known = stage != method.predicted.end();
      bounded += known ? fmt::format(" {:.2f} {} |", stage->ms, stage->bound) : " |";
      issuing += known ? fmt::format(" {:.2f} |", stage->instructions_ms) : " |";
      total += known ? stage->ms : 0;
    }
    text += fmt::format("{} {:.1f} |\n", bounded, total);
    text += issuing + " |\n";
    bases += basis_text(method);
  }
  return text + "\n" + bases;
}

// Shows what is expected to cross the link by the methods for which a device keeps anything.
std::string cache_table(const std::vector<PlannedMethod>& methods) {
  TextTable table{{"method", "columns kept there", "share of all", "of columns read, there", "of rows",
                   "over the link per token", "without"}};
  for (const PlannedMethod& method : methods) {
    if (!method.cache) continue;
    const ExpectedCache& cache = *method.cache;
    const auto percent = [](double share) { return fmt::format("{:.1f}%", 100 * share); };
    table.push_back({method_label(method.attn), format_bytes(cache.column_bytes), percent(cache.columns_kept),
                     percent(cache.columns_held), percent(cache.rows_held), format_bytes(cache.link_bytes),
                     format_bytes(method.counters.total(Place::link))});
  }
  if (table.size() == 1) return "";
  return "\nWhat the device keeps in memory that is left; shares of what is read are those of other texts and "
         "models:\n\n" +
         markdown(table);
}

// Says where experts are that do not lie with all other weights, and what of them a token asks for there.
std::string experts_text(const std::optional<PlannedExperts>& experts) {
  if (!experts) return "";
  if (experts->placement.place == ExpertPlace::near) {
    return fmt::format("\nExperts: near the processor, which reads {} of them for each token.\n",
                       format_bytes(experts->near_bytes));
  }
  return fmt::format(
      "\nExperts: over the link; the device keeps {} of a layer's {} by use, which are expected to be {:.1f}% of those "
      "asked for; {} over the link for each token.{}\n",
      experts->placement.kept, experts->of, 100 * experts->held, format_bytes(experts->link_bytes),
      experts->divided_for.empty()
          ? ""
          : fmt::format(" So least crosses the link by {}, with columns and rows.", experts->divided_for));
}

nlohmann::ordered_json experts_json(const std::optional<PlannedExperts>& experts) {
  if (!experts) return nullptr;
  return {{"place", name(experts->placement.place)},
          {"of_a_layer", experts->of},
          {"kept", experts->placement.kept},
          {"held", experts->held},
          {"link_bytes_per_token", experts->link_bytes},
          {"near_bytes_per_token", experts->near_bytes},
          {"divided_for", experts->divided_for}};
}

// Shows what ranks tell each other, and what the given network takes for that.
std::string network_table(const Plan& plan) {
  TextTable table{{"method", "collectives a token", "a rank sends", "and receives", "ms on the given network"}};
  for (const PlannedMethod& method : plan.methods) {
    if (!method.network) continue;
    const NetworkStep& step = *method.network;
    const std::uint64_t most = step.bytes + step.further_bytes;
    table.push_back({method_label(method.attn),
                     step.further == 0 ? fmt::format("{}", step.messages)
                                       : fmt::format("{} to {}", step.messages, step.messages + step.further),
                     format_bytes(most), format_bytes(most * static_cast<std::uint64_t>(plan.ranks - 1)),
                     method.network_ms ? fmt::format("{:.3f}", *method.network_ms) : "-"});
  }
  if (table.size() == 1) return "";
  return fmt::format("\nBetween {} ranks, whatever the context's length:\n\n", plan.ranks) + markdown(table);
}

// Shows exact decoding of several tokens a pass, beside single steps.
std::string exact_table(const Plan& plan) {
  if (plan.exact.empty()) return "";
  const PlannedExact& single = plan.exact.front();
  TextTable table{{"`--draft`", "drafted a pass", "tokens a pass", "over the link per token", "of none"}};
  if (single.ms) table[0].insert(table[0].end(), {"per token", "of none"});
  if (single.card_ms) table[0].insert(table[0].end(), {"predicted ms per token on the given card", "of none"});
  const auto percent = [](double part, double whole) {
    return whole > 0 ? fmt::format("{:.0f}%", 100 * part / whole) : "-";
  };
  for (const PlannedExact& exact : plan.exact) {
    table.push_back({exact.drafts, fmt::format("{}", exact.drafted), fmt::format("{:.1f}", exact.tokens),
                     format_bytes(exact.link_bytes),
                     percent(static_cast<double>(exact.link_bytes), static_cast<double>(single.link_bytes))});
    std::vector<std::string>& row = table.back();
    if (single.ms) row.insert(row.end(), {format_duration(*exact.ms / 1000), percent(*exact.ms, *single.ms)});
    if (single.card_ms) row.insert(row.end(), {ms_text(*exact.card_ms), percent(*exact.card_ms, *single.card_ms)});
  }
  const std::uint64_t more = plan.exact.back().memory;
  return fmt::format("\n`--exact` with drafts of which {:.4g}% are accepted, predicted:\n\n", 100 * *plan.accepted) +
         markdown(table) + (more > 0 ? fmt::format("\n`mtp` takes {} of memory besides.\n", format_bytes(more)) : "");
}

nlohmann::ordered_json remedy_json(const Remedy& remedy) {
  nlohmann::ordered_json json{{"longest_tokens", remedy.longest_tokens}, {"change", nullptr}};
  if (remedy.change.empty()) return json;
  json["change"] = remedy.change;
  json["total"] = remedy.memory_bytes;
  json["device"] = remedy.device_bytes;
  return json;
}

}  // namespace

std::string plan_table(const Plan& plan) {
  const PlanMemory& memory = plan.memory;
  std::string text =
      fmt::format("context {} ({} tokens{})\n\n| memory | bytes |\n|---|---:|\n", format_count(plan.tokens),
                  plan.tokens, plan.ranks > 1 ? fmt::format(", on each of {} ranks", plan.ranks) : "");
  const auto row = [&](const std::string& what, std::uint64_t bytes) {
    text += fmt::format("| {} | {} |\n", what, format_bytes(bytes));
  };
  row("host: rows of K and V", memory.rows);
  row("host: columns of K", memory.columns);
  if (memory.host_weights > 0) row("host: embedding, and experts that lie there", memory.host_weights);
  if (memory.indices > 0) row("host: indices and other state of the methods", memory.indices);
  const char* where = memory.apart ? "device: " : "";
  row(fmt::format("{}tails, when the context has been read", where), memory.tails);
  row(fmt::format("{}a question's tails, while it is read", where), memory.question);
  if (memory.states > 0) row(fmt::format("{}states of recurrent layers", where), memory.states);
  row(fmt::format("{}workspace", where), memory.workspace);
  row(fmt::format("{}weights", where), memory.weights);
  if (memory.apart) {
    row("device: scratch, and CUDA itself", memory.scratch);
    row("**on the device**", memory.device());
    row("budget of the device", plan.device_budget);
    row("left on the device", plan.device_budget - std::min(plan.device_budget, memory.device()));
  }
  row("program and tokenizer", memory.program);
  row("text and its tokens", memory.text);
  row(memory.apart ? "**in the machine's memory**" : "**in memory**", memory.total());
  row("budget for rows and columns", plan.host_budget);
  row("disk, when saved: at most", memory.saved);
  row("memory, while it is read to be saved", memory.total_when(true));
  text += plan.shortfall.empty() ? "\nIt fits.\n" : fmt::format("\nIt does not fit: {}.\n", plan.shortfall);
  text += remedy_text(plan);

  text += plan.ranks > 1 ? "\n| method | read per token, on all ranks |" : "\n| method | read per token |";
  std::string rule = "\n|---|---:|";
  const bool timed = !plan.methods.empty() && plan.methods.front().ms;
  if (timed) {
    for (const Term& term : terms_of(plan)) text += fmt::format(" {}, ms |", term.name), rule += "---:|";
    text += " **per token** |";
    rule += "---:|";
  }
  text += rule + "\n";
  for (const PlannedMethod& method : plan.methods) {
    text += fmt::format("| {} | {} |", method_label(method.attn), format_bytes(bytes_read(method.counters)));
    if (timed) {
      for (const Term& term : terms_of(plan)) text += fmt::format(" {} |", ms_text((*method.ms).*term.ms));
      text += fmt::format(" {} |", format_duration(method.ms->total() / 1000));
    }
    text += "\n";
  }

  text += network_table(plan);
  text += experts_text(plan.experts);
  text += cache_table(plan.methods);
  text += predicted_table(plan.methods);
  text += exact_table(plan);

  const bool on_card =
      std::ranges::any_of(plan.prefill, [](const PlannedPrefill& prefill) { return prefill.card_seconds.has_value(); });
  text += "\n| reading the context | products | attention | over a link |";
  text += timed ? " **time** |" : "";
  text += on_card ? " predicted on the card |" : "";
  text += "\n|---|---:|---:|---:|";
  text += timed ? "---:|" : "";
  text += on_card ? "---:|\n" : "\n";
  for (const PlannedPrefill& prefill : plan.prefill) {
    text += fmt::format("| {} | {} | {} | {} |", prefill.strategy, format_flops(prefill.products),
                        format_flops(prefill.attention), format_large_bytes(prefill.moved));
    const auto time = [](std::optional<double> s) { return s ? fmt::format(" {} |", format_duration(*s)) : " |"; };
    if (timed) text += time(prefill.seconds);
    if (on_card) text += time(prefill.card_seconds);
    text += "\n";
  }
  return text;
}

std::string plan_line(const Plan& plan) {
  const PlanMemory& memory = plan.memory;
  std::string text = fmt::format("plan: {} tokens, {} in memory, {} of it keys and values", plan.tokens,
                                 format_bytes(memory.total()), format_bytes(memory.store()));
  if (memory.apart) text += fmt::format(", {} on the device", format_bytes(memory.device()));
  if (memory.mapped > 0) text += fmt::format(", and {} mapped", format_bytes(memory.mapped));
  for (const PlannedMethod& method : plan.methods) {
    if (method.ms) text += fmt::format("; {} {:.2f} ms/token", method_label(method.attn), method.ms->total());
  }
  return text;
}

std::string plan_json(const std::vector<Plan>& plans) {
  nlohmann::ordered_json report = {{"schema", "hayloft.plan/1"}, {"plans", nlohmann::ordered_json::array()}};
  for (const Plan& plan : plans) {
    nlohmann::ordered_json entry = {
        {"tokens", plan.tokens},
        {"ranks", plan.ranks},
        {"bytes",
         {{"host_rows", plan.memory.rows},
          {"host_columns", plan.memory.columns},
          {"indices", plan.memory.indices},
          {"tails", plan.memory.tails},
          {"question", plan.memory.question},
          {"states", plan.memory.states},
          {"workspace", plan.memory.workspace},
          {"weights", plan.memory.weights},
          {"host_weights", plan.memory.host_weights},
          {"program", plan.memory.program},
          {"text", plan.memory.text},
          {"total", plan.memory.total()},
          {"scratch", plan.memory.scratch},
          {"device", plan.memory.device()},
          {"host_budget", plan.host_budget},
          {"device_budget", plan.device_budget},
          {"saved_at_most", plan.memory.saved},
          {"total_when_saved", plan.memory.total_when(true)}}},
        {"fits", plan.shortfall.empty()},
        {"shortfall", plan.shortfall},
        {"remedy", plan.remedy ? remedy_json(*plan.remedy) : nullptr},
        {"experts", experts_json(plan.experts)},
        {"methods", nlohmann::ordered_json::array()},
        {"accepted", json_or_null(plan.accepted)},
        {"exact", nlohmann::ordered_json::array()},
        {"prefill", nlohmann::ordered_json::array()},
    };
    for (const PlannedMethod& method : plan.methods) {
      nlohmann::ordered_json times;  // null without a profile
      if (method.ms) {
        for (const Term& term : terms_of(plan)) times[term.name] = (*method.ms).*term.ms;
        times["total"] = method.ms->total();
      }
      nlohmann::ordered_json predicted = nlohmann::ordered_json::array();
      for (const PredictedStage& stage : method.predicted) {
        predicted.push_back({{"stage", stage.stage},
                             {"predicted_ms", stage.ms},
                             {"bound", stage.bound},
                             {"basis", name(stage.basis)},
                             {"instructions_ms", stage.instructions_ms},
                             {"memory_ms", stage.memory_ms},
                             {"link_ms", stage.link_ms}});
      }
      nlohmann::ordered_json expected;  // null where nothing is kept
      if (method.cache) {
        expected = {{"column_bytes", method.cache->column_bytes},
                    {"columns_kept", method.cache->columns_kept},
                    {"columns_held", method.cache->columns_held},
                    {"rows_held", method.cache->rows_held},
                    {"link_bytes_per_token", method.cache->link_bytes}};
      }
      nlohmann::ordered_json network;  // null of one machine
      if (method.network) {
        network = {{"messages_per_token", method.network->messages},
                   {"sent_bytes_per_token", method.network->bytes},
                   {"further_messages_per_token", method.network->further},
                   {"further_sent_bytes_per_token", method.network->further_bytes},
                   {"received_bytes_per_token", method.network->bytes * static_cast<std::uint64_t>(plan.ranks - 1)},
                   {"ms_per_token", json_or_null(method.network_ms)}};
      }
      entry["methods"].push_back({{"attn", method_label(method.attn)},
                                  {"bytes_per_token", bytes_read(method.counters)},
                                  {"elements_per_token", method.counters.elements},
                                  {"expected_on_device", expected},
                                  {"network", network},
                                  {"ms_per_token", times},
                                  {"predicted_on_card", predicted}});
    }
    for (const PlannedExact& exact : plan.exact) {
      entry["exact"].push_back({{"draft", exact.drafts},
                                {"drafted_per_pass", exact.drafted},
                                {"tokens_per_pass", exact.tokens},
                                {"link_bytes_per_token", exact.link_bytes},
                                {"memory_bytes", exact.memory},
                                {"ms_per_token", json_or_null(exact.ms)},
                                {"predicted_on_card_ms_per_token", json_or_null(exact.card_ms)}});
    }
    for (const PlannedPrefill& prefill : plan.prefill) {
      entry["prefill"].push_back({{"strategy", prefill.strategy},
                                  {"product_flops", prefill.products},
                                  {"attention_flops", prefill.attention},
                                  {"link_bytes", json_count(prefill.moved)},
                                  {"seconds", json_or_null(prefill.seconds)},
                                  {"predicted_on_card_seconds", json_or_null(prefill.card_seconds)}});
    }
    report["plans"].push_back(std::move(entry));
  }
  return json_document(report);
}

}  // namespace hayloft::runtime::plan
