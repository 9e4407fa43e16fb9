#include <utility>  // boost/asio/awaitable.hpp 1.74 needs it and does not include it

#include "runtime/serve/http/access.h"

#include <algorithm>
#include <string_view>

namespace hayloft::runtime::serve::http {
namespace {

namespace beast_http = boost::beast::http;

std::string_view view(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

// "localhost:8080" -> "localhost", "[::1]:8080" -> "[::1]"
std::string_view without_port(std::string_view host) {
  const std::size_t colon = host.rfind(':');
  return colon != std::string_view::npos && host.find(']', colon) == std::string_view::npos ? host.substr(0, colon)
                                                                                            : host;
}

// Says whether it is an address of 127.0.0.0/8. Names may begin so as well (127.evil.example), and anybody can have
// such a name lead here.
bool is_ipv4_loopback(std::string_view host) {
  if (!host.starts_with("127.")) return false;
  std::size_t parts = 0;
  for (bool more = true; more; ++parts) {
    const std::size_t dot = host.find('.');
    const std::string_view part = host.substr(0, dot);
    const bool digits = std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    if (!digits || part.empty() || part.size() > 3) return false;
    more = dot != std::string_view::npos;
    if (more) host.remove_prefix(dot + 1);
  }
  return parts == 4;
}

bool loopback(std::string_view host) {
  return host == "localhost" || host == "[::1]" || host == "::1" || is_ipv4_loopback(host);
}

// In a time that does not tell how much of it is right.
bool same_key(std::string_view given, std::string_view key) {
  unsigned difference = given.size() == key.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i] ^ key[i % std::max<std::size_t>(key.size(), 1)]);
  }
  return difference == 0;
}

// "Bearer KEY": the scheme in letters of any case, spaces between (RFC 9110, 11.1 and 11.4).
std::optional<std::string_view> bearer_key(std::string_view given) {
  constexpr std::string_view scheme = "bearer ";
  const std::string_view beginning = given.substr(0, scheme.size());
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  if (!std::ranges::equal(beginning, scheme, {}, lower)) return std::nullopt;
  given.remove_prefix(std::min(given.find_first_not_of(' ', scheme.size()), given.size()));
  return given;
}

bool is_field_list(std::string_view text) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("!#$%&'*+-.^_`|~, ").find(c) != std::string_view::npos;
  };
  return !text.empty() && std::ranges::all_of(text, fits);
}

}  // namespace

std::string path_of(const beast_http::request_header<>& head) {
  const std::string_view target = view(head.target());
  return std::string(target.substr(0, target.find('?')));
}

std::string allowed_fields(const beast_http::request_header<>& head) {
  const std::string_view asked = view(head[beast_http::field::access_control_request_headers]);
  return is_field_list(asked) ? std::string(asked) : "authorization, content-type";
}

std::optional<Reply> refusal(const beast_http::request_header<>& head, const ServerOptions& options) {
  const std::string path = path_of(head);
  const std::string_view host = view(head[beast_http::field::host]);
  if (loopback(options.host) && !host.empty() && !loopback(without_port(host))) {
    return error_reply_at(path, 403, "this server answers to localhost only, see --host");
  }
  const std::string_view origin = view(head[beast_http::field::origin]);
  if (!origin.empty() && options.cors_origin != "*" && origin != options.cors_origin) {
    const std::size_t scheme = origin.find("://");
    if (scheme == std::string_view::npos || origin.substr(scheme + 3) != host) {
      return error_reply_at(path, 403, "pages of other sites may not call this server, see --cors");
    }
  }
  if (options.api_key.empty() || Routes::open_to_all(path) || head.method() == beast_http::verb::options) return {};
  const std::string_view given = view(head[beast_http::field::authorization]);
  if (const auto key = bearer_key(given); key && same_key(*key, options.api_key)) return {};
  if (same_key(view(head["x-api-key"]), options.api_key)) return {};  // as Anthropic's clients send it
  return error_reply_at(path, 401, "an API key is needed: Authorization: Bearer KEY, or x-api-key: KEY");
}

}  // namespace hayloft::runtime::serve::http
