// A worker that says what a test wants it to say, over a real authenticated connection.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "loop_support.h"
#include "wire/channel.h"
#include "wire/messages.h"
#include "wire/tls.h"

namespace hvd::driver::test {

using namespace hvd::test;

struct Launched {
  uint64_t worker = 0;
  std::string host;
  int32_t slot = 0;
  std::vector<std::string> environment;
  std::string variable(const std::string& name) const {
    for (const std::string& entry : environment) {
      if (entry.rfind(name + "=", 0) == 0) return entry.substr(name.size() + 1);
    }
    return "";
  }
};

class ScriptedWorker {
 public:
  ScriptedWorker(Loop& loop, const Launched& launched)
      : loop_(loop),
        worker(launched.worker),
        driver(launched.variable("HVD_DRIVER")),
        job(launched.variable("HVD_JOB")),
        secret(launched.variable("HVD_SECRET")),
        host(launched.host) {}
  ~ScriptedWorker() { drop(); }

  /// HVD_OK when authenticated.
  Status connect() {
    std::promise<Status> told;
    on_loop(loop_, [&] {
      wire::connect_channel(
          loop_, driver, secret, identity.empty() ? wire::worker_identity(worker) : identity, {}, seconds(30),
          [this, &told](std::shared_ptr<wire::Channel> channel, const Status& why) {
            channel_ = std::move(channel);
            if (channel_) {
              channel_->set_handlers(
                  {[this](std::span<const uint8_t> frame) { received.add(wire::decode(frame)); },
                   [this](const Status& status) { closed.add(status); }});
            }
            told.set_value(why);
          });
    });
    return told.get_future().get();
  }

  template <class Body>
  void say(Body body, uint64_t generation = 0) {
    wire::EnvelopeT message = wire::envelope(job, worker, generation, std::move(body));
    message.sequence = ++sequence;
    message.term = term;
    message.term_proof = term_proof;
    send(wire::encode(message));
  }
  void send(wire::Bytes bytes) {
    on_loop(loop_, [&] {
      if (channel_) channel_->send(std::move(bytes));
    });
  }
  void hello() {
    wire::HelloT message;
    message.protocol = wire::kProtocol;
    message.library = "test";
    message.host = host;
    say(std::move(message));
  }
  /// Connects with the job's secret, and asks for a place on `host`: a worker that nobody has started.
  void apply(const std::string& job_secret, int32_t slot = -1) {
    worker = 0;
    secret = job_secret;
    identity = wire::kAdmissionIdentity;
    EXPECT_TRUE(connect().ok());
    wire::ApplyT message;
    message.protocol = wire::kProtocol;
    message.library = "test";
    message.host = host;
    message.slot = slot;
    say(std::move(message));
  }
  void ready(uint64_t left = 0, bool has_state = false, uint64_t revision = 0) {
    wire::ReadyT message;
    message.has_state = has_state;
    message.revision = revision;
    message.digest = std::make_unique<wire::Digest>(1, 2);
    auto address = std::make_unique<wire::AddressT>();
    address->backend = "test";
    address->blob = {static_cast<uint8_t>(worker)};
    message.addresses.push_back(std::move(address));
    say(std::move(message), left);
  }
  void synced(uint64_t generation, uint64_t revision) {
    wire::SyncedT message;
    message.revision = revision;
    say(std::move(message), generation);
  }
  void done(uint64_t generation) { say(wire::DoneT{}, generation); }

  /// The n-th message of this kind, or nothing before the deadline.
  template <class Body>
  const Body* await(const Body* (wire::BodyUnion::*as)() const, size_t n = 1) {
    const Body* found = nullptr;
    received.wait([&](const auto& all) {
      size_t seen = 0;
      for (const auto& message : all) {
        const Body* body = (message->body.*as)();
        if (body != nullptr && ++seen == n) {
          found = body;
          return true;
        }
      }
      return false;
    });
    return found;
  }
  size_t count(wire::Body type) const {
    size_t seen = 0;
    for (const auto& message : received.all()) seen += message->body.type == type;
    return seen;
  }
  bool hung_up() { return closed.wait_count(1); }
  /// Closes the connection, as the kernel does for a process that dies.
  void drop() {
    on_loop(loop_, [&] {
      if (channel_) channel_->close(Duration(0));
      channel_.reset();
    });
  }

 private:
  Loop& loop_;
  std::shared_ptr<wire::Channel> channel_;

 public:
  uint64_t worker;
  std::string driver, job, secret, host;
  std::string identity;  // "": the worker's own
  uint64_t sequence = 0, term = 0;
  std::string term_proof;
  struct Messages : Recorder<std::shared_ptr<wire::EnvelopeT>> {
    using Recorder::add;
    void add(wire::EnvelopeT message) { add(std::make_shared<wire::EnvelopeT>(std::move(message))); }
  };
  Messages received;
  Recorder<Status> closed;
};

}  // namespace hvd::driver::test
