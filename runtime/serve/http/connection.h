#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/thread_pool.hpp>

#include "runtime/serve/http/server.h"

namespace hayloft::runtime::serve::http {

// Holds what connections share.
struct Service {
  const Routes& routes;
  const ServerOptions& options;
  boost::asio::thread_pool& workers;  // reads requests: tokenizing a book takes a while
  int connections = 0;
};

// Answers the requests of one connection until it is closed. Never throws.
boost::asio::awaitable<void> serve_connection(boost::asio::ip::tcp::socket socket, Service& service);

}  // namespace hayloft::runtime::serve::http
