// Serves what is known of a job over HTTP: read-only, without secrets, for people, probes and Prometheus.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace hvd::cli {

struct HttpAnswer {
  unsigned status = 200;
  std::string type, body;
};

/// Answers a path, from the server's thread. Unknown paths get 404.
using HttpHandler = std::function<HttpAnswer(const std::string& path)>;

class HttpServer {
 public:
  /// "address:port", "[v6]:port", "port" or ":port": the last two on loopback. Throws std::runtime_error that
  /// names the endpoint and what is wrong with it.
  HttpServer(const std::string& endpoint, HttpHandler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  std::string url() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Whether a Host header may be served on a loopback address: names of this machine alone. A page from
/// elsewhere whose name was made to point here (DNS rebinding) must not read what is served.
bool is_local_host(const std::string& header);

}  // namespace hvd::cli
