// An architecture of one's own: Seed-OSS (ByteDance), of which hayloft itself knows nothing. It departs from Llama in
// its biases: q, k and v have them unless config.json says otherwise, o where it says so. Registered, a model of it is
// read, run, planned and saved like any other.
//   architecture MODEL-DIR TOKEN...
// prints the likeliest tokens after those given. Where the folder has logits.safetensors, what another program gave for
// the same tokens (scripts/make-model-goldens.py), it prints how far hayloft's are from those instead.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "gpu/make_backend.h"
#include "offload/error.h"
#include "runtime/checkpoint/architecture.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/decode/session.h"

using namespace hayloft;

namespace {

// The defaults are those of SeedOssConfig in Hugging Face transformers.
void register_seed_oss() {
  runtime::Architecture seed_oss;
  seed_oss.name = "seed_oss";
  seed_oss.kv_heads = 8;
  seed_oss.head_dim = 128;
  seed_oss.max_positions = 524288;
  seed_oss.eos_token = 2;
  seed_oss.reads_mlp_bias = true;
  seed_oss.set_parts = [](const runtime::ConfigFields& fields, runtime::ModelConfig& config) {
    config.qkv_bias = fields.boolean("attention_bias", true);
    config.output_bias = fields.boolean("attention_out_bias", false);
  };
  runtime::register_architecture(seed_oss);
}

std::int32_t parse_token(const char* text, int vocab_size) {
  std::int32_t token = -1;
  const char* const end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, token);
  if (error != std::errc() || rest != end || token < 0 || token >= vocab_size) {
    fail("'{}' is no token of this model; tokens are 0 to {}", text, vocab_size - 1);
  }
  return token;
}

void compare(const std::vector<float>& logits, const runtime::SafetensorsFile& file) {
  const std::vector<float> expected = to_f32(file.at("logits"), "logits");
  if (expected.size() != logits.size()) {
    fail("{}: {} logits, not {}", file.path().string(), expected.size(), logits.size());
  }
  double largest = 0, squares = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double error = std::fabs(static_cast<double>(logits[i]) - expected[i]);
    if (!(error <= largest)) largest = error;  // NaN too
    squares += error * error;
  }
  std::printf("%zu logits: at most %.6f from those of %s, %.6f in root mean square\n", logits.size(), largest,
              file.path().filename().c_str(), std::sqrt(squares / static_cast<double>(logits.size())));
}

void print_likeliest(std::span<const float> logits) {
  std::vector<std::size_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0u);
  const auto most = std::min<std::ptrdiff_t>(5, std::ssize(tokens));
  std::partial_sort(tokens.begin(), tokens.begin() + most, tokens.end(),
                    [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  for (const std::size_t token : std::span(tokens).first(static_cast<std::size_t>(most))) {
    std::printf("token %6zu  logit %8.3f\n", token, static_cast<double>(logits[token]));
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 4) fail("usage: architecture MODEL-DIR TOKEN TOKEN...");
  register_seed_oss();

  const offload::Topology topology;
  const offload::Threads threads;
  const auto backend = gpu::make_cpu_backend(threads);
  const runtime::Model model(argv[1], *backend);
  std::vector<std::int32_t> tokens;
  for (int i = 2; i < argc; ++i) tokens.push_back(parse_token(argv[i], model.config().vocab_size));

  // A prompt, and one token decoded over its cache.
  offload::Arena arena(topology);
  runtime::Session session(model, arena);
  std::vector<float> logits = session.score(std::span(tokens).first(tokens.size() - 1));
  const std::vector<float> last = session.step(tokens.back());
  logits.insert(logits.end(), last.begin(), last.end());

  const std::filesystem::path recorded = std::filesystem::path(argv[1]) / "logits.safetensors";
  if (std::filesystem::exists(recorded)) {
    compare(logits, runtime::SafetensorsFile(recorded));
  } else {
    print_likeliest(last);
  }
} catch (const Error& error) {
  std::fprintf(stderr, "architecture: %s\n", error.what());
  return 1;
}
