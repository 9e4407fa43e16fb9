// An attention method of one's own: `strided` attends to every n-th position of the store besides the newest ones, as
// fixed sparse patterns do (Sparse Transformer, arXiv 1904.10509). Registered, it is a method like the others, and what
// the library has for those it has for this one: counters, plans, audits, forks.
//   method MODEL-DIR TEXT-FILE
// reads the text, decodes a token by each of some methods and prints what they read for it and how far their logits are
// from those of dense attention.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <utility>

#include "gpu/make_backend.h"
#include "offload/error.h"
#include "runtime/attention/method.h"
#include "runtime/decode/load_tokenizer.h"
#include "runtime/decode/session.h"

using namespace hayloft;

namespace {

class Strided : public runtime::Method {
 public:
  using Method::Method;

  // Ranks positions; attending is the library's. The plan has already what is not selected: the newest `window`
  // positions and the tail. plan.lists lists of plan.k positions below plan.limit are to be chosen, ascending: here by
  // their number alone. A method that scores keys gives a ranking by columns or keys instead
  // (runtime/attention/ranking.h).
  runtime::Ranking ranking(const runtime::Step&, const runtime::SelectionPlan& plan) const override {
    std::vector<std::int32_t> positions;
    for (int list = 0; list < plan.lists; ++list) {
      for (int i = 0; i < plan.k; ++i) positions.push_back(static_cast<std::int32_t>(i * plan.limit / plan.k));
    }
    return runtime::given_positions(std::move(positions));
  }

  // Rows of the selected positions cross the link and nothing else does; nothing is scored to find them, so the
  // elements are those of the attended rows, K and V.
  runtime::Counters count_planned(const gpu::CacheView& cache, const runtime::SelectionPlan& plan) const override {
    const runtime::StepTerms n(cache, plan);
    runtime::Counters counters = runtime::count_selection(cache, plan);
    counters.positions_scored = 0;
    counters.elements = n.heads * 2 * n.k * n.d;
    return counters;
  }
};

std::string read_text(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("cannot read {}", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) fail("usage: method MODEL TEXT-FILE");
  runtime::register_method("strided", [](const runtime::MethodOptions& options) -> std::unique_ptr<runtime::Method> {
    return std::make_unique<Strided>(options);
  });

  const offload::Topology topology;
  const offload::Threads threads;
  const auto backend = gpu::make_cpu_backend(threads);
  const runtime::Model model(argv[1], *backend);
  const runtime::Tokenizer tokenizer = runtime::load_tokenizer(argv[1]);
  offload::Arena arena(topology);
  runtime::SessionOptions options;
  options.cache.block_tokens = 64;  // a short text has a short tail
  runtime::Session text(model, arena, options);
  const std::vector<std::int32_t> tokens = tokenizer.encode_prompt(read_text(argv[2]));
  if (tokens.size() < 2) fail("{}: too short", argv[2]);
  text.append(std::span(tokens).first(tokens.size() - 1));

  std::vector<float> exact;
  for (const char* name : {"dense", "topk:k=64", "strided:k=64"}) {
    runtime::Session session = text.fork();
    session.set_method(runtime::make_method(runtime::parse_method(name, {}), model.config().head_dim));
    const std::vector<float> logits = session.step(tokens.back());
    if (exact.empty()) exact = logits;
    double furthest = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      furthest = std::max(furthest, static_cast<double>(std::fabs(logits[i] - exact[i])));
    }
    std::printf("%-14s %8llu elements read, logits within %.3f of dense attention's\n", name,
                static_cast<unsigned long long>(session.counters().elements), furthest);
  }
} catch (const Error& error) {
  std::fprintf(stderr, "method: %s\n", error.what());
  return 1;
}
