#include <utility>  // boost/asio/awaitable.hpp 1.74 needs it and does not include it

#include "runtime/serve/http/slow_writer.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <memory>

namespace hayloft::runtime::serve::http {
namespace {

namespace asio = boost::asio;
using asio::use_awaitable;
using boost::system::error_code;

}  // namespace

asio::awaitable<error_code> SlowWriter::write_some(const std::string& bytes, std::chrono::milliseconds most) {
  auto& socket = stream_.socket();
  error_code error;
  if (!socket.non_blocking()) socket.non_blocking(true, error);
  const auto rest = asio::buffer(bytes.data() + written_, bytes.size() - written_);
  const std::size_t written = error ? 0 : socket.write_some(rest, error);
  if (written > 0) {
    written_ += written;
    last_ = std::chrono::steady_clock::now();
  }
  if (error != asio::error::would_block && error != asio::error::try_again) co_return error;
  // The timer ends the wait, unless that has ended before: then it must not end another.
  const auto waiting = std::make_shared<bool>(true);
  asio::steady_timer limit(socket.get_executor(), most);
  limit.async_wait([&socket, waiting](error_code cancelled) {
    error_code ignored;
    if (!cancelled && *waiting) socket.cancel(ignored);
  });
  co_await socket.async_wait(asio::ip::tcp::socket::wait_write, asio::redirect_error(use_awaitable, error));
  *waiting = false;
  if (error == asio::error::operation_aborted) error = {};
  co_return error;
}

}  // namespace hayloft::runtime::serve::http
