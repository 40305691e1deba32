// Routes workers to the launcher of their host.
#include "agent/launcher.h"

#include <utility>

namespace hvd::agent {
namespace {

class RoutingLauncher final : public launch::Launcher {
 public:
  RoutingLauncher(Server& server, std::unique_ptr<launch::Launcher> local,
                  std::function<bool(const std::string& host)> is_local)
      : server_(server), local_(std::move(local)), is_local_(std::move(is_local)) {}

  void start(launch::LaunchRequest request) override {
    if (local_ && !server_.knows(request.host) && is_local_(request.host))
      return local_->start(std::move(request));
    server_.start(std::move(request));
  }
  void stop(uint64_t worker, Duration grace) override {
    if (server_.has(worker)) return server_.stop(worker, grace);
    if (local_) local_->stop(worker, grace);
  }
  void kill(uint64_t worker) override {
    if (server_.has(worker)) return server_.stop(worker, Duration(0));
    if (local_) local_->kill(worker);
  }
  void set_rank(uint64_t worker, int32_t rank) override {
    server_.set_rank(worker, rank);
    if (local_) local_->set_rank(worker, rank);
  }
  std::optional<int32_t> ended(uint64_t worker) const override {
    return local_ ? local_->ended(worker) : std::nullopt;
  }
  launch::Life life(uint64_t worker, int64_t process) const override {
    if (server_.has(worker) || !local_) return server_.life(worker);
    return local_->life(worker, process);
  }
  void set_process(uint64_t worker, int64_t process) override { server_.set_process(worker, process); }
  void close(Duration grace) override {
    if (local_) local_->close(grace);
    server_.close();
  }

 private:
  Server& server_;
  const std::unique_ptr<launch::Launcher> local_;
  const std::function<bool(const std::string& host)> is_local_;
};

}  // namespace

std::unique_ptr<launch::Launcher> make_launcher(Server& server, std::unique_ptr<launch::Launcher> local,
                                                std::function<bool(const std::string& host)> is_local) {
  return std::make_unique<RoutingLauncher>(server, std::move(local), std::move(is_local));
}

}  // namespace hvd::agent
