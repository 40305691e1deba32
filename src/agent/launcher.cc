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
    if (runs_here(request.host)) return local_->start(std::move(request));
    server_.start(std::move(request));
  }
  bool inherit(const launch::InheritedWorker& worker) override { return local_ && local_->inherit(worker); }
  bool keeps_all(const std::string& host) const override {
    return runs_here(host) && local_->keeps_all(host);
  }
  bool expect(uint64_t worker, const std::string& host, int32_t slot) override {
    if (runs_here(host)) return false;
    server_.expect(worker, host, slot);
    return true;
  }
  bool has(uint64_t worker) const override { return server_.has(worker); }
  bool expect_host(const std::string& host, int32_t slots) override {
    return !local_ && server_.expect(host, slots);
  }
  bool awaits() const override { return server_.awaits(); }
  void hurry(Duration patience) override { server_.hurry(patience); }
  void forget(uint64_t worker) override { server_.forget(worker); }
  void retire() override { server_.retire(); }
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
  void set_process(uint64_t worker, const launch::ProcessClaim& claim) override {
    server_.set_process(worker, claim);
  }
  void close(Duration grace) override {
    if (local_) local_->close(grace);
    server_.close();
  }

 private:
  bool runs_here(const std::string& host) const { return local_ && !server_.knows(host) && is_local_(host); }

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
