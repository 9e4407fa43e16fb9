#include "runtime/serve/openai/request.h"

#include <fmt/format.h>

#include <random>

#include "runtime/serve/openai/draft.h"
#include "runtime/serve/openai/room.h"

namespace hayloft::runtime::serve::openai {
namespace {

constexpr std::size_t kMostRequestTokens = std::size_t{1} << 25;  // of all prompts of a request, each n times

std::uint64_t seed_of(Draft& draft) {
  if (!draft.seed) {
    std::random_device device;
    draft.seed = (std::uint64_t{device()} << 32) | device();
  }
  return *draft.seed;
}

}  // namespace

void read_model(const Value& value, Draft& draft) {
  const Served& served = draft.served;
  const std::string model = value.text();
  draft.request.model = model;
  if (model == served.name) return;
  if (!model.starts_with(served.name + ":")) {
    throw BadRequest(404, fmt::format("model \"{}\" is not served here; \"{}\" is", shown_name(model), served.name),
                     value.name(), "model_not_found");
  }
  const std::string context = model.substr(served.name.size() + 1);
  bool found = false;
  try {
    found = served.contexts.contains(context);
  } catch (const Error& error) {
    throw BadRequest(400, error.what(), value.name());
  }
  if (!found) {
    throw BadRequest(404, fmt::format("there is no saved context \"{}\"", context), value.name(), "model_not_found");
  }
  draft.pattern.context = context;
}

std::vector<std::int32_t> prompt_tokens(std::string_view text, const Draft& draft, std::string_view guard) {
  const Tokenizer& tokenizer = draft.served.tokenizer;
  return draft.pattern.context.empty() ? tokenizer.encode_prompt(text, guard)
                                       : tokenizer.encode_continuation(text, guard);
}

void add_generations(Draft& draft, std::vector<std::int32_t> tokens, std::string text, const char* field) {
  Request& request = draft.request;
  if (tokens.empty()) refuse(field, "is empty: there is nothing to go on from");
  const auto most = static_cast<std::size_t>(draft.served.most_choices);
  const auto copies = static_cast<std::size_t>(draft.n);
  if (request.generations.size() + copies > most) {
    refuse("n", fmt::format("prompts with {} answers each: at most {} answers in one request", copies, most));
  }
  std::size_t together = tokens.size() * copies;
  for (const GenerationRequest& each : request.generations) together += each.tokens.size();
  if (together > kMostRequestTokens) {
    refuse("n", fmt::format("{} tokens in all prompts for {} answers each: at most {} in one request", together, copies,
                            kMostRequestTokens));
  }
  GenerationRequest generation = draft.pattern;
  generation.tokens = std::move(tokens);
  const std::vector<std::string> notes =
      draft.counted ? std::vector<std::string>() : hold_to_room(draft, generation, field);
  request.copies = copies;
  for (std::size_t copy = 0; copy < copies; ++copy) {
    generation.sampling.seed = seed_of(draft) + copy;
    request.generations.push_back(generation);
    request.prompts.push_back(text);
    request.notes.push_back(notes);
  }
}

}  // namespace hayloft::runtime::serve::openai
