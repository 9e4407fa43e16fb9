#include <utility>  // boost/asio/awaitable.hpp 1.74 needs it and does not include it

#include "runtime/serve/http/read_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/read.hpp>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>

namespace hayloft::runtime::serve::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::use_awaitable;
using beast::http::field;
using boost::system::error_code;

constexpr std::size_t kPiece = 8 << 10;            // of a head that is read at once
constexpr std::uint64_t kMostFramingPerByte = 16;  // of a body in chunks: lines and ends of chunks of a byte or two

Refusal too_large(std::uint64_t most) {
  return {413, fmt::format("the body is larger than {} bytes", most)};
}

Refusal head_too_large() {
  return {431, fmt::format("the head is larger than {} bytes, or has more than {} fields", kMostHead, kMostFields)};
}

// Why what was read is no request; nothing where nobody is there any more.
std::optional<Refusal> reason(error_code error, std::uint64_t most = 0) {
  using failure = beast::http::error;
  if (error == failure::end_of_stream || error == beast::error::timeout ||
      error.category() != make_error_code(failure::end_of_stream).category()) {
    return std::nullopt;
  }
  if (error == failure::body_limit) return too_large(most);
  if (error == failure::header_limit) return head_too_large();
  if (error == failure::buffer_overflow) {
    return Refusal{
        400, fmt::format("the line of a chunk, or what follows the last one, is longer than {} bytes", kMostAhead)};
  }
  return Refusal{400, "this is not HTTP/1.1: " + error.message()};
}

bool is_host(std::string_view host) {
  constexpr std::string_view never = " \t\"<>\\^`{}|/?#@,";
  return !host.empty() && host.find_first_of(never) == std::string_view::npos;
}

// Why a head that could be parsed is refused all the same.
std::optional<Refusal> ambiguous(std::string_view raw, const beast::http::request_header<>& head) {
  if (static_cast<std::size_t>(std::distance(head.begin(), head.end())) > kMostFields) return head_too_large();
  if (raw.find("\r\n ") != std::string_view::npos || raw.find("\r\n\t") != std::string_view::npos) {
    return Refusal{400, "a field goes on in another line, which HTTP/1.1 has given up"};
  }
  const std::size_t hosts = head.count(field::host);
  if (hosts > 1 || (hosts == 0 && head.version() >= 11)) {
    return Refusal{400, fmt::format("{} Host fields: a request names one", hosts)};
  }
  const auto host = head[field::host];
  if (hosts == 1 && !is_host({host.data(), host.size()})) return Refusal{400, "the Host field names no host"};
  const auto length = head[field::content_length];
  if (head.count(field::content_length) > 1 || length.find(',') != length.npos) {
    return Refusal{400, "several lengths of a body: Content-Length stands once"};
  }
  const auto coding = head[field::content_encoding];
  if (head.count(field::content_encoding) > 1 || (!coding.empty() && !beast::iequals(coding, "identity"))) {
    return Refusal{415, "Content-Encoding: a body is read as it stands; send it without"};
  }
  const std::size_t encodings = head.count(field::transfer_encoding);
  if (encodings == 0) return std::nullopt;
  if (encodings > 1 || head.version() < 11 || !length.empty() ||
      !beast::iequals(head[field::transfer_encoding], "chunked")) {
    return Refusal{400, "Transfer-Encoding: chunked alone is read, in HTTP/1.1 and without Content-Length"};
  }
  return std::nullopt;
}

// Takes a target with a host in it, as clients send one to a proxy, apart: what they mean is the path at that host, and
// the Host field does not count (RFC 9112, 3.2.2).
void take_host_of_target(beast::http::request_header<>& head) {
  const std::string target(head.target());
  const auto scheme = [&](beast::string_view name) {
    return target.size() >= name.size() && beast::iequals(beast::string_view(target).substr(0, name.size()), name);
  };
  const std::size_t begin = scheme("http://") ? 7 : scheme("https://") ? 8 : 0;
  if (begin == 0) return;
  const std::size_t end = std::min(target.find_first_of("/?", begin), target.size());
  head.set(field::host, target.substr(begin, end - begin));
  head.target((end == target.size() || target[end] == '?' ? "/" : "") + target.substr(end));
}

}  // namespace

asio::awaitable<bool> read_head(beast::tcp_stream& stream, beast::flat_buffer& buffer, RequestParser& parser,
                                std::optional<Refusal>& refused) {
  parser.header_limit(kMostHead);
  parser.body_limit(std::numeric_limits<std::uint64_t>::max());  // read_body() is told the real one
  parser.eager(false);
  std::string raw;
  error_code error;
  for (;;) {
    while (buffer.size() > 0) {
      const auto ahead = buffer.data();
      const std::size_t used = parser.put(ahead, error);
      raw.append(static_cast<const char*>(ahead.data()), used);
      buffer.consume(used);
      if (error || parser.is_header_done()) break;
    }
    if (parser.is_header_done()) break;
    if (error && error != beast::http::error::need_more) {
      refused = reason(error);
      co_return false;
    }
    // The parser's own limit is of what it has not read yet: field by field it would never come to it.
    if (raw.size() + buffer.size() >= kMostHead) {
      refused = head_too_large();
      co_return false;
    }
    const auto room = buffer.prepare(kPiece);
    const std::size_t got = co_await stream.async_read_some(room, asio::redirect_error(use_awaitable, error));
    if (error == asio::error::eof && parser.got_some()) {
      parser.put_eof(error);
      refused = reason(error);
    }
    if (error) co_return false;
    buffer.commit(got);
  }
  refused = raw.size() > kMostHead ? head_too_large() : ambiguous(raw, parser.get());
  if (!refused) {
    take_host_of_target(parser.get());
    refused = ambiguous(raw, parser.get());
  }
  co_return !refused;
}

asio::awaitable<bool> read_body(beast::tcp_stream& stream, beast::flat_buffer& buffer, RequestParser& parser,
                                std::uint64_t most, std::optional<Refusal>& refused) {
  if (parser.content_length().value_or(0) > most) {
    refused = too_large(most);
    co_return false;
  }
  parser.body_limit(most);
  parser.eager(false);  // which comes back after each step, so that what it has taken can be looked at
  std::uint64_t taken = 0;
  while (!parser.is_done()) {
    error_code error;
    taken += co_await beast::http::async_read_some(stream, buffer, parser, asio::redirect_error(use_awaitable, error));
    if (error) {
      refused = reason(error, most);
      co_return false;
    }
    const std::uint64_t body = parser.get().body().size();
    if (taken > body + kMostAhead + kMostFramingPerByte * body) {
      refused = Refusal{400, "the chunks of the body bring next to nothing; send larger ones"};
      co_return false;
    }
  }
  co_return true;
}

}  // namespace hayloft::runtime::serve::http
