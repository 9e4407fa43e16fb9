#include <algorithm>
#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "gpu/make_backend.h"
#include "offload/host/instruction_set.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/decode/load_tokenizer.h"
#include "runtime/decode/session.h"

// Prints what scripts/compare-logits compares: print_logits MODEL THREADS [exact|int8], and on standard input one JSON
// object,
// {"text", "positions", "prompt", "generate", "out"}. Writes the logits of the text's first `positions` tokens to the
// file `out`, f32 [positions][vocabulary], and answers with {"ids", "vocabulary", "greedy"}: those tokens, and behind
// the first `prompt` of them `generate` times the likeliest token, the next likeliest and how much less likely that is,
// [id, id, difference of the logits].
namespace {

using nlohmann::json;
using namespace hayloft;
using namespace hayloft::runtime;

struct Likeliest {
  std::int32_t first;
  std::int32_t second;
  float gap;
};
Likeliest likeliest(const std::vector<float>& logits) {
  std::vector<std::int32_t> ids(logits.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
  const auto of = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::partial_sort(ids.begin(), ids.begin() + 2, ids.end(), [&](auto a, auto b) { return of(a) > of(b); });
  return {ids[0], ids[1], of(ids[0]) - of(ids[1])};
}

json answer(const std::string& path, int thread_count, gpu::Products products, const json& request) {
  const offload::Threads threads(thread_count);
  const auto backend = gpu::make_cpu_backend(threads, products);
  const offload::Topology topology;
  offload::Arena arena(topology, {.budget_bytes = std::uint64_t{4} << 30});
  const Tokenizer tokenizer = load_tokenizer(path);
  const Model model(path, *backend);

  std::vector<std::int32_t> ids = tokenizer.encode_prompt(request.at("text").get<std::string>());
  ids.resize(std::min<std::size_t>(ids.size(), request.at("positions").get<std::size_t>()));
  const std::vector<float> logits = Session(model, arena).score(ids);
  std::ofstream out(request.at("out").get<std::string>(), std::ios::binary);
  out.write(reinterpret_cast<const char*>(logits.data()), static_cast<std::streamsize>(logits.size() * sizeof(float)));
  if (!out.flush()) throw std::runtime_error("cannot write " + request.at("out").get<std::string>());

  Session session(model, arena);
  const std::size_t prompt = std::min(request.at("prompt").get<std::size_t>(), ids.size());
  session.append(std::span(ids).first(prompt - 1));
  std::int32_t token = ids[prompt - 1];
  json greedy = json::array();
  for (int i = 0; i < request.at("generate").get<int>(); ++i) {
    const Likeliest best = likeliest(session.step(token));
    greedy.push_back({best.first, best.second, best.gap});
    token = best.first;
  }
  return {{"ids", ids}, {"vocabulary", model.config().vocab_size}, {"greedy", greedy}};
}

}  // namespace

int main(int count, char** arguments) {
  try {
    hayloft::offload::limit_instruction_set();
    if (count != 3 && count != 4) throw std::runtime_error("usage: print_logits MODEL THREADS [exact|int8]");
    const bool int8 = count == 4 && std::string(arguments[3]) == "int8";
    const gpu::Products products = int8 ? gpu::Products::int8 : gpu::Products::exact;
    std::cout << answer(arguments[1], std::stoi(arguments[2]), products, json::parse(std::cin)) << std::endl;
  } catch (const std::exception& error) {
    std::cerr << "print_logits: " << error.what() << '\n';
    return 1;
  }
}
