#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/program/http_client.h"

// Makes requests that no client should send, at random.
namespace hayloft::test {

using Random = std::mt19937;

inline std::size_t below(Random& random, std::size_t n) {
  return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
}

template <class Value>
const Value& one_of(Random& random, const std::vector<Value>& values) {
  return values[below(random, values.size())];
}

inline std::string head(const std::string& method, const std::string& path, const std::string& fields) {
  return method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + fields + "\r\n";
}

inline std::string post(const std::string& path, const std::string& body) {
  return head("POST", path, "Content-Length: " + std::to_string(body.size()) + "\r\n") + body;
}

// Some come in small pieces.
inline void send(const HttpClient& client, std::string_view bytes, Random& random) {
  if (bytes.size() < 2000 && below(random, 4) == 0) {
    while (!bytes.empty()) {
      const std::size_t piece = std::min(bytes.size(), 1 + below(random, 40));
      client.send(bytes.substr(0, piece));
      bytes.remove_prefix(piece);
    }
  }
  client.send(bytes);
  client.end_sending();
}

}  // namespace hayloft::test
