// hayloft in a program of your own: reads a text once, then answers every question in a session forked from that one
// context, with SparQ attention.
//   embed MODEL-DIR TEXT-FILE QUESTION...
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "gpu/make_backend.h"
#include "offload/error.h"
#include "runtime/decode/sampler.h"
#include "runtime/decode/session.h"
#include "runtime/tokenizer/tokenizer.h"

using namespace hayloft;

namespace {

std::string read_text(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("cannot read {}", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 4) fail("usage: embed MODEL-DIR TEXT-FILE QUESTION...");

  const offload::Topology topology;
  const offload::Threads threads;
  const auto backend = gpu::make_cpu_backend(threads);
  const runtime::Model model(argv[1], *backend);
  const runtime::Tokenizer tokenizer(argv[1]);
  const auto sparq = runtime::make_method(runtime::parse_method("sparq:r=16:k=128", {}), model.config().head_dim);
  offload::Arena arena(topology);

  runtime::Session text(model, arena);
  text.set_method(sparq);
  text.append(tokenizer.encode_prompt(read_text(argv[2])));

  for (const char* question : std::span(argv + 3, argv + argc)) {
    const std::vector<std::int32_t> tokens = tokenizer.encode(question, false);
    if (tokens.empty()) continue;
    runtime::Session session = text.fork();  // shares the text's keys and values
    session.append(std::span(tokens).first(tokens.size() - 1));

    runtime::Sampler greedy({});
    std::vector<std::int32_t> answer;
    for (std::int32_t token = tokens.back(); answer.size() < 32; answer.push_back(token)) {
      token = greedy.sample(session.step(token));
      if (std::ranges::count(model.config().eos_tokens, token)) break;
    }
    std::printf("%s%s\n", question, tokenizer.decode(answer).c_str());
  }
} catch (const Error& error) {
  std::fprintf(stderr, "embed: %s\n", error.what());
  return 1;
}
