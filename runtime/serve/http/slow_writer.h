#pragma once

#include <utility>  // boost/asio/awaitable.hpp 1.74 needs it and does not include it

#include <boost/asio/awaitable.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <chrono>
#include <cstddef>
#include <string>

namespace hayloft::runtime::serve::http {

// The system takes this much of a stream for a client that does not read it, and no megabytes.
inline constexpr int kStreamBuffer = 32 << 10;

// Writes to a client that may take it slowly, or not at all, piece by piece: between two of them whoever writes can
// think again. For one string at a time.
class SlowWriter {
 public:
  explicit SlowWriter(boost::beast::tcp_stream& stream) : stream_(stream) {}

  // Some more of `bytes`, always the same; waits at most so long for the client to take any.
  boost::asio::awaitable<boost::system::error_code> write_some(const std::string& bytes,
                                                               std::chrono::milliseconds most);
  bool done(const std::string& bytes) const { return written_ == bytes.size(); }
  // Since the client took something last.
  std::chrono::steady_clock::duration idle() const { return std::chrono::steady_clock::now() - last_; }

 private:
  boost::beast::tcp_stream& stream_;
  std::size_t written_ = 0;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace hayloft::runtime::serve::http
