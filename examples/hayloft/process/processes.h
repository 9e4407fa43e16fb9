#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "examples/hayloft/process/ranks.h"
#include "examples/hayloft/process/text_input.h"
#include "runtime/decode/sampler.h"

namespace hayloft::cli {

// The processes of this run: one, or the ranks that mpirun has started. Makes once the difference between them that the
// functions of ranks.h and shared_input.h, and drawing, would make each. They throw what those say: Error, Interrupted.
// For the main thread.
class Processes {
 public:
  virtual ~Processes() = default;

  virtual void prepare(const std::function<void()>& work) const = 0;  // prepare_together()
  virtual void join(const StartFacts& facts, runtime::SessionOptions& session) const = 0;
  virtual void interrupt_first_alone() const = 0;
  virtual void take_terminations_for_interrupts() const = 0;

  virtual std::string read_text(const std::string& option, const std::string& path) const = 0;
  virtual bool next_line(LineInput& input, std::string& line) const = 0;
  virtual void check_interrupted() const = 0;

  // Decodes `token` and draws the next. Of ranks the first draws for all; where it was interrupted it tells them that
  // instead, so that all end behind the same token.
  virtual std::int32_t next_token(runtime::Session& session, std::int32_t token, runtime::Sampler& sampler) const = 0;
};

const Processes& processes();

}  // namespace hayloft::cli
