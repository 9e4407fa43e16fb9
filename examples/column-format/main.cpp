// A format of the key columns of one's own: `signs` keeps one bit of every key component, whether it lies above the
// mean of its component in the block, beside hayloft's store. A step scores the positions of the store by these bits,
// with a table look-up for every eight of them, and attends exactly to the k best.
//   column-format MODEL-DIR TEXT-FILE [METHOD...]
// reads the text but for its end, decodes that by some methods, and prints what they read for a token and how far their
// logits are from those of dense attention.
//
// A format that the store itself keeps (--columns) belongs in hayloft's tree, where it takes eight files:
//   offload/store/column_formats.h             its row of the table, from which all else follows
//   one beside offload/store/planes.cpp, and offload/store/columns.h             what a key becomes
//   one beside index/scan/columns/keys_int4-inl.h, and column_keys-inl.h         how the scan reads it
//   one beside gpu/cuda/kernels/columns/int4.cuh, and columns.cuh                how a device writes and reads it
//   docs/design.md                             its number in saved contexts, what a search sees
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>

#include "gpu/make_backend.h"
#include "offload/error.h"
#include "runtime/attention/method.h"
#include "runtime/decode/load_tokenizer.h"
#include "runtime/decode/session.h"

using namespace hayloft;

namespace {

// The signs that are kept of one block of a layer. Immutable, so that forks share it.
struct SignBlock {
  int tokens = 0;
  std::vector<f16> ranges;          // [Hkv][d][2]: the mean of a component, and how far keys are from it on average
  std::vector<std::uint8_t> signs;  // [Hkv][tokens][d / 8]: bit c of byte j is set where component 8 j + c is above
};

SignBlock signs_of_block(const offload::LayerView& store, std::int64_t first, const offload::Threads& threads) {
  const int d = store.layout->head_dim, heads = store.layout->kv_heads;
  SignBlock out;
  out.tokens = static_cast<int>(std::min<std::int64_t>(store.layout->block_tokens, store.tokens - first));
  out.ranges.resize(static_cast<std::size_t>(heads * d * 2));
  out.signs.resize(static_cast<std::size_t>(heads) * static_cast<std::size_t>(out.tokens * d / 8));
  threads.parallel_for(heads, 1, [&](std::int64_t head, std::int64_t) {
    std::vector<f16> space(static_cast<std::size_t>(out.tokens) * static_cast<std::size_t>(2 * d));
    const f16* const keys = store.keys(static_cast<int>(head), first, out.tokens, space.data());  // [tokens][2 d]
    for (int c = 0; c < d; ++c) {
      double mean = 0, spread = 0;
      for (int t = 0; t < out.tokens; ++t) mean += to_float(keys[t * 2 * d + c]) / out.tokens;
      for (int t = 0; t < out.tokens; ++t) spread += std::fabs(to_float(keys[t * 2 * d + c]) - mean) / out.tokens;
      f16* const range = out.ranges.data() + (head * d + c) * 2;
      range[0] = to_f16(static_cast<float>(mean));
      range[1] = to_f16(static_cast<float>(spread));
      for (int t = 0; t < out.tokens; ++t) {
        const bool above = to_float(keys[t * 2 * d + c]) > to_float(range[0]);
        if (above) out.signs[static_cast<std::size_t>((head * out.tokens + t) * d / 8 + c / 8)] |= 1u << (c % 8);
      }
    }
  });
  return out;
}

// A sequence's: hayloft makes it, forks it with the session, and calls sync_with_cache() before every token.
class Signs : public runtime::MethodState {
 public:
  Signs(const runtime::AttentionShape& shape, const offload::Threads& threads)
      : threads_(threads), layers_(static_cast<std::size_t>(shape.layers)) {}

  std::unique_ptr<MethodState> fork() const override { return std::make_unique<Signs>(*this); }

  void sync_with_cache(std::span<const gpu::CacheView> layers, const runtime::StateProgress& progress) override {
    std::int64_t done = 0, total = 0;
    for (const gpu::CacheView& cache : layers) total += cache.store.tokens;
    for (const gpu::CacheView& cache : layers) {
      auto& blocks = layers_[static_cast<std::size_t>(cache.layer)];
      while (blocks.size() < cache.store.blocks.size()) {
        const std::int64_t first = std::ssize(blocks) * cache.store.layout->block_tokens;
        blocks.push_back(std::make_shared<const SignBlock>(signs_of_block(cache.store, first, threads_)));
        if (progress) progress(done + first + blocks.back()->tokens, total);
      }
      done += cache.store.tokens;
    }
  }

  std::uint64_t bytes() const override {
    std::uint64_t bytes = 0;
    for (const auto& blocks : layers_) {
      for (const auto& block : blocks) bytes += block->ranges.size() * sizeof(f16) + block->signs.size();
    }
    return bytes;
  }

  std::span<const std::shared_ptr<const SignBlock>> blocks(int layer) const {
    return layers_[static_cast<std::size_t>(layer)];
  }

 private:
  const offload::Threads& threads_;
  std::vector<std::vector<std::shared_ptr<const SignBlock>>> layers_;
};

// Appends q . x for the first `tokens` of a block, x being mean plus or minus spread by each key's bits.
void score(const SignBlock& block, int head, int tokens, std::span<const float> q, std::vector<float>& scores) {
  const auto d = std::ssize(q);
  const f16* const ranges = block.ranges.data() + head * d * 2;
  float at_means = 0;
  std::vector<std::array<float, 256>> tables(static_cast<std::size_t>(d / 8));  // what a byte of signs adds
  for (std::ptrdiff_t j = 0; j < d / 8; ++j) {
    std::array<float, 8> weights;
    std::array<float, 256>& table = tables[static_cast<std::size_t>(j)];
    table[0] = 0;
    for (std::ptrdiff_t c = 0; c < 8; ++c) {
      const float x = q[static_cast<std::size_t>(8 * j + c)];
      at_means += x * to_float(ranges[(8 * j + c) * 2]);
      weights[static_cast<std::size_t>(c)] = x * to_float(ranges[(8 * j + c) * 2 + 1]);
      table[0] -= weights[static_cast<std::size_t>(c)];
    }
    for (unsigned byte = 1; byte < 256; ++byte) {
      table[byte] = table[byte & (byte - 1)] + 2 * weights[static_cast<std::size_t>(std::countr_zero(byte))];
    }
  }
  const std::uint8_t* signs = block.signs.data() + std::ptrdiff_t{head} * block.tokens * (d / 8);
  for (int t = 0; t < tokens; ++t) {
    float sum = at_means;
    for (const std::array<float, 256>& table : tables) sum += table[*signs++];
    scores.push_back(std::isnan(sum) ? -std::numeric_limits<float>::infinity() : sum);
  }
}

// The k positions with the largest scores, ascending; of equal ones the smaller positions.
std::vector<std::int32_t> best(const std::vector<float>& scores, int k) {
  std::vector<std::int32_t> positions(scores.size());
  for (std::size_t t = 0; t < scores.size(); ++t) positions[t] = static_cast<std::int32_t>(t);
  std::nth_element(positions.begin(), positions.begin() + k, positions.end(), [&](std::int32_t a, std::int32_t b) {
    const float x = scores[static_cast<std::size_t>(a)], y = scores[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });
  positions.resize(static_cast<std::size_t>(k));
  std::sort(positions.begin(), positions.end());
  return positions;
}

class BySigns : public runtime::Method {
 public:
  using Method::Method;

  std::string state_key() const override { return "signs"; }
  std::unique_ptr<runtime::MethodState> make_state(const runtime::AttentionShape& shape,
                                                   gpu::Backend& backend) const override {
    return std::make_unique<Signs>(shape, backend.threads());
  }

  // A KV head ranks by the sum of its query heads' logits: that of the sum of their queries.
  runtime::Ranking ranking(const runtime::Step& step, const runtime::SelectionPlan& plan) const override {
    const int d = step.at.head_dim();
    const std::vector<float> query = query_on_host(step);
    const auto blocks = static_cast<const Signs&>(*step.state).blocks(step.at.cache.layer);
    std::vector<std::int32_t> positions(static_cast<std::size_t>(plan.positions()));
    step.at.backend.threads().parallel_for(plan.k > 0 ? plan.lists : 0, 1, [&](std::int64_t list, std::int64_t) {
      std::vector<float> sum(static_cast<std::size_t>(d));
      const std::int64_t queries = step.at.query_heads / plan.lists;
      for (std::int64_t i = 0; i < queries * d; ++i) {
        sum[static_cast<std::size_t>(i % d)] += query[static_cast<std::size_t>(list * queries * d + i)];
      }
      const auto head = static_cast<int>(list * step.at.kv_heads() / plan.lists);
      std::vector<float> scores;
      for (const auto& block : blocks) {
        const auto tokens = std::min<std::int64_t>(block->tokens, plan.limit - std::ssize(scores));
        score(*block, head, static_cast<int>(tokens), sum, scores);
      }
      std::ranges::copy(best(scores, plan.k), positions.begin() + list * plan.k);
    });
    return runtime::given_positions(std::move(positions));
  }

  // Each list reads the bits of all positions that may be selected, and the ranges of their blocks, near the memory;
  // an element is 16 bits of either, as one of the store is. Then come the rows.
  runtime::Counters count_planned(const gpu::CacheView& cache, const runtime::SelectionPlan& plan) const override {
    const runtime::StepTerms n(cache, plan);
    const std::int64_t scored = plan.k > 0 ? plan.limit : 0;
    const std::int64_t block = cache.store.layout->block_tokens;
    const auto bytes = static_cast<std::uint64_t>(plan.lists) * n.d *
                       (static_cast<std::uint64_t>(scored) / 8 +
                        static_cast<std::uint64_t>((scored + block - 1) / block) * 2 * sizeof(f16));
    runtime::Counters counters = runtime::count_selection(cache, plan);
    counters.at(runtime::Place::near, runtime::Kind::index) += bytes;
    counters.positions_scored = n.heads * static_cast<std::uint64_t>(scored);
    counters.elements = bytes / sizeof(f16) + n.heads * runtime::window_elements(n.k, n.d);
    return counters;
  }

  std::uint64_t state_bytes(const runtime::AttentionShape& shape, std::int64_t tokens) const override {
    return static_cast<std::uint64_t>(shape.layers * shape.kv_heads) * static_cast<std::uint64_t>(shape.head_dim) *
           static_cast<std::uint64_t>(tokens) / 8;  // but for the ranges, which depend on the store's blocks
  }
};

std::string read_text(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("cannot read {}", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) fail("usage: column-format MODEL-DIR TEXT-FILE [METHOD...]");
  runtime::register_method("signs", [](const runtime::MethodOptions& options) -> std::unique_ptr<runtime::Method> {
    return std::make_unique<BySigns>(options);
  });

  const offload::Topology topology;
  const offload::Threads threads;
  const auto backend = gpu::make_cpu_backend(threads);
  const runtime::Model model(argv[1], *backend);
  const runtime::Tokenizer tokenizer = runtime::load_tokenizer(argv[1]);
  offload::Arena arena(topology);
  runtime::SessionOptions options;
  options.cache.block_tokens = 64;  // a short text has a short tail, and a block fills now and then
  runtime::Session text(model, arena, options);
  const std::vector<std::int32_t> tokens = tokenizer.encode_prompt(read_text(argv[2]));
  constexpr std::size_t decoded = 160;
  if (tokens.size() < 2 * decoded) fail("{}: too short, {} tokens", argv[2], tokens.size());

  std::vector<runtime::SharedMethod> methods;
  std::vector<const char*> names{"dense", "topk:k=64", "sparq:r=8:k=64", "signs:k=64"};
  if (argc > 3) names.assign(argv + 3, argv + argc);
  for (const char* name : names) {
    methods.push_back(runtime::make_method(runtime::parse_method(name, {}), model.config().head_dim));
    text.attach_method(*methods.back());  // what it keeps is made of the text once, for all forks
  }
  text.append(std::span(tokens).first(tokens.size() - decoded));
  for (const runtime::SharedMethod& method : methods) text.prepare(*method);

  const auto decode = [&](const runtime::SharedMethod& method) {
    runtime::Session session = text.fork();
    session.set_method(method);
    std::vector<std::vector<float>> logits;
    for (const std::int32_t token : std::span(tokens).last(decoded)) logits.push_back(session.step(token));
    return std::pair(std::move(logits), session.counters());
  };
  const auto exact = decode(runtime::make_method({}, model.config().head_dim)).first;
  for (std::size_t i = 0; i < methods.size(); ++i) {
    const auto [logits, counters] = decode(methods[i]);
    double furthest = 0;  // of each token's logits, on average
    for (std::size_t t = 0; t < decoded; ++t) {
      double largest = 0;
      for (std::size_t j = 0; j < logits[t].size(); ++j) {
        largest = std::max(largest, std::fabs(static_cast<double>(logits[t][j]) - exact[t][j]));
      }
      furthest += largest / decoded;
    }
    const auto a_token = [](std::uint64_t n) { return static_cast<unsigned long long>(n / decoded); };
    std::printf("%-16s %9llu elements a token, %9llu bytes near memory, %9llu over the link; logits within %.3f\n",
                names[i], a_token(counters.elements), a_token(counters.total(runtime::Place::near)),
                a_token(counters.total(runtime::Place::link)), furthest);
  }
} catch (const Error& error) {
  std::fprintf(stderr, "column-format: %s\n", error.what());
  return 1;
}
