#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "runtime/serve/http/routes.h"

namespace hayloft::runtime::serve::http {

struct ServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;  // 0: one that is free
  std::string api_key;        // empty: none is asked for
  std::string cors_origin;    // "*" or one origin, whose pages may call; empty: none but this server's own
  std::uint64_t most_body = std::uint64_t{64} << 20;  // bytes of a request's body
  int most_connections = 512;
  std::chrono::seconds header_time{30};  // to send the head of a request, and to stay idle before it
  std::chrono::seconds body_time{300};
  std::chrono::seconds write_time{60};  // for a client to take what is sent
  std::chrono::seconds stop_time{30};   // for answers to end after SIGTERM
  bool stopped_by_sigterm = true;       // and by SIGINT; false: SIGTERM is somebody else's
};

// HTTP/1.1 over TCP: serves the routes until SIGTERM or SIGINT, then waits for the answers that are being made, at most
// stop_time. `listening` is called with the address once connections are accepted. Throws Error when it cannot listen.
void serve(const Routes& routes, const ServerOptions& options,
           const std::function<void(const std::string& host, std::uint16_t port)>& listening);

}  // namespace hayloft::runtime::serve::http
