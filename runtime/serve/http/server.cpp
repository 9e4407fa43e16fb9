#include <utility>  // boost/asio/awaitable.hpp 1.74 needs it and does not include it

#include "runtime/serve/http/server.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>

#include "offload/error.h"
#include "runtime/serve/http/connection.h"

namespace hayloft::runtime::serve::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr int kWorkers = 2;

tcp::acceptor listen(asio::io_context& network, const ServerOptions& options) {
  try {
    const auto found = tcp::resolver(network).resolve(options.host, std::to_string(options.port));
    tcp::acceptor acceptor(network);
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor.open(endpoint.protocol());
    acceptor.set_option(tcp::acceptor::reuse_address(true));
    acceptor.bind(endpoint);
    acceptor.listen();
    return acceptor;
  } catch (const boost::system::system_error& error) {
    fail("cannot listen at {}:{}: {}; choose another --host or --port", options.host, options.port,
         error.code().message());
  }
}

asio::awaitable<void> accept(tcp::acceptor& acceptor, Service& service) {
  const auto executor = co_await asio::this_coro::executor;
  while (acceptor.is_open()) {
    error_code error;
    tcp::socket socket = co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, error));
    if (!error) {
      socket.set_option(tcp::no_delay(true), error);
      asio::co_spawn(executor, serve_connection(std::move(socket), service), asio::detached);
    } else if (acceptor.is_open()) {  // out of descriptors, say: connections that end give theirs back
      asio::steady_timer pause(executor, std::chrono::milliseconds(100));
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
    }
  }
}

// After the first signal nothing new is accepted and the answers that are being made may end; the second ends them.
asio::awaitable<void> stop_on_signal(asio::io_context& network, asio::signal_set& signals, tcp::acceptor& acceptor,
                                     Service& service) {
  const auto executor = co_await asio::this_coro::executor;
  error_code error;
  co_await signals.async_wait(asio::redirect_error(asio::use_awaitable, error));
  acceptor.close(error);
  service.routes.engine().stop_admitting();
  signals.async_wait([&network](error_code failed, int) {
    if (!failed) network.stop();
  });
  const auto until = std::chrono::steady_clock::now() + service.options.stop_time;
  asio::steady_timer tick(executor);
  while (!service.routes.engine().idle() && std::chrono::steady_clock::now() < until) {
    tick.expires_after(std::chrono::milliseconds(50));
    co_await tick.async_wait(asio::redirect_error(asio::use_awaitable, error));
  }
  tick.expires_after(std::chrono::milliseconds(200));  // what has been made is on its way to the clients
  co_await tick.async_wait(asio::redirect_error(asio::use_awaitable, error));
  network.stop();
}

}  // namespace

void serve(const Routes& routes, const ServerOptions& options,
           const std::function<void(const std::string&, std::uint16_t)>& listening) {
  asio::thread_pool workers(kWorkers);
  Service service{routes, options, workers};
  asio::io_context network(1);  // with it go the connections, which use what is above
  tcp::acceptor acceptor = listen(network, options);
  asio::co_spawn(network, accept(acceptor, service), asio::detached);
  asio::signal_set signals(network, SIGINT);  // from here on, before anybody can know that this listens
  if (options.stopped_by_sigterm) signals.add(SIGTERM);
  asio::co_spawn(network, stop_on_signal(network, signals, acceptor, service), asio::detached);
  const tcp::endpoint bound = acceptor.local_endpoint();
  listening(bound.address().to_string(), bound.port());
  network.run();
  workers.join();
  routes.engine().close();  // it posts to the network, which ends here
}

}  // namespace hayloft::runtime::serve::http
