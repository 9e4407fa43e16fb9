#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gpu/make_backend.h"
#include "runtime/eval/eval.h"

// A small model, and tasks of random tokens that it is evaluated by.
namespace hayloft::runtime::eval {

// Prompts of random tokens; led along more of them, or left to answer.
class RandomTask : public EvalTask {
 public:
  RandomTask(int prompt, int forced, int answer) : prompt_(prompt), forced_(forced), answer_(answer) {}
  const std::string& name() const override { return name_; }
  Measure measure() const override { return forced_ > 0 ? Measure::perplexity : Measure::share; }
  std::int64_t ctx_size() const override { return prompt_ + forced_ + answer_; }
  int samples() const override { return 3; }
  EvalSample sample(int number) override {
    std::mt19937 random(static_cast<std::uint32_t>(number) + 1);
    const auto draw = [&](int count) {
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
      for (auto& token : tokens) token = static_cast<std::int32_t>(random() % 128);
      return tokens;
    };
    EvalSample sample{draw(prompt_), answer_, draw(forced_), {"x"}};
    return sample;
  }
  double score(std::string_view answer, const EvalSample&) const override { return answer.empty() ? 0 : 0.5; }

 private:
  std::string name_ = "random";
  int prompt_, forced_, answer_;
};

class EvalTest : public ::testing::Test {
 protected:
  EvalTest() {
    options.session.cache.block_tokens = 16;
    options.session.cache.window = 8;
    options.session.chunk_tokens = 64;
    options.samples = 2;
    for (const char* name : {"dense", "sparq:r=2:k=12", "window:k=16"}) {
      options.methods.push_back(parse_method(name, {}));
    }
    hooks.row = [this](const EvalRow& row) { rows.push_back(row); };
  }

  void run(EvalTask& task) { run_eval(model, tokenizer, arena, task, options, hooks); }

  Session read(const EvalSample& sample) {
    Session session(model, arena, options.session);
    session.append(std::span(sample.prompt).first(sample.prompt.size() - 1));
    return session;
  }

  Session read_by(const EvalSample& sample, const PrefillOptions& prefill) {
    Session session(model, arena, options.session);
    session.set_prefill(prefill);
    session.append(std::span(sample.prompt).first(sample.prompt.size() - 257));
    session.set_prefill({});
    session.append(std::span(sample.prompt).last(257).first(256));
    return session;
  }

  offload::Topology topology;
  offload::Threads threads{2};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  offload::Arena arena{topology, {.budget_bytes = 64 << 20}};
  Model model{std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/models/llama", *backend};
  Tokenizer tokenizer{std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model"};
  EvalOptions options;
  EvalHooks hooks;
  std::vector<EvalRow> rows;
};

}  // namespace hayloft::runtime::eval
