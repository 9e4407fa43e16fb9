#include <gtest/gtest.h>

#include <vector>

#include "tests/program/hostile_requests.h"
#include "tests/program/served.h"

// Tests heads and chunks that no client should send: each is bounded, and read in one way or refused.
namespace hayloft {
namespace {

using test::head;
using test::HttpAnswer;
using test::HttpClient;
using test::Served;

// Of each, sixteen times what is read of it.
TEST(ServeHostileHeads, WhatChunksBringBesidesIsBounded) {
  const test::TemporaryFolder folder;
  Served server({"--api-key-file", folder.write("key", "secret").string()});
  const std::string start =
      head("POST", "/v1/completions", "Authorization: Bearer secret\r\nTransfer-Encoding: chunked\r\n");
  const std::string lines(std::size_t{1} << 19, '0');
  std::string trailers, small_chunks;
  while (trailers.size() < lines.size()) trailers += "x: " + std::string(100, 'y') + "\r\n";
  while (small_chunks.size() < lines.size()) small_chunks += "1;" + std::string(1000, 'x') + "\r\na\r\n";
  for (const std::string& sent : {lines, "5;" + lines, "5;x=\"" + lines, "0\r\n" + trailers, small_chunks}) {
    const HttpClient client(server.port);
    client.send(start + sent);
    const HttpAnswer answer = client.answer();
    EXPECT_EQ(answer.status, 400) << sent.substr(0, 20);
    EXPECT_FALSE(answer.reset) << sent.substr(0, 20);
  }
  // Whoever has shown no key is told so at once.
  const HttpClient client(server.port);
  client.send(head("POST", "/v1/completions", "Transfer-Encoding: chunked\r\n") + lines);
  EXPECT_EQ(client.answer().status, 401);
  // At paths that need none, and by methods that take none, there is no body to speak of.
  for (const std::string& line : {head("POST", "/", ""), head("POST", "/health", ""), head("GET", "/health", "")}) {
    const std::string fields = line.substr(0, line.size() - 2);
    const HttpClient large(server.port);
    large.send(fields + "Content-Length: 1000000\r\n\r\n");
    EXPECT_EQ(large.answer().status, 413) << line;
    const HttpClient chunked(server.port);
    chunked.send(fields + "Transfer-Encoding: chunked\r\n\r\nfffff\r\n");
    EXPECT_EQ(chunked.answer().status, 413) << line;
  }
  ASSERT_TRUE(server.program().running());
}

TEST(ServeHostileHeads, AHeadIsBoundedHoweverItArrives) {
  Served server;
  const HttpClient client(server.port);
  client.send("GET /health HTTP/1.1\r\nHost: localhost\r\n");
  for (int i = 0; i < 200; ++i) client.send("x: " + std::string(1000, 'y') + "\r\n");
  EXPECT_EQ(client.answer().status, 431);
  std::string fields;
  for (int i = 0; i < 1000; ++i) fields += "a:b\r\n";
  const HttpClient many(server.port);
  many.send(head("GET", "/health", fields));
  EXPECT_EQ(many.answer().status, 431);
}

// What one program reads as one request and another as two, or as one for another host.
TEST(ServeHostileHeads, HeadsThatCanBeReadInTwoWaysAreRefused) {
  Served server;
  const auto status_of = [&](const std::string& bytes) {
    const HttpClient client(server.port);
    client.send(bytes);
    client.end_sending();
    return client.answer().status;
  };
  const std::string get = "GET /health HTTP/1.1\r\nConnection: close\r\n";
  const std::string host = "Host: localhost\r\n";
  EXPECT_EQ(status_of(get + host + "\r\n"), 200);
  EXPECT_EQ(status_of(get + "hOST: [::1]:80\r\n\r\n"), 200);
  EXPECT_EQ(status_of("GET /health HTTP/1.0\r\n\r\n"), 200);
  for (const std::string& fields :
       {std::string(), host + host, host + "Host: evil.example\r\n", std::string("Host:\r\n"),
        std::string("Host: a b\r\n"), std::string("Host: localhost, evil.example\r\n"),
        std::string("Host: user@localhost\r\n"), host + "X: a\r\n b\r\n", "X: a\r\n\t" + host,
        std::string("Host:\r\n localhost\r\n")}) {
    EXPECT_EQ(status_of(get + fields + "\r\n"), 400) << fields;
  }
  const std::string body = R"({"prompt": "a"})";
  const std::string length = "Content-Length: " + std::to_string(body.size()) + "\r\n";
  const std::string in_chunks = "f\r\n" + body + "\r\n0\r\n\r\n";
  ASSERT_EQ(body.size(), 15u);
  const std::string encoding = "Transfer-Encoding: chunked\r\n";
  EXPECT_EQ(status_of(head("POST", "/tokenize", length) + body), 200);
  EXPECT_EQ(status_of(head("POST", "/tokenize", encoding) + in_chunks), 200);
  EXPECT_EQ(status_of(head("POST", "/tokenize", encoding) + "f;a=b\r\n" + body + "\r\n0\r\nX: y\r\n\r\n"), 200);
  EXPECT_EQ(status_of(head("POST", "/tokenize", length + length) + body), 400);
  EXPECT_EQ(status_of(head("POST", "/tokenize", "Content-Length: 15, 15\r\n") + body), 400);
  for (const std::string& fields : {length + encoding, encoding + length, encoding + encoding}) {
    EXPECT_EQ(status_of(head("POST", "/tokenize", fields) + in_chunks), 400) << fields;
  }
  for (const char* name : {"gzip, chunked", "chunked, identity", "identity", "xchunked", ""}) {
    const std::string fields = "Transfer-Encoding: " + std::string(name) + "\r\n";
    EXPECT_EQ(status_of(head("POST", "/tokenize", fields) + in_chunks), 400) << fields;
  }
  EXPECT_EQ(status_of("POST /tokenize HTTP/1.0\r\n" + encoding + "\r\n" + in_chunks), 400);
}

TEST(ServeHostileHeads, ABodyIsNotReadAsWhatItIsNot) {
  Served server;
  const json body = {{"prompt", "a"}};
  EXPECT_EQ(server.post("/tokenize", body, "Content-Encoding: identity\r\n").status, 200);
  for (const char* coding : {"gzip", "deflate", "br", "gzip, identity"}) {
    const HttpAnswer answer = server.post("/tokenize", body, "Content-Encoding: " + std::string(coding) + "\r\n");
    EXPECT_EQ(answer.status, 415) << coding;
    EXPECT_NE(answer.body.find("Content-Encoding"), std::string::npos) << answer.body;
  }
}

// Each answer is followed by the end of the connection, as nothing tells such a client that it goes on.
TEST(ServeHostileHeads, AnOldClientIsAnsweredAsOne) {
  Served server;
  const std::string body = R"({"prompt": "a"})";
  for (const std::string fields : {"Connection: keep-alive\r\n", "Expect: 100-continue\r\n"}) {
    const HttpClient client(server.port);
    client.send("POST /tokenize HTTP/1.0\r\n" + fields + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
                body);
    const HttpAnswer answer = client.answer();
    EXPECT_EQ(answer.status, 200) << fields << answer.head;
    EXPECT_NE(answer.head.find("Connection: close"), std::string::npos) << answer.head;
  }
}

// As clients of a proxy write it; the Host field then does not count.
TEST(ServeHostileHeads, ATargetMayNameItsHost) {
  Served server;
  const auto status_of = [&](const std::string& target, const std::string& host) {
    const HttpClient client(server.port);
    client.send("GET " + target + " HTTP/1.1\r\nConnection: close\r\nHost: " + host + "\r\n\r\n");
    client.end_sending();
    return client.answer().status;
  };
  for (const char* target : {"http://localhost/health", "HTTP://127.0.0.1:80/health?a=b", "https://[::1]:8080/health",
                             "http://localhost", "http://localhost?a=b"}) {
    EXPECT_EQ(status_of(target, "localhost"), 200) << target;
    EXPECT_EQ(status_of(target, "evil.example"), 200) << target;
  }
  EXPECT_EQ(status_of("http://localhost/nothing", "localhost"), 404);
  EXPECT_EQ(status_of("http://evil.example/health", "localhost"), 403);
  for (const char* target : {"http:///health", "http://", "http://user@localhost/health"}) {
    EXPECT_EQ(status_of(target, "localhost"), 400) << target;
  }
}

}  // namespace
}  // namespace hayloft
