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
          fmt::format("the model was made for {}{}; shorten the prompt, or let the server scale RoPE as the model's "
                      "makers name it for such lengths (--rope-scaling)",
                      config.max_positions, config.rope_overrides.empty() ? "" : " with RoPE scaled as it is here")};
}

[[noreturn]] void refuse_length(const std::string& what, const Room& room, const char* field) {
  throw BadRequest(400, fmt::format("{}: {}, and {}", field, what, room.why), field, "context_length_exceeded");
}

std::int64_t tokens_of_context(const Draft& draft) {
  const std::string& context = draft.pattern.context;
  if (context.empty()) return 0;
  try {
    return offload::Snapshot::open(draft.served.contexts.path(context)).token_count();
  } catch (const Error&) {  // of which the engine says why it cannot be asked
    return 0;
  }
}

// Holds a request to its room. `prompt` counts the tokens of a saved context before it as well.
void hold_to(const Room& room, std::int64_t prompt, std::optional<std::int64_t> said, std::int64_t usual,
             GenerationRequest& generation, const char* field) {
  const std::int64_t least = said ? *said : 1;
  if (prompt > room.tokens - least) {
    refuse_length(said && *said > 0
                      ? fmt::format("the prompt's {} tokens and {} to generate are {}", prompt, *said, prompt + *said)
                      : fmt::format("the prompt has {} tokens", prompt),
                  room, field);
  }
  const std::int64_t bound = said ? *said : std::min(usual, room.tokens - prompt);
  generation.max_tokens = static_cast<int>(std::min<std::int64_t>(generation.max_tokens, bound));
}

}  // namespace

std::vector<std::string> hold_to_room(const Draft& draft, GenerationRequest& generation, const char* field) {
  const Served& served = draft.served;
  const ModelConfig& config = served.config;
  const bool chat = draft.request.style == Style::chat;
  const std::optional<std::int64_t> said = draft.max_completion_tokens ? draft.max_completion_tokens : draft.max_tokens;
  const std::int64_t usual = chat ? served.longest_answer : kUsualAnswer;
  const auto own = static_cast<std::int64_t>(generation.tokens.size());
  const std::int64_t prompt = tokens_of_context(draft) + own;

  generation.max_tokens = std::numeric_limits<int>::max();
  if (served.longest > 0) {
    hold_to({served.longest, fmt::format("this server takes {}, see --ctx-size", served.longest)}, own, said, usual,
            generation, field);
  }
  hold_to(room_of_model(config), prompt, said, usual, generation, field);

  if (config.rope_overrides.empty() || config.own_positions == 0 || prompt <= config.own_positions) return {};
  return {
      fmt::format("the prompt's {} tokens are more than the {} that the model itself was made for; the server "
                  "scales its RoPE ({}), and answers may be worse than within them",
                  prompt, config.own_positions, config.rope_overrides)};
}

}  // namespace hayloft::runtime::serve::openai
