#include "runtime/serve/http/access.h"

#include <gtest/gtest.h>

#include <string>

namespace hayloft::runtime::serve::http {
namespace {

int status_of(const std::string& host, const std::string& origin = "") {
  boost::beast::http::request_header<> head;
  head.target("/v1/models");
  head.set(boost::beast::http::field::host, host);
  if (!origin.empty()) head.set(boost::beast::http::field::origin, origin);
  const auto reply = refusal(head, ServerOptions{});
  return reply ? reply->status : 200;
}

// A page whose name leads to this machine (DNS rebinding) has the same origin as what it asks for: only the host tells.
TEST(Access, OfAServerOnThisMachineIsByItsOwnNames) {
  for (const char* host : {"localhost", "localhost:8080", "127.0.0.1", "127.0.0.1:8080", "127.1.2.3", "[::1]:8080"}) {
    EXPECT_EQ(status_of(host), 200) << host;
    EXPECT_EQ(status_of(host, std::string("http://") + host), 200) << host;
  }
  for (const char* host : {"127.evil.example", "127.evil.example:8080", "127.0.0.1.evil.example", "127.0.0.1x", "127.",
                           "127.0.0", "127.0.0.", "127..0.1", "127.0.0.1.1", "127.0.0.0001", "evil.example"}) {
    EXPECT_EQ(status_of(host), 403) << host;
    EXPECT_EQ(status_of(host, std::string("http://") + host), 403) << host;
  }
}

}  // namespace
}  // namespace hayloft::runtime::serve::http
