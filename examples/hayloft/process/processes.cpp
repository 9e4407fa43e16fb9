#include "examples/hayloft/process/processes.h"

#include <unistd.h>

#include <csignal>
#include <optional>
#include <vector>

#include "examples/hayloft/process/interrupt.h"
#include "examples/hayloft/process/shared_input.h"
#include "runtime/cluster/rank_attender.h"
#include "runtime/peers/tell.h"

namespace hayloft::cli {
namespace {

class OneProcess final : public Processes {
 public:
  void prepare(const std::function<void()>& work) const override { work(); }
  void join(const StartFacts&, runtime::SessionOptions&) const override {}
  void interrupt_first_alone() const override {}
  void take_terminations_for_interrupts() const override {}

  std::string read_text(const std::string& option, const std::string& path) const override {
    return cli::read_text(option, path);
  }
  bool next_line(LineInput& input, std::string& line) const override { return input.next(line); }
  void check_interrupted() const override { cli::check_interrupted(); }

  std::int32_t next_token(runtime::Session& session, std::int32_t token, runtime::Sampler& sampler) const override {
    cli::check_interrupted();
    return session.next(token, sampler);
  }
};

void interrupt_this(int) {
  ::raise(SIGINT);
}

void end_or_interrupt(int signal, siginfo_t* info, void*) {
  info->si_pid == ::getppid() ? say_ended(signal) : interrupt_this(signal);
}

// The first letter of a message.
enum class Came : char { text, end, interrupt, failure };

// Returns what `read` gives on the first rank, on all of them; none at its end.
std::optional<std::string> told(const std::function<std::optional<std::string>()>& read) {
  std::string message;
  const auto say = [&](Came what, const std::string& text = {}) { message = static_cast<char>(what) + text; };
  if (first_rank()) {
    try {
      const std::optional<std::string> text = read();
      text ? say(Came::text, *text) : say(Came::end);
    } catch (const Interrupted&) {
      say(Came::interrupt);
    } catch (const Error& error) {
      say(Came::failure, error.what());
    }
  }
  runtime::cluster::tell(*ranks(), runtime::cluster::Traffic::turn, message);
  const auto what = static_cast<Came>(message.at(0));
  message.erase(0, 1);
  if (what == Came::interrupt) throw Interrupted(Interrupted::Of::all_ranks);
  if (what == Came::failure) throw runtime::cluster::SharedError(message);
  return what == Came::text ? std::optional(message) : std::nullopt;
}

class Ranks final : public Processes {
 public:
  void prepare(const std::function<void()>& work) const override { runtime::cluster::together(meet_ranks(), work); }

  void join(const StartFacts& facts, runtime::SessionOptions& session) const override {
    runtime::cluster::Communicator& met = meet_ranks();
    const runtime::cluster::Fact all[] = {{"version of hayloft", HAYLOFT_VERSION},
                                          {"model or tokenizer", facts.weights},
                                          {"command line", facts.options},
                                          {"text", facts.text},
                                          {"chat template", facts.chat}};
    runtime::cluster::require_same(met, all);
    session.attend_by(runtime::cluster::rank_attender(met));
  }

  void interrupt_first_alone() const override {
    if (!first_rank()) ignore_interrupts();
    std::signal(SIGUSR1, first_rank() ? interrupt_this : SIG_IGN);
  }

  void take_terminations_for_interrupts() const override {
    if (!first_rank()) return;
    struct sigaction action {};
    action.sa_sigaction = end_or_interrupt;
    action.sa_flags = static_cast<int>(SA_SIGINFO | SA_RESTART);
    sigaction(SIGTERM, &action, nullptr);
  }

  std::string read_text(const std::string& option, const std::string& path) const override {
    return told([&] { return cli::read_text(option, path); }).value_or("");
  }

  bool next_line(LineInput& input, std::string& line) const override {
    const std::optional<std::string> text = told([&]() -> std::optional<std::string> {
      if (!input.next(line)) return std::nullopt;
      return line;
    });
    if (text) line = *text;
    return text.has_value();
  }

  void check_interrupted() const override {
    char stop = first_rank() && interrupted() ? 1 : 0;
    ranks()->broadcast(runtime::cluster::Traffic::token, std::as_writable_bytes(std::span(&stop, 1)));
    if (stop != 0) throw Interrupted(Interrupted::Of::all_ranks);
  }

  std::int32_t next_token(runtime::Session& session, std::int32_t token, runtime::Sampler& sampler) const override {
    constexpr std::int32_t stop = -1;
    const std::vector<float> logits = session.step(token);
    std::int32_t drawn = stop;
    if (first_rank() && !interrupted()) drawn = sampler.sample(logits);
    drawn = session.agreed(drawn);
    if (drawn == stop) throw Interrupted(Interrupted::Of::all_ranks);
    return drawn;
  }
};

}  // namespace

const Processes& processes() {
  static const OneProcess one;
  static const Ranks several;
  return over_ranks() ? static_cast<const Processes&>(several) : one;
}

void prepare_together(const std::function<void()>& work) {
  processes().prepare(work);
}

void join_ranks(const StartFacts& facts, runtime::SessionOptions& session) {
  processes().join(facts, session);
}

void interrupt_first_rank_alone() {
  processes().interrupt_first_alone();
}

void take_terminations_for_interrupts() {
  processes().take_terminations_for_interrupts();
}

std::string read_text_together(const std::string& option, const std::string& path) {
  return processes().read_text(option, path);
}

bool SharedLines::next(std::string& line) {
  return processes().next_line(input_, line);
}

void check_interrupted_together() {
  processes().check_interrupted();
}

}  // namespace hayloft::cli
