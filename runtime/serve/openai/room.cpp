#include "runtime/serve/openai/room.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace hayloft::runtime::serve::openai {
namespace {

constexpr std::int64_t kUsualAnswer = 16;  // max_tokens of a completion that does not say, as the API has it
constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max();

// Tokens that prompt and answer may have together, and why no more.
struct Room {
  std::int64_t tokens = kUnbounded;
  std::string why;
};

// Options that scale RoPE say how far; another base alone does not.
bool unbounded_by_options(const ModelConfig& config) {
  return config.global_rope.scaling == RopeScaling::none &&
         config.rope_overrides.find("--rope-freq-base") != std::string::npos;
}

Room room_of_model(const ModelConfig& config) {
  if (config.max_positions == 0 || unbounded_by_options(config)) return {};
  if (config.dual_chunk_positions > 0) {
    return {config.max_positions,
            fmt::format("the model was made for {} positions without dual chunk attention, which is not here",
                        config.max_positions)};
  }
  return {config.max_positions,
          fmt::format("the model was made for {}{}; take a shorter text, or let the server scale RoPE as the model's "
                      "makers name it for such lengths (--rope-scaling)",
                      config.max_positions, config.rope_overrides.empty() ? "" : " with RoPE scaled as it is here")};
}

[[noreturn]] void refuse_length(const std::string& what, const Room& room, const char* field) {
  throw BadRequest(400, fmt::format("{}: {}, and {}", field, what, room.why), field, "context_length_exceeded");
}

// Says how long an answer is to be.
struct Length {
  std::optional<std::int64_t> said;  // by max_tokens
  std::int64_t usual;                // where that says nothing
  std::int64_t least;                // that the room must hold
};

// Holds a request to its room. `prompt` counts the tokens of a saved context before it as well.
void hold_to(const Room& room, std::int64_t prompt, const Length& length, GenerationRequest& generation,
             const char* field) {
  if (prompt > room.tokens - length.least) {
    refuse_length(length.least > 1 ? fmt::format("the prompt's {} tokens and {} to generate are {}", prompt,
                                                 length.least, prompt + length.least)
                                   : fmt::format("the prompt has {} tokens", prompt),
                  room, field);
  }
  const std::int64_t wanted = length.said.value_or(length.usual), left = room.tokens - prompt;
  if (std::min(wanted, left) >= generation.max_tokens) return;
  generation.max_tokens = static_cast<int>(std::min(wanted, left));
  generation.fills_room = left < wanted;
}

}  // namespace

std::int64_t tokens_of_context(const Served& served, const std::string& context) {
  if (context.empty()) return 0;
  try {
    return offload::Snapshot::open(served.contexts.path(context)).token_count();
  } catch (const Error& error) {
    if (served.contexts.contains(context)) throw;
    throw BadRequest(404, error.what(), "model", "model_not_found");  // it has gone since the model was read
  }
}

void require_room_behind(const ModelConfig& config, std::int64_t tokens) {
  const Room room = room_of_model(config);
  if (tokens >= room.tokens - 1) fail("the text's {} tokens leave no room for a question: {}", tokens, room.why);
}

std::vector<std::string> hold_to_room(const Draft& draft, GenerationRequest& generation, const char* field) {
  const Served& served = draft.served;
  const ModelConfig& config = served.config;
  const bool chat = draft.request.style == Style::chat;
  const std::optional<std::int64_t> said = draft.max_completion_tokens ? draft.max_completion_tokens : draft.max_tokens;
  const std::int64_t usual = chat ? served.longest_answer : kUsualAnswer;
  const auto own = static_cast<std::int64_t>(generation.tokens.size());
  const std::int64_t prompt = tokens_of_context(served, draft.pattern.context) + own;

  // A chat's answer may be shorter than was said: agents ask for as many tokens of any model.
  const std::int64_t needed = draft.min_tokens ? draft.pattern.sampling.rules.min_new_tokens : 1;
  const Length length{said, usual, chat ? needed : said.value_or(1)};
  generation.max_tokens = std::numeric_limits<int>::max();
  if (served.longest > 0) {
    hold_to({served.longest, fmt::format("this server takes {}, see --ctx-size", served.longest)}, own, length,
            generation, field);
  }
  hold_to(room_of_model(config), prompt, length, generation, field);

  std::vector<std::string> notes;
  if (said && generation.fills_room) {
    notes.push_back(fmt::format("the answer has at most the {} tokens that there is room for, not the {} asked for",
                                generation.max_tokens, *said));
  }
  if (config.rope_overrides.empty() || config.own_positions == 0 || prompt <= config.own_positions) return notes;
  notes.push_back(
      fmt::format("the prompt's {} tokens are more than the {} that the model itself was made for; the server "
                  "scales its RoPE ({}), and answers may be worse than within them",
                  prompt, config.own_positions, config.rope_overrides));
  return notes;
}

}  // namespace hayloft::runtime::serve::openai
