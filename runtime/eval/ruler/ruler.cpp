#include "runtime/eval/ruler/ruler.h"

#include <algorithm>
#include <limits>

#include "offload/error.h"

namespace hayloft::runtime {
namespace {

// Neighbouring seeds, tasks, lengths and samples begin far apart (splitmix64).
std::uint64_t mixed(std::uint64_t state, std::uint64_t more) {
  std::uint64_t z = (state ^ more) + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

void require_file(const std::filesystem::path& file, const char* option, std::string_view task) {
  if (file.empty()) fail("--tasks {}: its questions come from a file; name it with {}", task, option);
}

std::unique_ptr<RulerGenerator> make_generator(std::string_view task, const RulerOptions& options,
                                               const Tokenizer& tokenizer, std::int64_t ctx_size) {
  if (task == "vt") return make_ruler_tracking(ctx_size, tokenizer);
  if (task == "cwe") return make_ruler_common_words(ctx_size);
  if (task == "fwe") return make_ruler_frequent_words(ctx_size);
  if (task == "qa_1") {
    require_file(options.squad, "--squad", task);
    return make_ruler_squad(options.squad);
  }
  if (task == "qa_2") {
    require_file(options.hotpotqa, "--hotpotqa", task);
    return make_ruler_hotpotqa(options.hotpotqa);
  }
  return make_ruler_niah(task, options, ctx_size);
}

}  // namespace

const std::vector<RulerTask>& ruler_tasks() {
  static const std::vector<RulerTask> tasks = {
      {"niah_single_1", 128, Credit::all},
      {"niah_single_2", 128, Credit::all},
      {"niah_single_3", 128, Credit::all},
      {"niah_multikey_1", 128, Credit::all},
      {"niah_multikey_2", 128, Credit::all},
      {"niah_multikey_3", 128, Credit::all},
      {"niah_multivalue", 128, Credit::all},
      {"niah_multiquery", 128, Credit::all},
      {"vt", 30, Credit::all},
      {"cwe", 120, Credit::all},
      {"fwe", 50, Credit::all},
      {"qa_1", 32, Credit::any},
      {"qa_2", 32, Credit::any},
  };
  return tasks;
}

const RulerTask* find_ruler_task(std::string_view name) {
  for (const RulerTask& task : ruler_tasks()) {
    if (task.name == name) return &task;
  }
  return nullptr;
}

int RulerGenerator::samples() const {
  return std::numeric_limits<int>::max();
}

RulerSource::RulerSource(std::string_view task, const RulerOptions& options, const Tokenizer& tokenizer,
                         std::int64_t ctx_size)
    : task_(find_ruler_task(task)),
      seed_(mixed(options.seed, static_cast<std::uint64_t>(ctx_size))),
      chat_(options.chat),
      tokenizer_(&tokenizer),
      ctx_size_(ctx_size) {
  if (!task_) fail("--tasks {}: RULER has no task of this name", task);
  if (options.digits < 1 || options.digits > 18) fail("--digits {}: must be between 1 and 18", options.digits);
  seed_ = mixed(seed_, static_cast<std::uint64_t>(task_ - ruler_tasks().data()));
  generator_ = make_generator(task, options, tokenizer, ctx_size);
}

RulerSample RulerSource::make(int number, std::int64_t units) {
  RulerText text = generator_->write(number, units, std::mt19937_64(mixed(seed_, static_cast<std::uint64_t>(number))));
  RulerSample sample{chat_.text(text.input), std::move(text.answer_prefix), std::move(text.outputs)};
  sample.length = static_cast<std::int64_t>(tokenizer_->encode_prompt(sample.input + sample.answer_prefix).size()) +
                  task_->answer_tokens;
  return sample;
}

// Length grows with the units, nearly in proportion but not strictly, so the search goes where the straight line
// through its two ends says, and a little further each time so that both ends move.
std::int64_t RulerSource::find_units() {
  const auto length = [&](std::int64_t units) { return make(0, units).length; };
  std::int64_t fits = generator_->least_units(0);
  std::int64_t fits_length = length(fits);
  if (fits_length > ctx_size_) {
    fail("--ctx-size {}: too short for {}, which takes at least {} tokens of this model", ctx_size_, task_->name,
         fits_length);
  }
  std::int64_t exceeds = fits;
  std::int64_t exceeds_length = fits_length;
  while (exceeds_length <= ctx_size_) {
    fits = exceeds;
    fits_length = exceeds_length;
    exceeds *= 2;
    exceeds_length = length(exceeds);
  }
  for (std::int64_t beyond = 1; exceeds - fits > 1; beyond *= 2) {
    const std::int64_t guess = fits + (ctx_size_ - fits_length) * (exceeds - fits) / (exceeds_length - fits_length);
    const std::int64_t way = guess - fits < exceeds - guess ? beyond : -beyond;
    const std::int64_t units = std::clamp(guess + way, fits + 1, exceeds - 1);
    const std::int64_t tokens = length(units);
    if (tokens <= ctx_size_) {
      fits = units;
      fits_length = tokens;
    } else {
      exceeds = units;
      exceeds_length = tokens;
    }
  }
  return fits;
}

RulerSample RulerSource::sample(int number) {
  if (units_ == 0) units_ = find_units();
  const std::int64_t least = generator_->least_units(number);
  for (std::int64_t units = std::max(units_, least);;) {
    RulerSample sample = make(number, units);
    if (sample.length <= ctx_size_) return sample;
    if (units == least) {
      fail("--ctx-size {}: too short for sample {} of {}, which takes at least {} tokens of this model", ctx_size_,
           number, task_->name, sample.length);
    }
    // RULER drops a fixed number of units and tries again. Of a long text that may take many tries: those that cannot
    // be enough yet are left out.
    const std::int64_t drop = generator_->units_to_drop();
    const std::int64_t surplus = (sample.length - ctx_size_) * units / sample.length;
    units = std::max(least, units - std::max<std::int64_t>(1, surplus / drop) * drop);
  }
}

}  // namespace hayloft::runtime
