#pragma once

#include <utility>  // boost/asio/awaitable.hpp 1.74 needs it and does not include it

#include <boost/asio/awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/serve/http/routes.h"

// Requests as they come from the network, of which nothing is believed: what they may take of memory is bounded at each
// step, whatever the parser would go on with.
namespace hayloft::runtime::serve::http {

using RequestParser = boost::beast::http::request_parser<boost::beast::http::string_body>;

inline constexpr std::uint32_t kMostHead = 16 << 10;
inline constexpr std::size_t kMostFields = 100;
// Read ahead of the parser: also the longest line of a chunk, and all the fields behind the last one.
inline constexpr std::size_t kMostAhead = 32 << 10;

// Why what was read is no request that can be answered: the status and the message of the reply.
struct Refusal {
  int status = 400;
  std::string message;
};

// Reads the head of a request. False when there is none to answer: `refused` then says why, if somebody is there to
// hear it. Refused are also heads that different programs read differently: folded fields, no Host or several, several
// lengths, other transfer encodings than chunked, compressed bodies.
boost::asio::awaitable<bool> read_head(boost::beast::tcp_stream& stream, boost::beast::flat_buffer& buffer,
                                       RequestParser& parser, std::optional<Refusal>& refused);

// The body of that request, at most `most` bytes, on the same terms. What chunks bring besides may not be much more
// than what they bring.
boost::asio::awaitable<bool> read_body(boost::beast::tcp_stream& stream, boost::beast::flat_buffer& buffer,
                                       RequestParser& parser, std::uint64_t most, std::optional<Refusal>& refused);

}  // namespace hayloft::runtime::serve::http
