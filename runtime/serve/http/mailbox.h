#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "runtime/serve/generation.h"

namespace hayloft::runtime::serve::http {

// One thing that the engine tells of one request's generations, on its way to the connection's coroutine.
struct Event {
  struct Reading {
    std::int64_t done, total;
  };
  struct Scored {
    std::vector<TokenChoice> prompt;
  };
  struct Finished {
    FinishReason reason;
    std::string rest;
    Usage usage;
  };
  std::size_t choice;
  std::variant<Reading, Scored, GeneratedToken, Finished, Failure> what;
};

// For the network's thread, which the engine's thread posts to; `arrived` is cancelled when there is something.
struct Mailbox {
  explicit Mailbox(const boost::asio::any_io_executor& executor) : arrived(executor) {}
  std::deque<Event> events;
  boost::asio::steady_timer arrived;
};

// Hands on what the engine tells of generation `choice`. The mailbox may be gone by then.
std::shared_ptr<GenerationListener> listener_to(const std::shared_ptr<Mailbox>& mailbox, std::size_t choice);

}  // namespace hayloft::runtime::serve::http
